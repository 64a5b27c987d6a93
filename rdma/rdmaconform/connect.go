package rdmaconform

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
)

// exchange sends one message each way.
func exchange(t *testing.T, tgt, ini *side) {
	t.Helper()
	tgt.recv(1, 1, 0, 64)
	ini.recv(2, 1, 0, 64)
	fill(ini.mem(100, 40), 1)
	ini.send(ini.message(3, 100, 40))
	ini.reapOK(1)
	if wc := tgt.reapOK(1)[0]; wc.ByteLen != 40 || wc.ID != 1 || wc.Op != rdma.WCRecv {
		t.Fatalf("%+v", wc)
	}
	check(t, "message", tgt.mem(0, 40), 1)
	tgt.send(tgt.message(4, 0, 40))
	tgt.reapOK(1)
	ini.reapOK(1)
	check(t, "answer", ini.mem(0, 40), 1)
}

func testConnect(t *testing.T, env Env, at netip.Addr) {
	tgt, ini := connect(t, &env, options{addr: at})
	if a := ini.conn.RemoteAddr(); a.Addr() != at || a != tgt.conn.LocalAddr() {
		t.Errorf("the initiator's peer is %s, the target is %s", a, tgt.conn.LocalAddr())
	}
	if a, b := tgt.conn.RemoteAddr(), ini.conn.LocalAddr(); a.Addr() != b.Addr() || !a.IsValid() {
		t.Errorf("the target's peer is %s, the initiator is %s", a, b)
	}
	exchange(t, tgt, ini)
}

func testConnectV4(t *testing.T, env Env) {
	if !env.Addr4.IsValid() {
		t.Skip("no IPv4 here")
	}
	testConnect(t, env, env.Addr4)
}

func testConnectV6(t *testing.T, env Env) {
	if !env.Addr6.IsValid() {
		t.Skip("no IPv6 here")
	}
	testConnect(t, env, env.Addr6)
}

// Wildcards of both families on one port, as a target's portal has them.
func testWildcard(t *testing.T, env Env) {
	if env.NoWildcard {
		t.Skip("no wildcard listeners here")
	}
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l4 := tn.listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if l4.Device() != nil {
		t.Errorf("a wildcard listener has a device")
	}
	port := l4.Addr().Port()
	if port == 0 {
		t.Fatal("port 0 was kept")
	}
	l6 := tn.listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	for _, c := range []struct {
		at netip.Addr
		l  rdma.Listener
	}{{env.Addr4, l4}, {env.Addr6, l6}} {
		if !c.at.IsValid() {
			continue
		}
		ini := newSide(in, in.resolve(netip.AddrPortFrom(c.at, port)), stdQP)
		must(t, ini.conn.Connect(stdParam))
		req := tn.expect(rdma.EventConnectRequest)
		if req.Listener != c.l || req.Conn.Device() == nil || req.Conn.LocalAddr().Addr() != c.at {
			t.Errorf("%s: listener %s, device %v, address %s", c.at, req.Listener.Addr(), req.Conn.Device(), req.Conn.LocalAddr())
		}
		tgt := newSide(tn, req.Conn, stdQP)
		must(t, tgt.conn.Accept(stdParam))
		tn.expect(rdma.EventEstablished)
		in.expect(rdma.EventEstablished)
		exchange(t, tgt, ini)
	}
}

func testListenErrors(t *testing.T, env Env) {
	n := newNode(t, &env, env.Target)
	l := n.listen(netip.AddrPortFrom(env.addr(), 0))
	if a := l.Addr(); a.Addr() != env.addr() || a.Port() == 0 {
		t.Errorf("listens on %s", a)
	}
	if l.Device() == nil {
		t.Error("a listener on an address without a device")
	}
	for what, c := range map[string]struct {
		at   netip.AddrPort
		want []error
	}{
		"in use":      {l.Addr(), []error{syscall.EADDRINUSE}},
		"not ours":    {netip.MustParseAddrPort("192.0.2.77:3260"), []error{syscall.EADDRNOTAVAIL, syscall.ENODEV}},
		"not ours v6": {netip.MustParseAddrPort("[2001:db8::77]:3260"), []error{syscall.EADDRNOTAVAIL, syscall.ENODEV}},
		"no address":  {netip.AddrPort{}, []error{syscall.EINVAL}},
	} {
		x, err := n.ch.Listen(c.at, 1)
		if err == nil {
			_ = x.Close()
		}
		wantErr(t, what, err, c.want...)
		var op *rdma.OpError
		if !errors.As(err, &op) {
			t.Errorf("%s: %T is no OpError", what, err)
		}
	}
	// The address is free again once the listener is closed.
	must(t, l.Close())
	again := n.listen(l.Addr())
	if again.Addr() != l.Addr() {
		t.Errorf("%s", again.Addr())
	}
}

func testResolveErrors(t *testing.T, env Env) {
	n := newNode(t, &env, env.Initiator)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if c, err := n.ch.Resolve(ctx, netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.77:1")); err == nil {
		t.Errorf("an address of nobody: %s", c.RemoteAddr())
		_ = c.Close()
	}
	_, err := n.ch.Resolve(ctx, netip.AddrPort{}, netip.AddrPort{})
	wantErr(t, "no address", err, syscall.EINVAL)
	gone, stop := context.WithCancel(ctx)
	stop()
	_, err = n.ch.Resolve(gone, netip.AddrPort{}, netip.AddrPortFrom(env.addr(), 1))
	wantErr(t, "context at its end", err, context.Canceled)
}

// private is what private data looks like when it arrives.
func (e *Env) private(b []byte, padded int) []byte {
	if !e.PadsPrivateData {
		return b
	}
	out := make([]byte, padded)
	copy(out, b)
	return out
}

func testReject(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	for _, data := range [][]byte{[]byte("no room"), {0x80, 0, 0, 0}, nil} {
		ini := newSide(in, in.resolve(l.Addr()), stdQP)
		must(t, ini.conn.Connect(stdParam))
		req := tn.expect(rdma.EventConnectRequest)
		must(t, req.Conn.Reject(data))
		must(t, req.Conn.Close())
		ev := in.expect(rdma.EventRejected)
		if got := ev.Param.PrivateData; ev.Conn != ini.conn || !bytes.HasPrefix(got, data) || env.PadsPrivateData && len(data) > 0 && len(got) != 148 {
			t.Errorf("%q came as %q", data, got)
		}
		if ev.Status != 28 && env.PadsPrivateData {
			t.Errorf("status %d, want 28: the consumer's own reason", ev.Status)
		}
		ini.close()
	}
	tn.silent()
}

func testNobodyListens(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	must(t, l.Close())
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	if ev := in.expect(rdma.EventRejected); ev.Status != 8 && env.PadsPrivateData {
		t.Errorf("status %d, want 8: invalid service ID", ev.Status)
	}
}

func testPrivateData(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	full := func(n int) []byte {
		b := make([]byte, n)
		fill(b, 3)
		b[n-1] |= 1
		return b
	}
	for _, c := range []struct{ req, rep []byte }{
		{[]byte{0x80, 0, 0, 0}, []byte{0xC0, 0, 0, 0}},
		{full(56), full(196)},
		{full(1), full(55)},
	} {
		ini := newSide(in, in.resolve(l.Addr()), stdQP)
		p := stdParam
		p.PrivateData = c.req
		must(t, ini.conn.Connect(p))
		req := tn.expect(rdma.EventConnectRequest)
		if want := env.private(c.req, 56); !bytes.Equal(req.Param.PrivateData, want) {
			t.Errorf("request: %x came as %x", c.req, req.Param.PrivateData)
		}
		tgt := newSide(tn, req.Conn, stdQP)
		p.PrivateData = c.rep
		must(t, tgt.conn.Accept(p))
		if ev, want := in.expect(rdma.EventEstablished), env.private(c.rep, 196); !bytes.Equal(ev.Param.PrivateData, want) {
			t.Errorf("answer: %x came as %x", c.rep, ev.Param.PrivateData)
		}
		tn.expect(rdma.EventEstablished)
		ini.close()
		tgt.close()
		// What the peers and the clock make of the two ends' closing is not this test's matter.
		for len(tn.events) > 0 {
			<-tn.events
		}
		for len(in.events) > 0 {
			<-in.events
		}
	}
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	p := stdParam
	p.PrivateData = make([]byte, 256)
	wantErr(t, "256 bytes", ini.conn.Connect(p), rdma.ErrTooBig, syscall.EINVAL)
}

// Each side sees the other's numbers from its own point of view.
func testDepths(t *testing.T, env Env) {
	if env.NoDepths {
		t.Skip("the provider does not carry depths")
	}
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	must(t, ini.conn.Connect(rdma.ConnParam{ResponderResources: 3, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 6}))
	req := tn.expect(rdma.EventConnectRequest)
	if p := req.Param; p.ResponderResources != 1 || p.InitiatorDepth != 3 {
		t.Errorf("request of 3 responder resources and depth 1 came as %d and %d", p.ResponderResources, p.InitiatorDepth)
	}
	if env.PadsPrivateData && (req.Param.RNRRetryCount != 6 || req.Param.RetryCount != 7) {
		t.Errorf("retry counts %d and %d", req.Param.RetryCount, req.Param.RNRRetryCount)
	}
	tgt := newSide(tn, req.Conn, stdQP)
	must(t, tgt.conn.Accept(rdma.ConnParam{ResponderResources: 1, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 7}))
	if p := in.expect(rdma.EventEstablished).Param; p.ResponderResources != 2 || p.InitiatorDepth != 1 {
		t.Errorf("answer of 1 responder resource and depth 2 came as %d and %d", p.ResponderResources, p.InitiatorDepth)
	}
	tn.expect(rdma.EventEstablished)
	// With READs in both directions within these numbers.
	fill(ini.mem(0, 1000), 4)
	tgt.send(tgt.to(rdma.OpRDMARead, 1, 0, 1000, ini, 0), tgt.to(rdma.OpRDMARead, 2, 1000, 1000, ini, 0))
	tgt.reapOK(2)
	check(t, "first", tgt.mem(0, 1000), 4)
	check(t, "second", tgt.mem(1000, 1000), 4)
	ini.send(ini.to(rdma.OpRDMARead, 3, 5000, 1000, tgt, 1000))
	ini.reapOK(1)
	check(t, "back", ini.mem(5000, 1000), 4)
}

func testManyConnections(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	seen := map[uint32]bool{}
	for range 12 {
		tgt, ini := connect(t, &env, options{listener: l, tgtNode: tn, iNode: in})
		if seen[tgt.qp.Num()] {
			t.Errorf("queue pair number %#x twice", tgt.qp.Num())
		}
		seen[tgt.qp.Num()] = true
		exchange(t, tgt, ini)
	}
}
