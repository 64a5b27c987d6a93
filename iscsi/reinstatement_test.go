package iscsi

import (
	"context"
	"errors"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/scsi"
)

// B11, B14: a second login of the same initiator port takes the session over; the old connection ends once.
func TestB14_Reinstatement(t *testing.T) {
	w := newWorld(t, nil)
	w.store.Hang(backstore.OpRead)
	old := w.session(hostA, 1)
	old.read(0, 8)
	sibling := w.session(hostA, 2)
	p := w.connect(tcpInfo())
	done := make(chan error, 1)
	go func() { done <- p.tryLogin(names(hostA, 1), nil) }()
	old.closed()
	other := w.session(hostB, 1) // other logins do not wait
	select {
	case err := <-done:
		t.Fatalf("the login did not wait for the old session's read: %v", err)
	default:
	}
	w.store.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	old.await("the end", func() bool { return old.gone })
	sibling.ready()
	other.ready()
	p.checkCondition(p.command(0, "00", 0, nil), scsi.UnitAttention, scsi.PowerOnResetOrBusDeviceReset)
	if n := len(w.node.Sessions()); n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
	old.nothing()
}

// A late write of the old session must not overwrite one of the new session.
func TestReinstatementWaitsForWrites(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ReinstatementWait = 5 * time.Second })
	for _, lost := range []bool{false, true} {
		old := w.session(hostA, 1)
		w.store.Hang(backstore.OpWrite)
		old.write(0, pattern(512, 1), 512, true)
		if lost {
			old.lose(errors.New("cable"))
		}
		p := w.connect(tcpInfo())
		done := make(chan error, 1)
		isid := byte(1)
		if lost {
			isid = 77 // libiscsi comes back with another one (known-faults B13)
		}
		go func() { done <- p.tryLogin(names(hostA, isid), nil) }()
		select {
		case <-done:
			t.Fatal("the login went through with a write of the old session in the store")
		case <-time.After(50 * time.Millisecond):
		}
		w.store.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		p.ready()
	}
}

// The store hangs for good: the login goes on after a while, and nobody else waits at all.
func TestB91_HungStore(t *testing.T) {
	w := newWorld(t, nil)
	w.store.Hang(backstore.OpWrite)
	old := w.session(hostA, 1)
	itt := old.write(0, pattern(512, 1), 512, true)
	old.abort(itt)
	p := w.connect(tcpInfo()).login(names(hostA, 1)) // after ReinstatementWait
	p.ready()
	if n := w.node.Stats().ReinstatementTimeouts; n != 1 {
		t.Errorf("%d reinstatements did not wait to the end, want 1", n)
	}
	w.session(hostB, 1)
	old.mu.Lock()
	if old.gone || old.c.phase != phaseDraining {
		t.Errorf("phase %v with a task in the store", old.c.phase)
	}
	old.mu.Unlock()
	w.store.Release()
	old.await("the end", func() bool { return old.gone })
}

// A third login while the second waits for the first: the second fails, the third waits for both.
func TestReinstatementOfALoginThatWaits(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ReinstatementWait = 5 * time.Second })
	w.store.Hang(backstore.OpWrite)
	first := w.session(hostA, 1)
	first.write(0, pattern(512, 1), 512, true)
	second, third := w.connect(tcpInfo()), w.connect(tcpInfo())
	errs := make(chan error, 1)
	go func() { errs <- second.tryLogin(names(hostA, 1), nil) }()
	second.await("admission", func() bool { return second.c.phase == phaseAdmission })
	done := make(chan error, 1)
	go func() { done <- third.tryLogin(names(hostA, 1), nil) }()
	if err := <-errs; err == nil {
		t.Error("the second login succeeded")
	}
	select {
	case <-done:
		t.Error("the third login did not wait for the first session's write")
	case <-time.After(30 * time.Millisecond):
	}
	w.store.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	third.ready()
	if n := len(w.node.Sessions()); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// The same when the second is lost while it waits, and comes back as another initiator port.
func TestLoginThatWaitedIsLost(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ReinstatementWait = 5 * time.Second })
	w.store.Hang(backstore.OpWrite)
	first := w.session(hostA, 1)
	first.write(0, pattern(512, 1), 512, true)
	second, third := w.connect(tcpInfo()), w.connect(tcpInfo())
	go second.tryLogin(names(hostA, 1), nil)
	second.await("admission", func() bool { return second.c.phase == phaseAdmission })
	first.await("the end", func() bool { return first.notified })
	second.lose(nil)
	done := make(chan error, 1)
	go func() { done <- third.tryLogin(names(hostA, 2), nil) }()
	select {
	case <-done:
		t.Error("the third login did not wait for the first session's write")
	case <-time.After(30 * time.Millisecond):
	}
	w.store.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestConnectionDuringShutdown(t *testing.T) {
	w := newWorld(t, nil)
	w.store.Hang(backstore.OpWrite)
	p := w.session(hostA, 1)
	p.write(0, pattern(512, 0), 512, true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_ = w.node.Shutdown(ctx)
	late := w.connect(tcpInfo())
	late.closed() // long before the login timeout
}

func TestConnectionReinstatement(t *testing.T) {
	w := newWorld(t, nil)
	old := w.session(hostA, 1)
	n := names(hostA, 1)
	n.TSIH = old.tsih
	p := w.connect(tcpInfo()).login(n)
	if p.tsih != old.tsih {
		t.Errorf("TSIH %d, want that of the session, %d", p.tsih, old.tsih)
	}
	old.closed()
	p.ready()
}

func TestPDUWhileFinalResponseIsDue(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.ReinstatementWait = 5 * time.Second })
	w.store.Hang(backstore.OpWrite)
	first := w.session(hostA, 1)
	first.write(0, pattern(512, 1), 512, true)
	p := w.connect(tcpInfo())
	go p.tryLogin(names(hostA, 1), nil)
	p.await("admission", func() bool { return p.c.phase == phaseAdmission })
	p.command(0, "00", 0, nil)
	p.closed()
	if n := len(w.node.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
}
