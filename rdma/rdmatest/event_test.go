package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
)

// TestReceiveBeforeEstablished: the message overtakes the event, and COMM_EST says so.
func TestReceiveBeforeEstablished(t *testing.T) {
	f, tp, ip := Pair(Config{})
	f.SetFaults(Faults{Event: func(e EventInfo) EventAction {
		if e.Passive && e.Type == rdma.EventEstablished {
			return EventAction{Delay: Held}
		}
		return EventAction{}
	}})
	tgt, ini := newEnd(t, tp), newEnd(t, ip)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3260"), 8)
	must(t, err)
	for round := range 3 {
		ini.conn, err = ini.ch.Resolve(context.Background(), netip.AddrPort{}, l.Addr())
		must(t, err)
		ini.arm(testQP)
		must(t, ini.conn.Connect(testParam))
		tgt.conn = tgt.next(rdma.EventConnectRequest).Conn
		tgt.arm(testQP)
		must(t, tgt.recv(1, 0, 64))
		must(t, tgt.conn.Accept(testParam))
		ini.next(rdma.EventEstablished)
		must(t, ini.send(ini.message(1)))
		status(t, "receive", tgt.poll(1)[0], rdma.StatusSuccess)
		select {
		case e := <-tgt.dev.Events():
			if e.Type != rdma.AsyncCommEst || e.QPNum != tgt.qp.Num() {
				t.Errorf("%+v", e)
			}
		case <-time.After(time.Second):
			t.Error("no COMM_EST")
		}
		switch round {
		case 0: // told; the late event does not come as well
			must(t, tgt.conn.NotifyEstablished())
			tgt.next(rdma.EventEstablished)
			f.ReleaseEvents()
			must(t, ini.conn.Disconnect())
			tgt.next(rdma.EventDisconnected)
		case 1: // DISCONNECTED first
			must(t, ini.conn.Disconnect())
			tgt.next(rdma.EventDisconnected)
			if f.HeldEvents() != 1 {
				t.Errorf("%d events held", f.HeldEvents())
			}
			f.ReleaseEvents()
			tgt.next(rdma.EventEstablished)
		case 2: // closed meanwhile: it never comes
			must(t, ini.conn.Disconnect())
			tgt.next(rdma.EventDisconnected)
		}
		ini.closeConn()
		tgt.closeConn()
		f.ReleaseEvents()
	}
	must(t, l.Close())
	must(t, ini.ch.Close())
	if _, err := tgt.ch.(*eventChannel).poll(); err == nil {
		t.Error("an event of a closed connection")
	}
	must(t, tgt.ch.Close())
	if l := f.Leaks(); len(l) > 0 {
		t.Errorf("%q", l)
	}
}

// poll is Next without waiting.
func (ch *eventChannel) poll() (rdma.Event, error) {
	ch.p.f.mu.Lock()
	n := len(ch.queue)
	ch.p.f.mu.Unlock()
	if n == 0 {
		return rdma.Event{}, errors.New("no event")
	}
	return ch.Next()
}

// closeConn closes all but the event channel.
func (e *end) closeConn() {
	ch := e.ch
	e.ch = &eventChannel{p: e.p, closed: true}
	e.close()
	*e = end{t: e.t, p: e.p, ch: ch}
}

func TestDuplicateAndLostEvents(t *testing.T) {
	f, tgt, ini := newPair(t, Config{CMTimeout: 5 * time.Millisecond, Timewait: time.Millisecond})
	f.SetFaults(Faults{Event: func(e EventInfo) EventAction {
		switch {
		case e.Type == rdma.EventDisconnected && e.Passive:
			return EventAction{Again: 2 * time.Millisecond}
		case e.Type == rdma.EventDisconnected:
			return EventAction{Drop: true}
		}
		return EventAction{}
	}})
	must(t, ini.conn.Disconnect())
	tgt.next(rdma.EventDisconnected)
	tgt.next(rdma.EventDisconnected)
	ini.next(rdma.EventTimewaitExit) // first, without DISCONNECTED
}

func TestDeviceRemoval(t *testing.T) {
	f, tp, ip := Pair(Config{RetryTimeout: 5 * time.Millisecond, CMTimeout: 5 * time.Millisecond})
	tgt, ini := connect(t, tp, ip)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3260"), 8)
	must(t, err)
	wild, err := tgt.ch.Listen(netip.MustParseAddrPort("0.0.0.0:3261"), 8)
	must(t, err)
	must(t, tgt.recv(1, 0, 64))
	waiter := make(chan error, 1)
	go func() {
		_, err := tgt.cc.Wait(-1)
		waiter <- err
	}()
	dev := tgt.dev.(*Device)
	dev.Remove()
	dev.Remove()
	if !dev.Removed() {
		t.Error("not removed")
	}
	if e := <-dev.Events(); e.Type != rdma.AsyncDeviceFatal {
		t.Errorf("%+v", e)
	}
	if ev := tgt.next(rdma.EventDeviceRemoval); ev.Listener != l || ev.Conn != nil {
		t.Errorf("%+v", ev)
	}
	if ev := tgt.next(rdma.EventDeviceRemoval); ev.Conn != tgt.conn {
		t.Errorf("%+v", ev)
	}
	if err := <-waiter; !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"post": tgt.recv(2, 0, 64), "arm": tgt.cq.Arm(), "set error": tgt.qp.SetError(), "accept": tgt.conn.Accept(testParam),
		"poll":     func() error { _, err := tgt.cq.Poll(tgt.wcs[:]); return err }(),
		"register": func() error { _, err := tgt.pd.RegMR(tgt.mem(0, 64), 0); return err }(),
		"PD":       func() error { _, err := dev.AllocPD(); return err }(),
	} {
		if !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := tp.Devices(); !errors.Is(err, rdma.ErrNoDevice) {
		t.Error(err)
	}
	if _, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3262"), 8); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
	must(t, ini.send(ini.message(1)))
	status(t, "the peer's send", ini.poll(1)[0], rdma.StatusRetryExcErr)
	// It comes back, with a wildcard listener still there.
	back := dev.Return()
	devs, err := tp.Devices()
	must(t, err)
	if len(devs) != 1 || devs[0] != rdma.Device(back) || back == dev || tp.Device("mem0") != back {
		t.Errorf("%v", devs)
	}
	again := newEnd(t, ip)
	again.conn, err = again.ch.Resolve(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:3261"))
	must(t, err)
	again.arm(testQP)
	must(t, again.conn.Connect(testParam))
	req := tgt.next(rdma.EventConnectRequest)
	if req.Listener != wild || req.Conn.Device() != rdma.Device(back) {
		t.Errorf("%+v", req)
	}
	must(t, req.Conn.Close())
	again.next(rdma.EventRejected)
	// The old listener is dead, holds its port until closed, and closes.
	if _, err := tgt.ch.Listen(l.Addr(), 8); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	must(t, l.Close())
	l, err = tgt.ch.Listen(l.Addr(), 8)
	must(t, err)
	must(t, l.Close())
	must(t, wild.Close())
	again.close()
	ini.close()
	tgt.close()
	if l := f.Leaks(); len(l) > 0 {
		t.Errorf("left open: %q", l)
	}
	must(t, tp.Close())
}

func TestAddrChange(t *testing.T) {
	f, tp, ip := Pair(Config{})
	tgt, ini := newEnd(t, tp), newEnd(t, ip)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3260"), 8)
	must(t, err)
	l.Device().(*Device).AddrChange()
	if ev := tgt.next(rdma.EventAddrChange); ev.Listener != l {
		t.Errorf("%+v", ev)
	}
	ini.conn, err = ini.ch.Resolve(context.Background(), netip.AddrPort{}, l.Addr())
	must(t, err)
	ini.arm(testQP)
	must(t, ini.conn.Connect(testParam))
	if ev := ini.next(rdma.EventRejected); ev.Status != 8 {
		t.Errorf("%+v", ev)
	}
	must(t, l.Close())
	ini.close()
	tgt.close()
	if l := f.Leaks(); len(l) > 0 {
		t.Errorf("%q", l)
	}
}
