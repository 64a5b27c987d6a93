package softroce_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/rdmaconform"
	"iserd/rdma/softroce"
)

// loopback is an address that no other test is likely to use at the same time.
func loopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
}

func newProvider(t testing.TB, opt softroce.Options) *softroce.Provider {
	if opt.Warn == nil {
		opt.Warn = func(m string) { t.Log(m) }
	}
	p := softroce.New(opt)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func conformEnv(tgt, ini *softroce.Provider, addr netip.Addr) rdmaconform.Env {
	leaks := func() []string { return append(softroce.Leaks(tgt), softroce.Leaks(ini)...) }
	return rdmaconform.Env{Target: tgt, Initiator: ini, Addr4: addr, PadsPrivateData: true, Invalidates: true, ExactDepths: true,
		CanResize: true, Leaks: leaks}
}

// TestConform: two providers, as two programs of one host.
func TestConform(t *testing.T) {
	a, b := loopback(), loopback()
	tgt := newProvider(t, softroce.Options{Addrs: []netip.Addr{a}, Timewait: 300 * time.Millisecond})
	ini := newProvider(t, softroce.Options{Addrs: []netip.Addr{b}})
	rdmaconform.Run(t, conformEnv(tgt, ini, a))
	t.Log(softroce.Counters(tgt))
	t.Log(softroce.Counters(ini))
}

// TestConformOneProvider: both ends in one program, on one socket; over IPv6 too where there is any.
func TestConformOneProvider(t *testing.T) {
	a := loopback()
	v6 := netip.IPv6Loopback()
	p := newProvider(t, softroce.Options{Addrs: []netip.Addr{a, v6}, Timewait: 300 * time.Millisecond})
	env := conformEnv(p, p, a)
	if v6Free(t, p) {
		env.Addr6 = v6
	}
	rdmaconform.Run(t, env)
	t.Log(softroce.Counters(p))
}

// v6Free tells whether the one address of the IPv6 loopback network can be had.
func v6Free(t *testing.T, p *softroce.Provider) bool {
	ch, err := p.NewEventChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	l, err := ch.Listen(netip.AddrPortFrom(netip.IPv6Loopback(), 0), 1)
	if err != nil {
		t.Logf("not over IPv6: %v", err)
		return false
	}
	return l.Close() == nil
}

// TestConformSmallMTU: messages of many packets.
func TestConformSmallMTU(t *testing.T) {
	a, b := loopback(), loopback()
	tgt := newProvider(t, softroce.Options{Addrs: []netip.Addr{a}, MTU: 256, Timewait: 300 * time.Millisecond})
	ini := newProvider(t, softroce.Options{Addrs: []netip.Addr{b}, MTU: 256})
	env := conformEnv(tgt, ini, a)
	for _, name := range []string{"Send", "SendPieces", "RDMAWrite", "RDMARead", "RDMAReadPieces", "LongMessages", "WriteThenSend", "Fence", "ReadDepth", "BothWays"} {
		t.Run(name, func(t *testing.T) { rdmaconform.RunOne(t, name, env) })
	}
}

var _ rdma.Provider = (*softroce.Provider)(nil)
