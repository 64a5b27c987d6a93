//go:build linux && cgo && !nordma

package verbs

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// sockaddr is a struct sockaddr_in or sockaddr_in6, as bytes.
type sockaddr [unix.SizeofSockaddrInet6]byte

// encodeSockaddr gives false for an address without a family, and for a zone that names no interface.
func encodeSockaddr(a netip.AddrPort) (sockaddr, bool) {
	var s sockaddr
	ip := a.Addr().Unmap()
	binary.BigEndian.PutUint16(s[2:], a.Port())
	switch {
	case ip.Is4():
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET)
		b := ip.As4()
		copy(s[4:], b[:])
	case ip.Is6():
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET6)
		b := ip.As16()
		copy(s[8:], b[:])
		if zone := ip.Zone(); zone != "" {
			index, ok := zoneIndex(zone)
			if !ok {
				return s, false
			}
			binary.NativeEndian.PutUint32(s[24:], index)
		}
	default:
		return s, false
	}
	return s, true
}

// decode gives the zero value when the bytes hold no IP address (an identifier that was not bound yet).
func (s *sockaddr) decode() netip.AddrPort {
	port := binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), port)
	case unix.AF_INET6:
		ip := netip.AddrFrom16([16]byte(s[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(s[24:]); scope != 0 && ip.IsLinkLocalUnicast() && ip.Is6() {
			ip = ip.WithZone(zoneName(scope))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}

func zoneIndex(zone string) (uint32, bool) {
	if ifc, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifc.Index), true
	}
	n, err := strconv.ParseUint(zone, 10, 32)
	return uint32(n), err == nil && n != 0
}

func zoneName(index uint32) string {
	if ifc, err := net.InterfaceByIndex(int(index)); err == nil {
		return ifc.Name
	}
	return strconv.FormatUint(uint64(index), 10)
}

// zoneOf is the interface that has a link-local address; "" when none has.
func zoneOf(ip netip.Addr) string {
	interfaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, ifc := range interfaces {
		addrs, err := ifc.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(net.IP(ip.AsSlice())) {
				return ifc.Name
			}
		}
	}
	return ""
}

// needsZone is true for an address that means nothing without its interface.
func needsZone(ip netip.Addr) bool { return ip.Is6() && ip.IsLinkLocalUnicast() && ip.Zone() == "" }
