package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Target says where a LUN is. Name may be empty: then the portal is asked, and its only target taken.
type Target struct {
	// ISER is iSER over RDMA; otherwise iSCSI over TCP.
	ISER bool
	// Host is a name or an address without brackets.
	Host string
	Port uint16
	Name string
	LUN  int
}

// DefaultPort is that of the Internet registry for iSCSI and iSER.
const DefaultPort = 3260

// maxLUN is the highest that peripheral device addressing can name (SAM-5 4.7.7.2).
const maxLUN = 255

const urlForm = "want iser://HOST[:PORT]/IQN/LUN, iscsi:// for TCP, or iser://HOST to take its only target"

// ParseURL reads a target's URL as libiscsi's tools have it. An IPv6 address stands in brackets; iscsi://…?iser is iSER too.
func ParseURL(s string) (Target, error) {
	bad := func(format string, args ...any) (Target, error) {
		return Target{}, fmt.Errorf("URL %q: %s; %s", s, fmt.Sprintf(format, args...), urlForm)
	}
	u, err := url.Parse(s)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return bad("%v", err)
	}
	t := Target{Port: DefaultPort}
	switch u.Scheme {
	case "iser":
		t.ISER = true
	case "iscsi":
	case "":
		return bad("no scheme")
	default:
		return bad("scheme %q", u.Scheme)
	}
	switch {
	case u.User != nil:
		return bad("it has a user name, and CHAP is not supported")
	case u.Fragment != "":
		return bad("%q after #", u.Fragment)
	case u.RawQuery == "iser":
		t.ISER = true
	case u.RawQuery != "":
		return bad("unknown option %q", u.RawQuery)
	}
	if t.Host = u.Hostname(); t.Host == "" {
		return bad("no host")
	}
	if strings.Count(u.Host, ":") > 1 && !strings.HasPrefix(u.Host, "[") {
		return bad("an IPv6 address stands in brackets")
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad("port %q", p)
		}
		t.Port = uint16(n)
	}
	path := strings.Trim(u.Path, "/")
	if path == "" {
		return t, nil
	}
	name, lun, both := strings.Cut(path, "/")
	if !strings.HasPrefix(name, "iqn.") && !strings.HasPrefix(name, "eui.") && !strings.HasPrefix(name, "naa.") || len(name) > 223 {
		return bad("%q is not an iSCSI name", name)
	}
	t.Name = name
	if both {
		n, err := strconv.Atoi(lun)
		if err != nil || n < 0 || n > maxLUN {
			return bad("LUN %q, want 0 to %d", lun, maxLUN)
		}
		t.LUN = n
	}
	return t, nil
}

// String is the URL.
func (t Target) String() string {
	s := "iscsi://"
	if t.ISER {
		s = "iser://"
	}
	s += net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port)))
	if t.Name != "" {
		s += "/" + t.Name + "/" + strconv.Itoa(t.LUN)
	}
	return s
}

// Address resolves the host. Of several addresses the first is taken, IPv4 before IPv6.
func (t Target) Address(ctx context.Context) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(t.Host); err == nil {
		return netip.AddrPortFrom(a.Unmap(), t.Port), nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.Host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("host %s: %w", t.Host, err)
	}
	if len(list) == 0 {
		return netip.AddrPort{}, fmt.Errorf("host %s has no address", t.Host)
	}
	best := list[0].Unmap()
	for _, a := range list {
		if a = a.Unmap(); a.Is4() && !best.Is4() {
			best = a
		}
	}
	return netip.AddrPortFrom(best, t.Port), nil
}
