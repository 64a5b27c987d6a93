package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"iserd/internal/iserclient"
	"iserd/internal/tcpclient"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
	"iserd/rdma/softroce"
)

// ownAddr is an address of the loopback network that only this process uses.
func ownAddr(n byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 70 + n, byte(os.Getpid() >> 8), byte(os.Getpid()) | 1})
}

// takePort binds UDP port 4791 of an address, as another program with softroce does.
func takePort(t *testing.T, a netip.Addr) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, softroce.Port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return // rdma_rxe has it on every address, which will do
	}
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
}

// softAt is a softroce that may use some addresses.
func softAt(addrs ...netip.Addr) func(func(string)) (rdma.Provider, error) {
	return func(warn func(string)) (rdma.Provider, error) {
		return softroce.New(softroce.Options{Addrs: addrs, Warn: warn}), nil
	}
}

func noDevice() (rdma.Provider, error) { return nil, fmt.Errorf("verbs: %w: none", rdma.ErrNoDevice) }

// Which provider serves, and what is said about it. A provider that is not to be touched is not even opened.
func TestChoiceOfProvider(t *testing.T) {
	device := func() (rdma.Provider, error) {
		_, tgt, _ := rdmatest.Pair(rdmatest.Config{})
		return tgt, nil
	}
	unbuilt := func() (rdma.Provider, error) { return nil, fmt.Errorf("%w: built without", rdma.ErrUnsupported) }
	faulty := func() (rdma.Provider, error) {
		return nil, &rdma.OpError{Op: "rdma_get_devices", Errno: syscall.EPERM, Hint: "modprobe rdma_ucm"}
	}
	soft := softAt(ownAddr(0))
	noSockets := func(func(string)) (rdma.Provider, error) { return nil, errors.New("no sockets") }
	for name, c := range map[string]struct {
		mode     RDMAMode
		device   func() (rdma.Provider, error)
		soft     func(func(string)) (rdma.Provider, error)
		tcpOnly  bool
		serves   string // the provider, empty for none, "error"
		opened   string
		say, not string
	}{
		"auto, a device":                  {mode: RDMAAuto, device: device, soft: soft, serves: "rdmatest", opened: "device", say: "verbs: RDMA device", not: "softroce"},
		"auto, no device":                 {mode: RDMAAuto, device: noDevice, soft: soft, serves: "softroce", opened: "device soft", say: "softroce (RoCEv2 in user space, slower than a device): no RDMA device", not: "verbs:"},
		"auto, no provider of devices":    {mode: RDMAAuto, soft: soft, serves: "softroce", opened: "soft", say: "no RDMA device"},
		"auto, a build without verbs":     {mode: RDMAAuto, device: unbuilt, soft: soft, serves: "softroce", opened: "device soft", say: "this build cannot use RDMA devices"},
		"auto, a device with a fault":     {mode: RDMAAuto, device: faulty, soft: soft, opened: "device", say: "cannot be used: rdma_get_devices: operation not permitted (modprobe rdma_ucm) (--rdma softroce"},
		"auto, no device, no portal iSER": {mode: RDMAAuto, device: noDevice, soft: soft, tcpOnly: true, opened: "device", say: "no RDMA device"},
		"auto, no device, no sockets":     {mode: RDMAAuto, device: noDevice, soft: noSockets, opened: "device soft", say: "no sockets"},
		"auto, nothing":                   {mode: RDMAAuto, device: noDevice, opened: "device", say: "no RDMA device"},
		"off":                             {mode: RDMAOff, device: device, soft: soft, say: "RDMA is off"},
		"verbs, a device":                 {mode: RDMAVerbs, device: device, soft: soft, serves: "rdmatest", opened: "device", say: "verbs: RDMA device"},
		"verbs, no device":                {mode: RDMAVerbs, device: noDevice, soft: soft, serves: "error", opened: "device", say: "verbs is asked for"},
		"softroce, a device":              {mode: RDMASoftRoCE, device: device, soft: soft, serves: "softroce", opened: "soft", say: "asks for it"},
		"softroce, no sockets":            {mode: RDMASoftRoCE, device: device, soft: noSockets, serves: "error", opened: "soft", say: "no sockets"},
		"softroce, none":                  {mode: RDMASoftRoCE, device: device, serves: "error", say: "softroce is asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			var opened []string
			opt := Options{HostID: "x", Warn: func(m string) { t.Errorf("warned: %s", m) }}
			if c.device != nil {
				opt.Provider = func() (rdma.Provider, error) { opened = append(opened, "device"); return c.device() }
			}
			if c.soft != nil {
				opt.SoftProvider = func(w func(string)) (rdma.Provider, error) { opened = append(opened, "soft"); return c.soft(w) }
			}
			p := PortalConfig{Address: "127.0.0.1:0"}
			if c.tcpOnly {
				p.Transports = []string{"tcp"}
			}
			cfg := Config{RDMA: c.mode, Shards: 1, Portals: []PortalConfig{p}, Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "null:1G"}}}}}
			must(t, cfg.Validate())
			s, err := New(cfg, opt)
			serves, said := "", ""
			if err != nil {
				serves, said = "error", err.Error()
			} else {
				said = s.RDMA()
				if s.provider != nil {
					serves = s.provider.Name()
				}
				if (s.NoRDMA() == "") != (serves != "") || serves == "" && !strings.Contains(said, "TCP only") {
					t.Errorf("served by %q, and NoRDMA is %q", serves, s.NoRDMA())
				}
				must(t, s.Shutdown(context.Background()))
			}
			if serves != c.serves || strings.Join(opened, " ") != c.opened {
				t.Errorf("served by %q after opening %q; want %q after %q", serves, opened, c.serves, c.opened)
			}
			if !strings.Contains(said, c.say) || c.not != "" && strings.Contains(said, c.not) || strings.Contains(said, "\n") {
				t.Errorf("said %q; want one line with %q and without %q", said, c.say, c.not)
			}
		})
	}
}

// Without a device, a listen address that softroce cannot have serves TCP under auto, with one warning, and is an error
// where softroce or iSER alone is asked for.
func TestAddressesSoftRoCECannotHave(t *testing.T) {
	free, taken := ownAddr(1), ownAddr(2)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(free, softroce.Port)))
	if err != nil {
		t.Skipf("no address has UDP port 4791 free: %v; rmmod rdma_rxe to run this", err)
	}
	must(t, c.Close())
	takePort(t, taken)
	at := func(a netip.Addr) string { return netip.AddrPortFrom(a, 0).String() }
	both, iser := []string{"tcp", "iser"}, []string{"iser"}
	for name, c := range map[string]struct {
		mode    RDMAMode
		addrs   []netip.Addr // that softroce may use
		portals []PortalConfig
		iser    []bool // of the portals; nil is an error
		say     string // the warning or error, beside the address
		names   string
	}{
		"free":               {RDMAAuto, []netip.Addr{free}, []PortalConfig{{Address: at(free)}}, []bool{true}, "", ""},
		"taken":              {RDMAAuto, []netip.Addr{taken}, []PortalConfig{{Address: at(taken)}}, []bool{false}, "unload rdma_rxe", taken.String()},
		"taken, both named":  {RDMAAuto, []netip.Addr{taken}, []PortalConfig{{Address: at(taken), Transports: both}}, []bool{false}, "UDP port 4791", taken.String()},
		"taken, iSER alone":  {RDMAAuto, []netip.Addr{taken}, []PortalConfig{{Address: at(taken), Transports: iser}}, nil, "unload rdma_rxe", taken.String()},
		"one of two taken":   {RDMAAuto, []netip.Addr{free, taken}, []PortalConfig{{Address: at(taken)}, {Address: at(free)}}, []bool{false, true}, "unload rdma_rxe", taken.String()},
		"wildcard":           {RDMAAuto, []netip.Addr{free}, []PortalConfig{{Address: "0.0.0.0:0"}}, []bool{true}, "", ""},
		"wildcard, taken":    {RDMAAuto, []netip.Addr{taken}, []PortalConfig{{Address: "0.0.0.0:0"}}, []bool{false}, "every IPv4 address", "0.0.0.0"},
		"wildcard, in part":  {RDMAAuto, []netip.Addr{free, taken}, []PortalConfig{{Address: "0.0.0.0:0"}}, []bool{true}, "address already in use", taken.String()},
		"not to be used":     {RDMAAuto, []netip.Addr{free}, []PortalConfig{{Address: "127.0.0.1:0"}}, []bool{false}, "--rdma off", "127.0.0.1"},
		"asked for":          {RDMASoftRoCE, []netip.Addr{free}, []PortalConfig{{Address: at(free)}}, []bool{true}, "", ""},
		"asked for, taken":   {RDMASoftRoCE, []netip.Addr{taken}, []PortalConfig{{Address: at(taken)}}, nil, "unload rdma_rxe", taken.String()},
		"asked for wildcard": {RDMASoftRoCE, []netip.Addr{taken}, []PortalConfig{{Address: "0.0.0.0:0"}}, nil, "unload rdma_rxe", "0.0.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			cfg := Config{RDMA: c.mode, Shards: 1, Portals: c.portals, Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "ram:1M"}}}}}
			must(t, cfg.Validate())
			s, err := New(cfg, Options{HostID: "x", Provider: noDevice, SoftProvider: softAt(c.addrs...),
				// What it says of small socket buffers depends on the machine and not on the address.
				Warn: func(m string) {
					if !strings.Contains(m, "rmem_max") {
						told = append(told, m)
					}
				}})
			must(t, err)
			defer func() { must(t, s.Shutdown(context.Background())) }()
			if err := s.Listen(); err != nil {
				if c.iser != nil {
					t.Fatal(err)
				}
				told = append(told, err.Error())
			} else if c.iser == nil {
				t.Fatal("no error")
			}
			if want := c.say != ""; want != (len(told) == 1) || want && (!strings.Contains(told[0], c.say) || !strings.Contains(told[0], c.names)) {
				t.Errorf("told %q; want %q with %q, once", told, c.say, c.names)
			}
			any := false
			for i, iser := range c.iser {
				p := s.Portals()[i]
				if !p.TCP || p.ISER != iser {
					t.Errorf("portal %d: %+v; want TCP, and iSER: %v", i, p, iser)
				}
				any = any || iser
				checkLogin(t, p)
			}
			if c.iser != nil && (any != (s.NoRDMA() == "") || any != (len(s.Devices()) == 1)) {
				t.Errorf("iSER is served: %v, and it says %q with %d devices", any, s.NoRDMA(), len(s.Devices()))
			}
			if !any && c.iser != nil && !strings.Contains(s.RDMA(), "no RDMA device: none; softroce can serve it at no portal") {
				t.Errorf("it says %q, which lacks the cause", s.RDMA())
			}
		})
	}
}

// checkLogin logs in by every transport that a portal says it serves.
func checkLogin(t *testing.T, p PortalStatus) {
	t.Helper()
	tcp, err := tcpclient.Open(netip.AddrPortFrom(reachable(p), p.Addr.Port()).String(), tcpclient.Login{Target: testTarget, ISID: [6]byte{0x80, 1}})
	if err != nil {
		t.Errorf("login over TCP: %v", err)
	} else {
		must(t, tcp.Logout())
	}
	if !p.ISER || p.Addr.Addr().IsUnspecified() {
		return
	}
	from := softroce.New(softroce.Options{Addrs: []netip.Addr{ownAddr(3)}})
	defer func() { _ = from.Close() }()
	c, err := iserclient.Open(from, p.Addr, iserclient.Options{}, iserclient.Login{Target: testTarget, ISID: [6]byte{0x80, 2}})
	if err != nil {
		t.Errorf("login over iSER: %v", err)
		return
	}
	must(t, c.Logout())
}

func reachable(p PortalStatus) netip.Addr {
	if p.Addr.Addr().IsUnspecified() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return p.Addr.Addr()
}
