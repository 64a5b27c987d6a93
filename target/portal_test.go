package target

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An error of a portal names the portal and, where it can be known, the remedy.
func TestPortalErrors(t *testing.T) {
	for _, c := range []struct {
		portal, transport string
		err               error
		want              string
	}{
		{"127.0.0.1:3260", "TCP", syscall.EADDRINUSE, "ss -ltnp 'sport = :3260'"},
		{"127.0.0.1:3260", "iSER", syscall.EADDRINUSE, "rdma resource show cm_id"},
		{"192.0.2.1:3260", "TCP", os.NewSyscallError("bind", syscall.EADDRNOTAVAIL), "ip addr"},
		{"127.0.0.1:860", "TCP", syscall.EACCES, "CAP_NET_BIND_SERVICE"},
		{"[fe80::1]:3260", "TCP", syscall.EINVAL, "[fe80::1%eth0]:3260"},
		{"127.0.0.1:3260", "TCP", errors.New("something else"), "something else"},
	} {
		err := portalError(netip.MustParseAddrPort(c.portal), c.transport, c.err)
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.portal) || !errors.Is(err, c.err) {
			t.Errorf("%s %v: %q; want the portal, the cause and %q", c.portal, c.err, err, c.want)
		}
	}
}

// What iserd config prints without --listen must be served on a host without IPv6 too.
func TestDefaultPortalsWrittenDownAreStillOptional(t *testing.T) {
	cfg := Config{Targets: []TargetConfig{{Name: "iqn.2026-12.lab.iserd:a", LUNs: []LUNConfig{{Store: "ram:1M"}}}}}
	must(t, cfg.Validate())
	text, err := cfg.YAML()
	must(t, err)
	back, err := ParseConfig(text)
	must(t, err)
	must(t, back.Validate())
	for _, p := range back.Portals {
		if !p.optional {
			t.Errorf("%s is not optional", p.Address)
		}
	}
	back.Portals = []PortalConfig{{Address: "[::]:3260"}, {Address: "0.0.0.0:3260"}}
	must(t, back.Validate())
	if back.Portals[0].optional {
		t.Error("portals in an order of the user's own count as the default")
	}
}

// An optional portal may fail, but not because another target is there: initiators would find that one.
func TestTakenPortIsAnErrorForOptionalPortalsToo(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	cfg := Config{RDMA: RDMAOff, Portals: []PortalConfig{{Address: l.Addr().String()}, {Address: "127.0.0.1:0"}},
		Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "null:1M"}}}}}
	must(t, cfg.Validate())
	for _, c := range []struct {
		address string
		refused bool
	}{{l.Addr().String(), true}, {"192.0.2.99:3260", false}} {
		cfg.Portals[0] = PortalConfig{Address: c.address, optional: true}
		s, err := New(cfg, Options{HostID: "x"})
		must(t, err)
		if err := s.Listen(); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.address, err)
		}
		must(t, s.Shutdown(context.Background()))
	}
}

// A written configuration means the same file from every working directory, and one file has one identity.
func TestPathsAreAbsolute(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	dir, err := os.Getwd()
	must(t, err)
	naa := map[string]bool{}
	for _, path := range []string{"a.img", "./a.img", "b/../a.img", filepath.Join(dir, "a.img"), dir + "//a.img"} {
		cfg := Config{Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "file:" + path + ",size=1M"}}}}}
		must(t, cfg.Validate())
		eff, _ := cfg.Effective("x")
		lun := eff.Targets[0].LUNs[0]
		if want := "file:" + dir + "/a.img,size=1048576"; lun.Store != want {
			t.Errorf("%s: %s; want %s", path, lun.Store, want)
		}
		naa[lun.NAA] = true
	}
	if len(naa) != 1 {
		t.Errorf("one file has the identities %v", naa)
	}
	// Cleaning must not make an option of a part of the path.
	for _, path := range []string{"x,ro/", "/x,ro/", "x,size=1M/y/..", "with space, and comma"} {
		spec, err := ParseStore("file:" + path)
		if err != nil {
			continue // an option already as it is written
		}
		abs, err := absolute(spec.Path)
		must(t, err)
		if back, err := ParseStore("file:" + abs); err != nil || back.Path != abs || back.ReadOnly || !filepath.IsAbs(abs) {
			t.Errorf("%s: %s reads back as %+v, %v", path, abs, back, err)
		}
	}
}
