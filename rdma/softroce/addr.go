package softroce

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"iserd/rdma"
)

// localAddr is an address of the machine.
type localAddr struct {
	addr   netip.Addr
	netdev string
	mtu    int
}

// addrs are the addresses that the provider may use and that are there now, link-local ones left out.
func (p *Provider) addrs() []localAddr {
	var out []localAddr
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		as, _ := i.Addrs()
		for _, a := range as {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && p.allowed(ip.Unmap()) && !(ip.Is6() && ip.IsLinkLocalUnicast()) {
				out = append(out, localAddr{ip.Unmap(), i.Name, i.MTU})
			}
		}
	}
	for _, a := range p.opt.Addrs { // of the loopback network every address is there
		if a.Is4() && a.IsLoopback() && !slices.ContainsFunc(out, func(l localAddr) bool { return l.addr == a }) {
			out = append(out, localAddr{a, "lo", 65536})
		}
	}
	return out
}

func (p *Provider) allowed(a netip.Addr) bool {
	return len(p.opt.Addrs) == 0 || slices.Contains(p.opt.Addrs, a)
}

// pathMTU is the largest MTU of the transport that fits an interface's MTU of n bytes. The room for headers is that
// which rdma_rxe and adapters leave, so that both ends of a path come to the same: IPv6, UDP, BTH, XRC, atomic, ICRC.
func (p *Provider) pathMTU(n int) int {
	room := n - 40 - 8 - bthLen - 4 - atomicLen - icrcLen
	for _, m := range []int{4096, 2048, 1024, 512} {
		if m <= room && m <= p.opt.MTU {
			return m
		}
	}
	return 256
}

// mtuOf is the path MTU of a local address.
func (p *Provider) mtuOf(a netip.Addr) int {
	if a.IsLoopback() {
		return p.opt.MTU
	}
	for _, l := range p.addrs() {
		if l.addr == a {
			return p.pathMTU(l.mtu)
		}
	}
	return 256
}

// probe asks the kernel for the way from one address (or any) to another: the source address and the MTU of the way.
func probe(from, to netip.Addr) (src netip.Addr, mtu int, err error) {
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return src, 0, err
	}
	defer unix.Close(fd)
	sockaddr := func(a netip.Addr, port int) unix.Sockaddr {
		if to.Is6() {
			return &unix.SockaddrInet6{Addr: a.As16(), Port: port}
		}
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	if from.IsValid() {
		if err := unix.Bind(fd, sockaddr(from, 0)); err != nil {
			return src, 0, err
		}
	}
	if err := unix.Connect(fd, sockaddr(to, Port)); err != nil {
		return src, 0, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return src, 0, err
	}
	if to.Is6() {
		mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
	} else {
		mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		src = netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		src = netip.AddrFrom16(sa.Addr)
	}
	return src, mtu, err
}

// loopbackTries is how many addresses of the loopback network an initiator tries for one that is free.
const loopbackTries = 64

// candidates are the source addresses to try for a destination, best first.
func (p *Provider) candidates(to netip.Addr) ([]netip.Addr, error) {
	src, _, err := probe(netip.Addr{}, to)
	var out []netip.Addr
	if err == nil && p.allowed(src) {
		out = append(out, src)
	}
	if len(p.opt.Addrs) > 0 {
		for _, a := range p.opt.Addrs {
			if a.Is4() == to.Is4() && a != src {
				out = append(out, a)
			}
		}
		return out, err
	}
	if err != nil {
		return nil, err
	}
	if !to.IsLoopback() && !slices.ContainsFunc(p.addrs(), func(l localAddr) bool { return l.addr == to }) {
		return out, nil
	}
	// Another program of this machine: any address of ours will do, and the loopback network has many.
	if to.Is4() {
		for i := range byte(loopbackTries) {
			out = append(out, netip.AddrFrom4([4]byte{127, 0, 0, 2 + i}))
		}
		return out, nil
	}
	for _, l := range p.addrs() {
		if l.addr.Is6() && l.addr != src {
			out = append(out, l.addr)
		}
	}
	return out, nil
}

// route finds the socket to reach an address by, and the path MTU.
func (p *Provider) route(from, to netip.Addr) (*socket, int, error) {
	const op = "rdma_resolve_addr"
	var list []netip.Addr
	var err error
	if from.IsValid() && !from.IsUnspecified() {
		if !p.allowed(from) {
			return nil, 0, &rdma.OpError{Op: op, Errno: syscall.EADDRNOTAVAIL, Hint: from.String() + " is not an address that softroce may use here"}
		}
		list = []netip.Addr{from}
	} else if list, err = p.candidates(to); len(list) == 0 {
		return nil, 0, opError(op, err, "no way to "+to.String())
	}
	var last error
	for _, a := range list {
		_, n, err := probe(a, to)
		if err != nil {
			last = opError(op, err, "no way from "+a.String()+" to "+to.String())
			continue
		}
		s, err := p.dev.socketAt(a)
		if err != nil {
			last = err
			continue
		}
		return s, p.pathMTU(n), nil
	}
	return nil, 0, last
}

func opError(op string, err error, hint string) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EHOSTUNREACH
	}
	return &rdma.OpError{Op: op, Errno: errno, Hint: hint}
}
