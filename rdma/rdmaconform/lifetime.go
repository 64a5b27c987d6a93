package rdmaconform

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
)

func testDevices(t *testing.T, env Env) {
	for what, p := range map[string]rdma.Provider{"target": env.Target, "initiator": env.Initiator} {
		a, err := p.Devices()
		must(t, err)
		b, err := p.Devices()
		must(t, err)
		if p.Name() == "" || len(a) == 0 || len(a) != len(b) {
			t.Fatalf("%s: %d devices, then %d", what, len(a), len(b))
		}
		for i, d := range a {
			if d != b[i] {
				t.Errorf("%s: another object for the same device", what)
			}
			if in := d.Info(); in.Name == "" || in.Driver == "" {
				t.Errorf("%s: %+v", what, in)
			}
			at := d.Attr()
			if at.MaxQP <= 0 || at.MaxQPWR <= 0 || at.MaxCQE <= 0 || at.MaxSGE <= 0 || at.MaxMRSize == 0 || at.NumCompVectors <= 0 || at.MaxMsgSize == 0 {
				t.Errorf("%s: %+v", what, at)
			}
			if d.Events() == nil || d.Removed() {
				t.Errorf("%s: no events, or removed", what)
			}
		}
	}
}

func testLimits(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	c := in.resolve(l.Addr())
	s := newSide(in, c, stdQP)
	a := s.dev.Attr()
	if a.MaxCQE < 1<<31-1 {
		_, err := s.cc.CreateCQ(a.MaxCQE+1, 0)
		wantErr(t, "completion queue too deep", err, rdma.ErrTooBig)
		wantErr(t, "resize too deep", s.cq.Resize(a.MaxCQE+1), rdma.ErrTooBig, rdma.ErrUnsupported)
	}
	_, err := s.cc.CreateCQ(0, 0)
	wantErr(t, "completion queue of no entries", err, syscall.EINVAL, rdma.ErrTooBig)
	if s.cq.Depth() < 512 {
		t.Errorf("completion queue of %d entries, 512 were asked for", s.cq.Depth())
	}
	far, err := s.cc.CreateCQ(8, 12345) // the vector is a hint
	must(t, err)
	must(t, far.Close())
	other := in.resolve(l.Addr())
	for what, change := range map[string]func(*rdma.QPConfig){
		"sends":         func(q *rdma.QPConfig) { q.MaxSendWR = a.MaxQPWR + 1 },
		"receives":      func(q *rdma.QPConfig) { q.MaxRecvWR = a.MaxQPWR + 1 },
		"send pieces":   func(q *rdma.QPConfig) { q.MaxSendSGE = a.MaxSGE + 1 },
		"receive pices": func(q *rdma.QPConfig) { q.MaxRecvSGE = a.MaxSGE + 1 },
	} {
		q := stdQP
		q.SendCQ, q.RecvCQ = s.cq, s.cq
		change(&q)
		x, err := other.CreateQP(s.pd, q)
		if err == nil {
			_ = x.Close()
		}
		wantErr(t, what, err, rdma.ErrTooBig)
	}
	q := stdQP
	q.SendCQ, q.RecvCQ, q.MaxInline = s.cq, s.cq, 1<<24
	x, err := other.CreateQP(s.pd, q)
	must(t, err)
	caps := x.Caps()
	if caps.MaxInline >= 1<<24 || env.NoInline != (caps.MaxInline == 0) {
		t.Errorf("inline of %d bytes granted", caps.MaxInline)
	}
	if caps.MaxSendWR < q.MaxSendWR || caps.MaxRecvWR < q.MaxRecvWR || caps.MaxSendSGE < q.MaxSendSGE || caps.MaxRecvSGE < q.MaxRecvSGE {
		t.Errorf("granted %+v", caps)
	}
	_, err = other.CreateQP(s.pd, q)
	wantErr(t, "second queue pair", err, syscall.EEXIST, syscall.EINVAL)
	for what, change := range map[string]func(*rdma.ConnParam){
		"responder resources": func(p *rdma.ConnParam) { p.ResponderResources = 255 },
		"initiator depth":     func(p *rdma.ConnParam) { p.InitiatorDepth = 255 },
		"retries":             func(p *rdma.ConnParam) { p.RetryCount = 8 },
		"RNR retries":         func(p *rdma.ConnParam) { p.RNRRetryCount = 8 },
	} {
		p := stdParam
		change(&p)
		wantErr(t, what, other.Connect(p), rdma.ErrTooBig, syscall.EINVAL)
	}
	wantErr(t, "RNR timer", x.SetMinRNRTimer(32), syscall.EINVAL)
	must(t, x.Close())
	must(t, other.Close())
}

// Parents do not close before their children, everything closes twice, and nothing works afterwards.
func testLifetime(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	s := newSide(in, in.resolve(l.Addr()), stdQP)
	for what, x := range map[string]interface{ Close() error }{"PD": s.pd, "completion channel": s.cc, "CQ": s.cq, "connection": s.conn} {
		wantErr(t, "close "+what+" too early", x.Close(), syscall.EBUSY)
	}
	all := []interface{ Close() error }{s.qp, s.conn, s.cq, s.cc, s.mr, s.pd}
	for range 2 {
		for _, x := range all {
			if err := x.Close(); err != nil {
				t.Errorf("close %T: %v", x, err)
			}
		}
	}
	_, err := s.pd.RegMR(s.arena.Bytes(), 0)
	wantErr(t, "RegMR", err, rdma.ErrClosed)
	_, err = s.cq.Poll(s.wcs)
	wantErr(t, "Poll", err, rdma.ErrClosed)
	wantErr(t, "Arm", s.cq.Arm(), rdma.ErrClosed)
	_, err = s.cc.CreateCQ(8, 0)
	wantErr(t, "CreateCQ", err, rdma.ErrClosed)
	_, err = s.cc.Wait(0)
	wantErr(t, "Wait", err, rdma.ErrClosed)
	s.cc.Wake() // harmless
	wantErr(t, "SetError", s.qp.SetError(), rdma.ErrClosed)
	wantErr(t, "Connect", s.conn.Connect(stdParam), rdma.ErrClosed)
	if p := s.try([]rdma.RecvWR{{ID: 1}}, nil); !errors.Is(p.Err, rdma.ErrClosed) || p.RecvsPosted != 0 {
		t.Errorf("post: %d, %v", p.RecvsPosted, p.Err)
	}
	must(t, s.conn.Disconnect())
}

func testRegions(t *testing.T, env Env) {
	devs, err := env.Target.Devices()
	must(t, err)
	pd, err := devs[0].AllocPD()
	must(t, err)
	arena, err := rdma.MapArena(1<<20, false)
	must(t, err)
	if pd.Device() != devs[0] {
		t.Error("the device of a protection domain is another")
	}
	var mrs []rdma.MR
	for i := range 8 {
		part := arena.Bytes()[i<<16:][:1<<16]
		m, err := pd.RegMR(part, fullAccess)
		must(t, err)
		if m.Addr() != rdma.AddrOf(part) || len(m.Bytes()) != len(part) {
			t.Errorf("region at %#x of %d bytes", m.Addr(), len(m.Bytes()))
		}
		for _, o := range mrs {
			if o.LKey() == m.LKey() || o.RKey() == m.RKey() {
				t.Error("a key twice")
			}
		}
		mrs = append(mrs, m)
	}
	_, err = pd.RegMR(nil, 0)
	wantErr(t, "no memory", err, syscall.EINVAL)
	wantErr(t, "PD before its regions", pd.Close(), syscall.EBUSY)
	for _, m := range mrs {
		must(t, m.Close())
	}
	must(t, pd.Close())
	must(t, arena.Close())
}

func testDisconnect(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(100, 16, 0, 64) }})
	ini.recv(200, 4, 0, 64)
	must(t, ini.conn.Disconnect())
	// Our own disconnect flushes our queue pair.
	for i, wc := range ini.reap(4) {
		if wc.Status != rdma.StatusFlushed || wc.ID != uint64(200+i) {
			t.Errorf("receive %d: %+v", i, wc)
		}
	}
	if ev := tgt.node.expect(rdma.EventDisconnected); ev.Conn != tgt.conn {
		t.Errorf("%+v", ev)
	}
	if !env.PeerDisconnectFlushes {
		tgt.quiet() // the peer's does not, on InfiniBand and RoCE
	}
	must(t, tgt.conn.Disconnect())
	for i, wc := range tgt.reap(16) {
		if wc.Status != rdma.StatusFlushed || wc.ID != uint64(100+i) {
			t.Errorf("receive %d: %+v", i, wc)
		}
	}
	ini.node.expect(rdma.EventDisconnected)
	for range 3 {
		must(t, tgt.conn.Disconnect())
		must(t, ini.conn.Disconnect())
	}
}

func testDisconnectByBoth(t *testing.T, env Env) {
	for range 10 {
		tgt, ini := connect(t, &env, options{})
		done := make(chan error, 2)
		go func() { done <- tgt.conn.Disconnect() }()
		go func() { done <- ini.conn.Disconnect() }()
		must(t, <-done)
		must(t, <-done)
		tgt.node.skipTo(rdma.EventDisconnected)
		ini.node.skipTo(rdma.EventDisconnected)
		tgt.close()
		ini.close()
	}
}

func testTimewaitExit(t *testing.T, env Env) {
	if env.NoTimewait {
		t.Skip("no TIMEWAIT_EXIT here")
	}
	tgt, ini := connect(t, &env, options{})
	must(t, ini.conn.Disconnect())
	tgt.node.expect(rdma.EventDisconnected)
	must(t, tgt.conn.Disconnect())
	ini.node.expect(rdma.EventDisconnected)
	if ev := ini.node.expect(rdma.EventTimewaitExit); ev.Conn != ini.conn {
		t.Errorf("%+v", ev)
	}
}

func testCloseInAnyState(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	// Resolved only.
	must(t, in.resolve(l.Addr()).Close())
	// With a queue pair, not connected.
	newSide(in, in.resolve(l.Addr()), stdQP).close()
	// Request not answered, and closed by the target: that is a rejection.
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	must(t, tn.expect(rdma.EventConnectRequest).Conn.Close())
	in.expect(rdma.EventRejected, rdma.EventUnreachable)
	ini.close()
	// Request closed by the initiator; the target accepts too late.
	ini = newSide(in, in.resolve(l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	tgt := newSide(tn, tn.expect(rdma.EventConnectRequest).Conn, stdQP)
	ini.close()
	_ = tgt.conn.Accept(stdParam) // either way
	tgt.close()
	// Established on one side, event unread on the other; then the other is first.
	for _, first := range []int{0, 1} {
		tgt, ini := connect(t, &env, options{})
		ends := []*side{tgt, ini}
		ends[first].close()
		ends[1-first].close()
	}
	// Disconnected halfway.
	tgt, ini = connect(t, &env, options{})
	must(t, ini.conn.Disconnect())
	tgt.node.expect(rdma.EventDisconnected)
	ini.close()
	tgt.close()
}

// Events of a connection that was closed while they waited never come.
func testClosedConnEvents(t *testing.T, env Env) {
	for range 5 {
		ch, err := env.Target.NewEventChannel()
		must(t, err)
		l, err := ch.Listen(netip.AddrPortFrom(env.addr(), 0), 8)
		must(t, err)
		in := newNode(t, &env, env.Initiator)
		ini := newSide(in, in.resolve(l.Addr()), stdQP)
		must(t, ini.conn.Connect(stdParam))
		ev, err := ch.Next()
		must(t, err)
		tn := &node{t: t, env: &env}
		tgt := newSide(tn, ev.Conn, stdQP)
		must(t, tgt.conn.Accept(stdParam))
		in.expect(rdma.EventEstablished)
		must(t, ini.conn.Disconnect())
		time.Sleep(env.Quiet) // ESTABLISHED and DISCONNECTED are in the channel, which nobody reads
		tgt.close()
		got := make(chan rdma.Event, 1)
		ended := make(chan error, 1)
		go func() {
			ev, err := ch.Next()
			if err == nil {
				got <- ev
				_, err = ch.Next()
			}
			ended <- err
		}()
		select {
		case ev := <-got:
			t.Errorf("%s of a closed connection", ev.Type)
		case <-time.After(env.Quiet):
		}
		must(t, l.Close())
		must(t, ch.Close())
		wantErr(t, "Next", <-ended, rdma.ErrClosed)
		ini.close()
	}
}

// A listener that goes takes the requests with it that nobody fetched.
func testListenerTakesRequests(t *testing.T, env Env) {
	ch, err := env.Target.NewEventChannel()
	must(t, err)
	l, err := ch.Listen(netip.AddrPortFrom(env.addr(), 0), 8)
	must(t, err)
	in := newNode(t, &env, env.Initiator)
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	time.Sleep(env.Quiet)
	must(t, l.Close())
	in.expect(rdma.EventRejected, rdma.EventUnreachable)
	got := make(chan error, 1)
	go func() {
		ev, err := ch.Next()
		if err == nil {
			err = errors.New("event of a closed listener: " + ev.Type.String())
		}
		got <- err
	}()
	time.Sleep(env.Quiet)
	must(t, ch.Close())
	wantErr(t, "Next", <-got, rdma.ErrClosed)
}

// An event channel closes before or after what it made.
func testChannelClose(t *testing.T, env Env) {
	ch, err := env.Target.NewEventChannel()
	must(t, err)
	l, err := ch.Listen(netip.AddrPortFrom(env.addr(), 0), 8)
	must(t, err)
	must(t, ch.Close())
	must(t, ch.Close())
	_, err = ch.Listen(netip.AddrPortFrom(env.addr(), 0), 8)
	wantErr(t, "Listen", err, rdma.ErrClosed)
	_, err = ch.Next()
	wantErr(t, "Next", err, rdma.ErrClosed)
	_, err = ch.Resolve(t.Context(), netip.AddrPort{}, l.Addr())
	wantErr(t, "Resolve", err, rdma.ErrClosed)
	must(t, l.Close())
	must(t, l.Close())
}
