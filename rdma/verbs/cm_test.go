//go:build linux && cgo && !nordma

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/verbs"
)

func TestDisconnectFlushes(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) { s.post(recvs(s, 16), nil) })
	must(t, ini.conn.Disconnect())
	if ev := tgt.node.expect(rdma.EventDisconnected); ev.Conn != tgt.conn {
		t.Fatalf("%+v", ev)
	}
	if onRealDevice() && !iWARP(tgt.dev) {
		// On InfiniBand and RoCE nothing completes until we act.
		if n, err := tgt.cq.Poll(tgt.wcs); n != 0 || err != nil {
			t.Fatalf("%d completions before our own disconnect, %v", n, err)
		}
	}
	must(t, tgt.conn.Disconnect())
	for i, wc := range tgt.reap(16) {
		if wc.Status != rdma.StatusFlushed || wc.ID != uint64(1000+i) {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	ini.node.expect(rdma.EventDisconnected)
	if !iWARP(tgt.dev) {
		ini.node.expect(rdma.EventTimewaitExit)
	}
	// B126: each of these is normal.
	for range 3 {
		must(t, tgt.conn.Disconnect())
		must(t, ini.conn.Disconnect())
	}
	tgt.close()
	ini.close()
	must(t, tgt.conn.Disconnect())
}

// B112: closing an identifier, also with events of it unread, neither blocks nor lets the events through.
func TestB112_CloseWithEventsQueued(t *testing.T) {
	p := newProvider(t)
	for range 5 {
		tgt, ini := connect(t, p, nil)
		must(t, ini.conn.Disconnect())
		done := make(chan struct{})
		go func() {
			defer close(done)
			ini.close()
			tgt.close()
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal("close hangs")
		}
		for {
			select {
			case ev := <-tgt.node.events:
				if ev.Type != rdma.EventDisconnected && ev.Type != rdma.EventTimewaitExit {
					t.Fatalf("%+v", ev)
				}
				continue
			default:
			}
			break
		}
	}
}

func TestCloseInEveryState(t *testing.T) {
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	l := listen(t, tn, addrPort(t, 0))
	// Resolved only.
	must(t, resolve(t, in, l.Addr()).Close())
	// With a queue pair, not connected.
	newSide(t, in, resolve(t, in, l.Addr()), stdQP).close()
	// Connect sent, request not answered, then closed by the target: counts as a reject.
	ini := newSide(t, in, resolve(t, in, l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	must(t, tn.expect(rdma.EventConnectRequest).Conn.Close())
	in.expectAny(rdma.EventRejected, rdma.EventUnreachable)
	ini.close()
	// Connect sent, then closed by the initiator; the target accepts too late.
	ini = newSide(t, in, resolve(t, in, l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	req := tn.expect(rdma.EventConnectRequest)
	tgt := newSide(t, tn, req.Conn, stdQP)
	ini.close()
	if err := tgt.conn.Accept(stdParam); err != nil {
		t.Log("accept of a dead request:", err)
	}
	tgt.close()
}

func TestReject(t *testing.T) {
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	l := listen(t, tn, addrPort(t, 0))
	ini := newSide(t, in, resolve(t, in, l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	req := tn.expect(rdma.EventConnectRequest)
	if req.Param.ResponderResources != 4 || req.Param.InitiatorDepth != 4 || req.Param.RNRRetryCount != 7 && !iWARP(req.Conn.Device()) {
		t.Fatalf("%+v", req.Param)
	}
	if a := req.Conn.LocalAddr(); a != l.Addr() {
		t.Fatalf("local address %v, listener %v", a, l.Addr())
	}
	if a := req.Conn.RemoteAddr(); a != ini.conn.LocalAddr() {
		t.Fatalf("remote address %v, initiator %v", a, ini.conn.LocalAddr())
	}
	must(t, req.Conn.Reject([]byte("no room")))
	must(t, req.Conn.Close())
	ev := in.expect(rdma.EventRejected)
	if ev.Conn != ini.conn || !bytes.HasPrefix(ev.Param.PrivateData, []byte("no room")) || ev.Status != 28 && !iWARP(ini.dev) {
		t.Fatalf("%+v", ev)
	}
	ini.close()
}

func TestNobodyListens(t *testing.T) {
	p := newProvider(t)
	n := newNode(t, p)
	l, err := n.ch.Listen(addrPort(t, 0), 1)
	must(t, err)
	at := l.Addr()
	must(t, l.Close())
	must(t, l.Close())
	ini := newSide(t, n, resolve(t, n, at), stdQP)
	if err := ini.conn.Connect(stdParam); !iWARP(ini.dev) {
		must(t, err)
		if ev := n.expect(rdma.EventRejected); ev.Status != 8 {
			t.Fatalf("%+v", ev)
		}
	} else if !errors.Is(err, syscall.ECONNREFUSED) { // TCP knows at once on one machine
		t.Fatal(err)
	}
	ini.close()
}

func TestListen(t *testing.T) {
	p := newProvider(t)
	n := newNode(t, p)
	l := listen(t, n, addrPort(t, 0))
	if l.Addr().Port() == 0 || l.Addr().Addr() != labAddr(t) {
		t.Fatal(l.Addr())
	}
	devs, err := p.Devices()
	must(t, err)
	if d := l.Device(); d != devs[0] {
		t.Fatalf("listener on %v, devices %v", d, devs)
	}
	for name, c := range map[string]struct {
		at   netip.AddrPort
		want error
	}{
		"in use":       {l.Addr(), syscall.EADDRINUSE},
		"not ours":     {netip.MustParseAddrPort("192.0.2.77:3260"), syscall.EADDRNOTAVAIL},
		"no address":   {netip.AddrPort{}, syscall.EINVAL},
		"no such zone": {netip.MustParseAddrPort("[fe80::1%nosuch0]:3260"), syscall.EINVAL},
	} {
		_, err := n.ch.Listen(c.at, 1)
		var op *rdma.OpError
		if !errors.As(err, &op) || op.Hint == "" || !(errors.Is(err, c.want) || name == "not ours" && errors.Is(err, syscall.ENODEV)) {
			t.Errorf("%s: %v, want %v with a hint", name, err, c.want)
		}
	}
}

// Wildcards of both families on one port, as the portal of a target has them.
func TestWildcardsCoexist(t *testing.T) {
	p := newProvider(t)
	n, in := newNode(t, p), newNode(t, p)
	l4 := listen(t, n, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if l4.Device() != nil {
		t.Fatalf("wildcard listener has device %v", l4.Device())
	}
	l6 := listen(t, n, netip.AddrPortFrom(netip.IPv6Unspecified(), l4.Addr().Port()))
	own := l4
	if labAddr(t).Is6() {
		own = l6
	}
	for _, c := range []struct {
		to netip.Addr
		l  rdma.Listener
	}{{labAddr(t), own}, {netip.IPv6Loopback(), l6}} {
		if onRealDevice() && c.to == netip.IPv6Loopback() {
			continue
		}
		ini := newSide(t, in, resolve(t, in, netip.AddrPortFrom(c.to, l4.Addr().Port())), stdQP)
		must(t, ini.conn.Connect(stdParam))
		req := n.expect(rdma.EventConnectRequest)
		if req.Listener != c.l || req.Conn.Device() == nil {
			t.Fatalf("%+v, want listener %v", req, c.l.Addr())
		}
		must(t, req.Conn.Reject(nil))
		must(t, req.Conn.Close())
		in.expect(rdma.EventRejected)
		ini.close()
	}
}

// A listener that goes takes its requests with it.
func TestListenerCloseDropsRequests(t *testing.T) {
	p := newProvider(t)
	ch, err := p.NewEventChannel()
	must(t, err)
	in := newNode(t, p)
	l, err := ch.Listen(addrPort(t, 0), 4)
	must(t, err)
	ini := newSide(t, in, resolve(t, in, l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	time.Sleep(50 * time.Millisecond) // the request lies in the channel that nobody reads
	must(t, l.Close())
	in.expectAny(rdma.EventRejected, rdma.EventUnreachable)
	got := make(chan error, 1)
	go func() {
		ev, err := ch.Next()
		if err == nil {
			err = errors.New("event of a closed listener: " + ev.Type.String())
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatal(err)
	case <-time.After(50 * time.Millisecond):
	}
	must(t, ch.Close())
	if err := <-got; !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
	ini.close()
}

func TestResolveErrors(t *testing.T) {
	p := newProvider(t)
	n := newNode(t, p)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for _, to := range []string{"192.0.2.77:1", "[fe80::1%nosuch0]:1"} {
		if c, err := n.ch.Resolve(ctx, netip.AddrPort{}, netip.MustParseAddrPort(to)); err == nil {
			t.Errorf("%s: %v", to, c.RemoteAddr())
		}
	}
	if _, err := n.ch.Resolve(ctx, netip.AddrPort{}, netip.AddrPort{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("zero address: %v", err)
	}
	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := n.ch.Resolve(gone, netip.AddrPort{}, addrPort(t, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestLimits(t *testing.T) {
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	l := listen(t, tn, addrPort(t, 0))
	c := resolve(t, in, l.Addr())
	dev := c.Device()
	a := dev.Attr()
	pd, err := dev.AllocPD()
	must(t, err)
	ch, err := dev.NewCompletionChannel()
	must(t, err)
	cq, err := ch.CreateCQ(64, 12345)
	must(t, err)
	// B107: a device that reports huge values is asked for what is needed; above its limit is refused with the numbers.
	if _, err := ch.CreateCQ(a.MaxCQE+1, 0); !errors.Is(err, rdma.ErrTooBig) || !strings.Contains(err.Error(), itoa(a.MaxCQE)) {
		t.Error(err)
	}
	if _, err := ch.CreateCQ(0, 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := cq.Resize(a.MaxCQE + 1); !errors.Is(err, rdma.ErrTooBig) {
		t.Error(err)
	}
	if err := cq.Resize(128); err != nil && !errors.Is(err, rdma.ErrUnsupported) || err == nil && cq.Depth() < 128 {
		t.Error(err, cq.Depth())
	}
	base := stdQP
	base.SendCQ, base.RecvCQ = cq, cq
	for name, change := range map[string]func(*rdma.QPConfig){
		"sends":         func(q *rdma.QPConfig) { q.MaxSendWR = a.MaxQPWR + 1 },
		"receives":      func(q *rdma.QPConfig) { q.MaxRecvWR = a.MaxQPWR + 1 },
		"B108 send SGE": func(q *rdma.QPConfig) { q.MaxSendSGE = a.MaxSGE + 1 },
		"B108 recv SGE": func(q *rdma.QPConfig) { q.MaxRecvSGE = a.MaxSGE + 1 },
	} {
		q := base
		change(&q)
		if _, err := c.CreateQP(pd, q); !errors.Is(err, rdma.ErrTooBig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Inline is negotiated down, never refused.
	q := base
	q.MaxInline = 1 << 20
	qp, err := c.CreateQP(pd, q)
	must(t, err)
	if in := qp.Caps().MaxInline; in < 76 || in >= 1<<20 { // 76: the answer of an iSER command
		t.Errorf("inline granted: %d", in)
	}
	if _, err := c.CreateQP(pd, base); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("second queue pair: %v", err)
	}
	for name, change := range map[string]func(*rdma.ConnParam){
		"B125 responder resources": func(p *rdma.ConnParam) { p.ResponderResources = 255 },
		"B125 initiator depth":     func(p *rdma.ConnParam) { p.InitiatorDepth = 255 },
		"retry":                    func(p *rdma.ConnParam) { p.RetryCount = 8 },
		"RNR retry":                func(p *rdma.ConnParam) { p.RNRRetryCount = 8 },
		"private data":             func(p *rdma.ConnParam) { p.PrivateData = make([]byte, 256) },
	} {
		cp := stdParam
		change(&cp)
		if err := c.Connect(cp); !errors.Is(err, rdma.ErrTooBig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := qp.SetMinRNRTimer(32); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RNR timer 32: %v", err)
	}
	// Parents before children.
	for name, x := range map[string]interface{ Close() error }{"PD": pd, "channel": ch, "CQ": cq, "connection": c, "provider": p} {
		if err := x.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("close %s too early: %v", name, err)
		}
	}
	for _, x := range []interface{ Close() error }{qp, c, cq, ch, pd, qp, c, cq, ch, pd} {
		must(t, x.Close())
	}
	if _, err := pd.RegMR(make([]byte, 1), 0); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if _, err := cq.Poll(make([]rdma.WC, 1)); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if err := cq.Arm(); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
}

func TestChannelClosedBeforeItsConnections(t *testing.T) {
	p := newProvider(t)
	ch, err := p.NewEventChannel()
	must(t, err)
	l, err := ch.Listen(addrPort(t, 0), 1)
	must(t, err)
	must(t, ch.Close())
	must(t, ch.Close())
	if err := p.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("provider closed under a listener: %v", err)
	}
	must(t, l.Close())
	if _, err := ch.Listen(addrPort(t, 0), 1); !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
}

func TestProvider(t *testing.T) {
	labAddr(t)
	var added []string
	p, err := verbs.New(verbs.Options{Trace: verbs.Trace{DeviceAdded: func(n string) { added = append(added, n) }}})
	must(t, err)
	a, err := p.Devices()
	must(t, err)
	b, err := p.Devices()
	must(t, err)
	if len(a) != len(b) || a[0] != b[0] || len(added) != len(a) {
		t.Fatalf("%v, %v, added %v", a, b, added)
	}
	for _, d := range a {
		i, at := d.Info(), d.Attr()
		t.Logf("%+v", i)
		t.Logf("%+v", at)
		if i.Name == "" || i.GUID == "" || len(i.Ports) == 0 || i.Driver == "unknown" || at.MaxQPWR == 0 || at.MaxCQE == 0 || at.MaxMsgSize == 0 {
			t.Errorf("%+v %+v", i, at)
		}
		for _, port := range i.Ports {
			if port.State == "ACTIVE" && (len(port.GIDs) == 0 || len(port.NetDevs) == 0 || len(port.Addrs) == 0 || port.MTU == 0) {
				t.Errorf("%+v", port)
			}
		}
	}
	if p.Name() != "verbs" {
		t.Error(p.Name())
	}
	must(t, p.Close())
	must(t, p.Close())
	if _, ok := <-a[0].Events(); ok {
		t.Error("events of a closed provider")
	}
	if _, err := a[0].AllocPD(); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if _, err := a[0].NewCompletionChannel(); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if i := a[0].Info(); i.Name == "" {
		t.Error("a closed device has no name")
	}
	if _, err := p.Devices(); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if _, err := p.NewEventChannel(); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if _, err := verbs.New(verbs.Options{AsyncQueue: -1}); err == nil {
		t.Error("negative queue accepted")
	}
}

func TestEarlyData(t *testing.T) {
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	l := listen(t, tn, addrPort(t, 0))
	ini := newSide(t, in, resolve(t, in, l.Addr()), stdQP)
	must(t, ini.conn.Connect(stdParam))
	tgt := newSide(t, tn, tn.expect(rdma.EventConnectRequest).Conn, stdQP)
	tgt.post(recvs(tgt, 1), nil)
	must(t, tgt.conn.Accept(stdParam))
	in.expect(rdma.EventEstablished)
	ini.post(nil, sends(ini, 1, rdma.SendSignaled))
	tgt.reapOK(1)
	must(t, tgt.conn.NotifyEstablished())
	tn.expect(rdma.EventEstablished)
	must(t, tgt.conn.NotifyEstablished())
	tgt.close()
	ini.close()
	if err := tgt.conn.NotifyEstablished(); !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
}

// B106: what CheckMemlock says and what the device does agree, and the error of the device names the remedy. Run it also
// with `ulimit -l 64` and without CAP_IPC_LOCK.
func TestB106_RegisterUnderLimit(t *testing.T) {
	p := newProvider(t)
	if !onRealDevice() {
		t.Skip("the drop-in libraries pin nothing")
	}
	const need = 16 << 20
	arena, err := rdma.MapArena(need, false)
	must(t, err)
	defer arena.Close()
	pd, err := device(t, p).AllocPD()
	must(t, err)
	defer pd.Close()
	want := verbs.CheckMemlock(need)
	mr, err := pd.RegMR(arena.Bytes(), rdma.AccessLocalWrite)
	t.Log("CheckMemlock:", want)
	t.Log("RegMR:", err)
	if err == nil {
		defer mr.Close()
	}
	if (want == nil) != (err == nil) {
		t.Fatal("they disagree")
	}
	var op *rdma.OpError
	if err != nil && (!errors.As(err, &op) || op.Errno != syscall.ENOMEM || !strings.Contains(op.Hint, "LimitMEMLOCK=infinity")) {
		t.Fatal(err)
	}
}

// When nobody reads events, Resolve ends with its context, or with the channel.
func TestResolveWithoutReader(t *testing.T) {
	p := newProvider(t)
	ch, err := p.NewEventChannel()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := ch.Resolve(ctx, netip.AddrPort{}, addrPort(t, 9)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := ch.Resolve(context.Background(), netip.AddrPort{}, addrPort(t, 9))
		got <- err
	}()
	time.Sleep(50 * time.Millisecond)
	must(t, ch.Close())
	if err := <-got; !errors.Is(err, rdma.ErrClosed) {
		t.Fatal(err)
	}
}

// B115: a hundred initiators at once are all served, then all hang up at once.
func TestB115_ConnectStorm(t *testing.T) {
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	l, err := tn.ch.Listen(addrPort(t, 0), 256)
	must(t, err)
	defer l.Close()
	const n = 100
	inits := make([]*side, n)
	made := make(chan error, n)
	for i := range inits {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, err := in.ch.Resolve(ctx, netip.AddrPort{}, l.Addr())
			if err == nil {
				inits[i] = newSide(t, in, c, stdQP)
				err = c.Connect(stdParam)
			}
			made <- err
		}()
	}
	targets := map[rdma.Conn]*side{}
	up := 0
	for range 2 * n {
		switch ev := tn.expectAny(rdma.EventConnectRequest, rdma.EventEstablished); ev.Type {
		case rdma.EventConnectRequest:
			s := newSide(t, tn, ev.Conn, stdQP)
			s.post(recvs(s, 4), nil)
			targets[ev.Conn] = s
			must(t, ev.Conn.Accept(stdParam))
		case rdma.EventEstablished:
			if targets[ev.Conn] == nil {
				t.Fatal("established before its request")
			}
			up++
		}
	}
	for range n {
		must(t, <-made)
		in.expect(rdma.EventEstablished)
	}
	if up != n || len(targets) != n {
		t.Fatalf("%d requests, %d established", len(targets), up)
	}
	for _, s := range inits {
		must(t, s.conn.Disconnect())
	}
	for _, s := range inits {
		s.close()
	}
	for _, s := range targets {
		must(t, s.conn.Disconnect())
		for _, wc := range s.reap(4) {
			if wc.Status != rdma.StatusFlushed {
				t.Fatalf("%+v", wc)
			}
		}
		s.close()
	}
}
