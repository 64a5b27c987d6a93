//go:build linux

package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"
	"github.com/vishvananda/netlink"

	"iserd/rdma"
)

// This is the only file that imports rdmamap and netlink. Both answer "nothing" when they mean "could not look", so here
// what is absent is told from what is empty.

const classDir = rdmamap.RdmaClassDir

// deviceFacts is what verbs say of a device; [describe] adds what sysfs and netlink say.
type deviceFacts struct {
	name, guid, firmware string
	vendorID, partID     uint32
	transport            rdma.Transport
	ports                int
	port                 []portFacts
}

type portFacts struct {
	number int
	state  string
	link   rdma.LinkLayer
	mtu    int
	speed  string
	gids   []gidFact
}

type gidFact struct {
	raw     [16]byte
	ifIndex int // 0 when unknown
}

// describe names a device for people. Without sysfs it gives what verbs and the network interfaces say.
func describe(f deviceFacts) rdma.DeviceInfo {
	info := rdma.DeviceInfo{
		Name: f.name, GUID: f.guid, VendorID: f.vendorID, PartID: f.partID, Firmware: f.firmware, Transport: f.transport, NUMANode: -1,
	}
	dir := filepath.Join(classDir, f.name)
	if n, err := strconv.Atoi(sysfs(dir, "device/numa_node")); err == nil {
		info.NUMANode = n
	}
	for _, pf := range f.port {
		info.Ports = append(info.Ports, describePort(dir, f.name, len(f.port), pf))
	}
	info.Driver = driverWord(dir, &info)
	return info
}

func describePort(dir, device string, ports int, f portFacts) rdma.PortInfo {
	p := rdma.PortInfo{Number: f.number, State: f.state, LinkLayer: f.link, MTU: f.mtu, Speed: f.speed}
	pdir := filepath.Join(dir, rdmamap.RdmaPortsdir, strconv.Itoa(f.number))
	if rate := sysfs(pdir, "rate"); rate != "" {
		p.Speed = rate
	}
	var devs []string
	for _, g := range f.gids {
		if g.raw == ([16]byte{}) {
			continue
		}
		p.GIDs = append(p.GIDs, gidString(g.raw))
		if ifc, err := net.InterfaceByIndex(g.ifIndex); err == nil {
			devs = append(devs, ifc.Name)
		}
	}
	names, err := portNetdevs(pdir)
	devs = append(devs, names...)
	if len(devs) == 0 && err == nil && ports == 1 {
		// IPoIB has no GID of its own: rdmamap finds it by its hardware address.
		devs, _ = netdevsOf(device)
	}
	slices.Sort(devs)
	p.NetDevs = slices.Compact(devs)
	for _, dev := range p.NetDevs {
		addrs, err := netdevAddrs(dev)
		if err == nil {
			p.Addrs = append(p.Addrs, addrs...)
		}
	}
	return p
}

// driverWord says RoCE, InfiniBand, iWARP, or soft-RoCE.
func driverWord(dir string, info *rdma.DeviceInfo) string {
	soft := isSoft(dir, info)
	switch {
	case info.Transport == rdma.TransportIWARP && soft:
		return "soft-iWARP"
	case info.Transport == rdma.TransportIWARP:
		return "iWARP"
	case soft:
		return "soft-RoCE"
	}
	for _, p := range info.Ports {
		switch p.LinkLayer {
		case rdma.LinkEthernet:
			return "RoCE"
		case rdma.LinkInfiniBand:
			return "InfiniBand"
		}
	}
	return "unknown"
}

// Vendor numbers that rxe and siw report.
const (
	vendorRXE = 0xffffff
	vendorSIW = 0x626d74
)

// isSoft tells rxe and siw by their vendor number. Their device link, where there is one, is that of the network card under
// them, so it tells nothing.
func isSoft(dir string, info *rdma.DeviceInfo) bool {
	switch info.VendorID {
	case vendorRXE, vendorSIW:
		return true
	case 0:
		// Old rxe says 0, and has a file naming the interface it runs on.
		_, err := os.Stat(filepath.Join(dir, "parent"))
		return err == nil
	}
	return false
}

// portNetdevs lists the interfaces that the GIDs of a port belong to.
func portNetdevs(portDir string) ([]string, error) {
	dir := filepath.Join(portDir, rdmamap.RdmaGidAttrDir, rdmamap.RdmaGidAttrNdevDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name := sysfs(dir, e.Name()); name != "" { // unused entries give EINVAL
			names = append(names, name)
		}
	}
	return names, nil
}

// netdevsOf asks rdmamap, which goes from interface to device.
func netdevsOf(device string) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		a := l.Attrs()
		if a.EncapType == "infiniband" && len(a.HardwareAddr) < 20 {
			continue // rdmamap would read beyond its end
		}
		if dev, err := rdmamap.GetRdmaDeviceForNetdevice(a.Name); err == nil && dev == device {
			names = append(names, a.Name)
		}
	}
	return names, nil
}

// RDMADeviceOf is the RDMA device that a network interface belongs to, by name: what to tell someone whose portal address
// has none. [rdma.ErrNoDevice] when there is none.
func RDMADeviceOf(netdev string) (string, error) {
	if _, err := os.Stat(classDir); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: the kernel has no RDMA support loaded", rdma.ErrNoDevice)
	}
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return "", fmt.Errorf("interface %s: %w", netdev, err)
	}
	if a := link.Attrs(); a.EncapType == "infiniband" && len(a.HardwareAddr) < 20 {
		return "", fmt.Errorf("%w: interface %s has no InfiniBand hardware address", rdma.ErrNoDevice, netdev)
	}
	dev, err := rdmamap.GetRdmaDeviceForNetdevice(netdev)
	if err != nil || dev == "" {
		return "", fmt.Errorf("%w: interface %s is on no RDMA device", rdma.ErrNoDevice, netdev)
	}
	return dev, nil
}

func netdevAddrs(netdev string) ([]netip.Addr, error) {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", netdev, err)
	}
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", netdev, err)
	}
	var out []netip.Addr
	for _, a := range list {
		if a.IPNet == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ip = ip.Unmap()
			if ip.IsLinkLocalUnicast() && ip.Is6() {
				ip = ip.WithZone(netdev)
			}
			out = append(out, ip)
		}
	}
	return out, nil
}

// sysfs reads one value; "" when there is none.
func sysfs(dir, file string) string {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// gidString writes a GID as sysfs does.
func gidString(raw [16]byte) string {
	var b strings.Builder
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", raw[i], raw[i+1])
	}
	return b.String()
}

// guidString writes a GUID in host representation of its big-endian bytes.
func guidString(raw [8]byte) string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", raw[0], raw[1], raw[2], raw[3], raw[4], raw[5], raw[6], raw[7])
}

// speed puts the codes of ibv_port_attr in words; sysfs, where there is one, says the same.
func speed(width, code int) string {
	lanes := map[int]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	gbit := map[int]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100, 256: 200}[code]
	if lanes == 0 || gbit == 0 {
		return ""
	}
	return fmt.Sprintf("%g Gb/sec (%dX)", float64(lanes)*gbit, lanes)
}
