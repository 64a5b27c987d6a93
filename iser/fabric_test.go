package iser

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"iserd/iscsi/pdu"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

// fabric is what a test runs on.
type fabric struct {
	target, peer rdma.Provider // the same network, seen from either side
	addr         netip.Addr
	mem          *rdmatest.Fabric // nil when it is real
}

// newFabric makes an in-memory fabric, or takes the machine's verbs where LAB_VERBS names some.
func newFabric(t testing.TB) *fabric {
	if f := labFabric(t); f != nil {
		return f
	}
	return memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
}

// memFabric makes an in-memory fabric whose target has a device with the given limits. In the end nothing may be left
// open on it.
func memFabric(t testing.TB, cfg rdmatest.Config, attr func(*rdma.DeviceAttr)) *fabric {
	if attr == nil {
		attr = deepReads
	}
	f := rdmatest.New(cfg)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	x := &fabric{
		target: f.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{a}, Attr: attr}),
		peer:   f.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{b}, Attr: deepReads}),
		addr:   a, mem: f,
	}
	t.Cleanup(func() {
		_ = x.target.Close()
		_ = x.peer.Close()
		if l := f.Leaks(); len(l) > 0 {
			t.Errorf("left open: %v", l)
		}
	})
	return x
}

// stubServer starts a server with stub engines.
func stubServer(t testing.TB, f *fabric, n *stubNode, cfg Config) (*Server, netip.AddrPort) {
	t.Helper()
	if cfg.Shards == 0 {
		cfg.Shards = 1
	}
	if cfg.PoolBytes == 0 {
		cfg.PoolBytes = 16 << 20
	}
	s, err := newServer(f.target, n.make, cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(netip.AddrPortFrom(f.addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, f := range n.faults {
			t.Errorf("promise broken: %s", f)
		}
	})
	return s, l.Addr()
}

// logIn does what the stub takes for a login.
func (i *initiator) logIn() error {
	var b pdu.BHS
	b.SetOpcode(pdu.OpLoginRequest)
	b.SetFinal(true)
	if err := i.sendPDU(Header{}, &b, nil); err != nil {
		return err
	}
	r, err := i.next(5 * time.Second)
	if err != nil {
		return err
	}
	return i.done(r)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// atRest checks that every connection has given back what it took.
func atRest(t testing.TB, s *Server, before ShardStats) {
	t.Helper()
	eventually(t, "resources back at their start", func() bool {
		st := s.Stats()
		now := st.Total()
		s.idsMu.Lock()
		ids := len(s.ids)
		s.idsMu.Unlock()
		return now.Connections == 0 && now.QPs == 0 && now.BuffersInUse == before.BuffersInUse && now.PoolFree == before.PoolFree &&
			now.CQReserved == 0 && now.RecvPosted == 0 && now.SendOutstanding == 0 && ids == 0
	})
}

// misuse fails the test for wrong use of the fabric. Posting after an error is none: the sentinel of the send queue is
// posted so, and a connection may break between two looks at it.
func misuse(t testing.TB, except ...rdmatest.Misuse) func(rdmatest.Misuse, string) {
	return rdmatest.FailOnMisuse(t, append(except, rdmatest.MisuseAfterError)...)
}

// deepReads gives a device the READ depth of soft-RoCE.
func deepReads(a *rdma.DeviceAttr) { a.MaxQPRDAtom, a.MaxQPInitRDAtom = 128, 128 }
