package rdmaconform_test

import (
	"net/netip"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/rdmaconform"
	"iserd/rdma/rdmatest"
)

func env(f *rdmatest.Fabric, tgt, ini rdma.Provider) rdmaconform.Env {
	return rdmaconform.Env{Target: tgt, Initiator: ini, Addr4: netip.MustParseAddr("192.0.2.1"), Addr6: netip.MustParseAddr("2001:db8::1"),
		PadsPrivateData: true, Invalidates: true, ExactDepths: true, CanResize: true, Quiet: 3 * time.Millisecond, Leaks: f.Leaks}
}

func TestFabric(t *testing.T) {
	f, tgt, ini := rdmatest.Pair(rdmatest.Config{})
	rdmaconform.Run(t, env(f, tgt, ini))
}

// TestOneProvider: both ends on one machine.
func TestOneProvider(t *testing.T) {
	f, tgt, _ := rdmatest.Pair(rdmatest.Config{})
	rdmaconform.Run(t, env(f, tgt, tgt))
}

func TestIWARP(t *testing.T) {
	f, tgt, ini := rdmatest.Pair(rdmatest.Config{IWARP: true})
	e := env(f, tgt, ini)
	e.PadsPrivateData, e.PeerDisconnectFlushes, e.CanResize = false, true, false
	rdmaconform.Run(t, e)
}

// TestSlow: with completions and READs that take their time.
func TestSlow(t *testing.T) {
	f, tgt, ini := rdmatest.Pair(rdmatest.Config{NoFlushAfterError: true})
	n := 0
	f.SetFaults(rdmatest.Faults{
		Delay: func(rdmatest.WorkInfo) time.Duration {
			n++
			return time.Duration(n%3) * 100 * time.Microsecond
		},
		ReadTime: func(rdmatest.WorkInfo) time.Duration { return 200 * time.Microsecond },
	})
	e := env(f, tgt, ini)
	e.NoFlushAfterError, e.Rounds = true, 200
	rdmaconform.Run(t, e)
}

// TestNoInline: a device without inline data.
func TestNoInline(t *testing.T) {
	f := rdmatest.New(rdmatest.Config{})
	p := f.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		Attr: func(a *rdma.DeviceAttr) { a.MaxInline, a.MaxSGERead = 0, 1 }})
	e := env(f, p, p)
	e.NoInline = true
	rdmaconform.Run(t, e)
}
