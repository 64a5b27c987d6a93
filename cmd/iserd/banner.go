package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"text/tabwriter"

	"go.uber.org/zap"

	"iserd/target"
)

// announce logs what the operator should know before the first initiator comes.
func announce(log *zap.Logger, sys *target.System, cfg target.Config) {
	log.Info(sys.RDMA())
	for _, p := range sys.Portals() {
		log.Info("listening", zap.Stringer("portal", p.Addr), zap.Bool("tcp", p.TCP), zap.Bool("iser", p.ISER))
	}
	if open := beyondLoopback(sys.Portals()); open {
		log.Warn("every initiator that reaches a portal may log in and write: targets have no access control yet; listen on a loopback or storage-network address to limit who that is")
	}
	if n := sys.Derived(); n > 0 {
		log.Info("serial and NAA of LUNs are derived from this host; to keep them on another host, write them into a configuration file (iserd config prints one)", zap.Int("luns", n))
	}
}

func beyondLoopback(portals []target.PortalStatus) bool {
	for _, p := range portals {
		if !p.Addr.Addr().IsLoopback() {
			return true
		}
	}
	return false
}

// printBanner prints what is served and the initiator commands that use it.
func printBanner(w io.Writer, sys *target.System) {
	units := sys.Units()
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tLUN\tSTORE\tSIZE\tBLOCK\tMODE\tSERIAL\tNAA")
	for _, u := range units {
		mode := "rw"
		if u.ReadOnly {
			mode = "ro"
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\n", u.Target, u.LUN, u.Store, target.FormatSize(u.Size), u.BlockSize, mode, u.Serial, u.NAA)
	}
	fmt.Fprintln(tw)
	fmt.Fprintln(tw, "PORTAL\tTCP\tISER")
	for _, p := range sys.Portals() {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", p.Addr, yes(p.TCP), yes(p.ISER))
	}
	_ = tw.Flush()
	for _, d := range sys.Devices() {
		for _, p := range d.Ports {
			fmt.Fprintf(w, "RDMA device %s (%s), port %d %s, %s\n", d.Name, d.Driver, p.Number, p.State, dash(p.NetDevs))
		}
	}
	if why := sys.NoRDMA(); why != "" {
		fmt.Fprintln(w, why)
	}
	printCommands(w, sys)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// printCommands prints open-iscsi and libiscsi commands for the first target at an address that a client can use.
func printCommands(w io.Writer, sys *target.System) {
	units := sys.Units()
	if len(units) == 0 {
		return
	}
	addr, iser := clientPortal(sys)
	if !addr.IsValid() {
		return
	}
	t, lun := units[0].Target, units[0].LUN
	fmt.Fprintf(w, "\nOn an initiator (open-iscsi):\n")
	fmt.Fprintf(w, "  iscsiadm -m discovery -t sendtargets -p %s\n", addr)
	if iser {
		fmt.Fprintf(w, "  iscsiadm -m node -T %s -p %s --op update -n iface.transport_name -v iser    # RDMA; leave out for TCP\n", t, addr)
	}
	fmt.Fprintf(w, "  iscsiadm -m node -T %s -p %s --login\n", t, addr)
	fmt.Fprintf(w, "With libiscsi or QEMU:\n  iscsi-inq iscsi://%s/%s/%d\n  qemu-img info iscsi://%s/%s/%d\n", addr, t, lun, addr, t, lun)
	if iser {
		fmt.Fprintf(w, "  qemu-img info iser://%s/%s/%d\n", addr, t, lun)
	}
}

// clientPortal picks the portal to show: one with iSER before one without, and a wildcard as an address of this host.
func clientPortal(sys *target.System) (addr netip.AddrPort, iser bool) {
	for _, p := range sys.Portals() {
		a := p.Addr
		if a.Addr().IsUnspecified() {
			a = netip.AddrPortFrom(hostAddr(a.Addr().Is4()), a.Port())
		}
		if !a.Addr().IsValid() {
			continue
		}
		if !addr.IsValid() || p.ISER && !iser {
			addr, iser = a, p.ISER
		}
	}
	return addr, iser
}

// hostAddr is the first global address of the family, or loopback.
func hostAddr(v4 bool) netip.Addr {
	list, err := net.InterfaceAddrs()
	if err == nil {
		for _, a := range list {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if ip = ip.Unmap(); ok && ip.Is4() == v4 && ip.IsGlobalUnicast() {
				return ip
			}
		}
	}
	if v4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
