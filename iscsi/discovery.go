package iscsi

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"iserd/iscsi/pdu"
)

// sendTargets appends the answer to SendTargets. RFC 7143: "All" and a name are for discovery sessions; a normal session
// learns of its own target only, by an empty value or the name.
func (c *Connection) sendTargets(out []byte, value string) []byte {
	if own := c.session.target; own != nil {
		switch value {
		case "", own.cfg.Name:
			return c.appendTarget(out, own)
		case "all":
			return pdu.AppendKey(out, "SendTargets", "Reject")
		}
		return out
	}
	switch value {
	case "":
		return pdu.AppendKey(out, "SendTargets", "Reject")
	case "all":
		for _, t := range c.node.Targets() {
			out = c.appendTarget(out, t)
		}
		return out
	}
	if t := c.node.Target(value); t != nil {
		out = c.appendTarget(out, t)
	}
	return out
}

// appendTarget appends a target and where this initiator reaches it, if the rule that decides about its login lets it
// (known-faults B29). There is always an address (B28).
func (c *Connection) appendTarget(out []byte, t *Target) []byte {
	if t.authorize(c.initiator()) != nil {
		return out
	}
	addrs := c.portalAddresses(t.cfg.PortalGroupTag)
	if len(addrs) == 0 {
		return out
	}
	out = pdu.AppendKey(out, "TargetName", t.cfg.Name)
	for _, a := range addrs {
		out = pdu.AppendKey(out, "TargetAddress", formatAddress(a, t.cfg.PortalGroupTag))
	}
	return out
}

// portalAddresses are the addresses of a portal group that the initiator can reach, the one that it came in on first.
func (c *Connection) portalAddresses(tag uint16) []netip.AddrPort {
	n := c.node
	n.mu.Lock()
	portals := n.portals
	n.mu.Unlock()
	if len(portals) == 0 {
		return []netip.AddrPort{unmap(c.info.Local)}
	}
	local := unmap(c.info.Local)
	var list []netip.AddrPort
	for _, p := range portals {
		// Over iSER only where iSER is served; discovery over TCP serves initiators of both kinds.
		if p.Tag != tag || c.isISER() && !p.ISER || !p.TCP && !p.ISER {
			continue
		}
		a := unmap(p.Addr)
		if a.Addr().IsUnspecified() {
			if !wildcardHolds(a.Addr(), local.Addr()) {
				continue
			}
			a = netip.AddrPortFrom(local.Addr(), a.Port())
		}
		if !c.reachable(a.Addr()) || slices.Contains(list, a) {
			continue
		}
		list = append(list, a)
	}
	if i := slices.Index(list, local); i > 0 {
		copy(list[1:i+1], list[:i])
		list[0] = local
	}
	return list
}

// wildcardHolds says that a wildcard listener takes connections to addr: [::] takes both families.
func wildcardHolds(wildcard, addr netip.Addr) bool { return wildcard.Is6() || addr.Is4() }

// reachable leaves out what a peer elsewhere cannot use: loopback, and link-local addresses of other links
// (known-faults B27, B32).
func (c *Connection) reachable(a netip.Addr) bool {
	remote := c.info.Remote.Addr().Unmap()
	switch {
	case a.IsLoopback():
		return remote.IsLoopback()
	case a.IsLinkLocalUnicast():
		return remote.IsLinkLocalUnicast() && (a.Zone() == "" || remote.Zone() == "" || a.Zone() == remote.Zone())
	}
	return true
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// formatAddress writes address:port,tag; IPv6 in brackets and without a zone, which means nothing to the peer.
func formatAddress(a netip.AddrPort, tag uint16) string {
	addr := a.Addr().WithZone("")
	if addr.Is6() {
		return fmt.Sprintf("[%s]:%d,%d", addr, a.Port(), tag)
	}
	return addr.String() + ":" + strconv.Itoa(int(a.Port())) + "," + strconv.Itoa(int(tag))
}
