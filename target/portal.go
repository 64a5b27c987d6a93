package target

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// isDefault says that the list is what [DefaultPortals] gives, written down by iserd config for example.
func isDefault(portals []PortalConfig) bool {
	def := DefaultPortals()
	if len(portals) != len(def) {
		return false
	}
	for i, p := range portals {
		if p.Address != def[i].Address || len(p.Transports) > 0 {
			return false
		}
	}
	return true
}

// portalError names the portal, what failed there, and the remedy where the errno tells it.
func portalError(ap netip.AddrPort, transport string, err error) error {
	remedy := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		show := fmt.Sprintf("ss -ltnp 'sport = :%d'", ap.Port())
		if transport != "TCP" {
			show = "rdma resource show cm_id"
		}
		remedy = "another process listens there (" + show + " shows it): stop it, or take another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		remedy = "this host has no such address (ip addr shows those that it has)"
	case errors.Is(err, syscall.EACCES):
		remedy = "ports below 1024 need root or CAP_NET_BIND_SERVICE"
	case errors.Is(err, syscall.EINVAL) && ap.Addr().IsLinkLocalUnicast() && ap.Addr().Zone() == "":
		remedy = fmt.Sprintf("a link-local address needs its interface, as in [%s%%eth0]:%d", ap.Addr(), ap.Port())
	}
	if remedy == "" {
		return fmt.Errorf("portal %s: %s: %w", ap, transport, err)
	}
	return fmt.Errorf("portal %s: %s: %w: %s", ap, transport, err, remedy)
}

// plain is the text of an error without the names of our packages in front, for people who do not read Go.
func plain(err error) string {
	s := err.Error()
	for {
		t := s
		for _, p := range []string{"iser: ", "verbs: ", "rdma: "} {
			t = strings.TrimPrefix(t, p)
		}
		if t == s {
			return s
		}
		s = t
	}
}
