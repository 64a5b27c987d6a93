package scsi

import (
	"fmt"
	"sync"
	"testing"
)

// Exclusive access, all registrants: who is not registered neither reads nor writes, and the reservation passes on until
// the last registrant has gone.
func TestB80_ExclusiveAccessAllRegistrants(t *testing.T) {
	h := hosts(t, "a", "b", "c")
	a, b, c := h[0], h[1], h[2]
	a.mustOut(saRegister, 0, 0, keyA)
	b.mustOut(saRegister, 0, 0, keyB)
	a.mustOut(saReserve, ExclusiveAccessAllRegistrants, keyA, 0)
	if !a.reads() || !a.writes() || !b.reads() || !b.writes() || c.reads() || c.writes() {
		t.Error("access is not that of registrants alone")
	}
	// A host that registers later has access from then on.
	c.mustOut(saRegisterAndIgnore, 0, 0, keyC)
	if !c.reads() || !c.writes() {
		t.Error("a later registrant has no access")
	}
	c.mustOut(saRegister, 0, keyC, 0)
	if c.reads() || c.writes() {
		t.Error("access without registration")
	}
	// The one that made it leaves.
	a.mustOut(saRegister, 0, keyA, 0)
	if a.reads() || a.writes() || !b.reads() || !b.writes() {
		t.Error("access after the first holder left")
	}
	b.wantAttentions("b")
	if key, kind := a.reservation(); key != 0 || kind != ExclusiveAccessAllRegistrants {
		t.Errorf("key %x, %v", key, kind)
	}
	b.mustOut(saRegister, 0, keyB, 0)
	if _, kind := a.reservation(); kind != noReservation || !a.writes() || !c.writes() {
		t.Errorf("%v is left without registrants", kind)
	}
}

// Registrations belong to the initiator port, which is name and ISID: the next session with both has them, one with
// another ISID does not.
func TestB81_Relogin(t *testing.T) {
	h := hosts(t, "a", "b")
	a, b := h[0], h[1]
	a.mustOut(saRegister, 0, 0, keyA)
	a.mustOut(saReserve, ExclusiveAccess, keyA, 0)
	d, name := a.nexus.device, a.nexus.InitiatorPortName()
	// Reinstatement: the new session is there before the old one has gone.
	again := newInitiator(t, d, name).ready()
	a.nexus.Close()
	if !again.writes() || b.reads() {
		t.Error("the reservation did not stay over the session")
	}
	again.mustOut(saReserve, ExclusiveAccess, keyA, 0)
	again.nexus.Close()
	if b.reads() {
		t.Error("the reservation ended with the session")
	}
	other := newInitiator(t, d, "iqn.2026-12.lab:a,i,0x800000000002").ready()
	if r := other.persistentOut(saReserve, ExclusiveAccess, keyA, 0); r.status != StatusReservationConflict || other.reads() {
		t.Errorf("another ISID: %v", r)
	}
	lu := b.nexus.LookupLUN(0)
	lu.Reset()
	d.Reset(true)
	other.attentions()
	b.attentions()
	if b.reads() || other.reads() {
		t.Error("the reservation ended with a reset")
	}
	if info := lu.Info(); info.ReservedBy != name || info.Reservation != ExclusiveAccess || info.Registrations != 1 {
		t.Errorf("%+v", info)
	}
	// The unit may leave the device and come back.
	d.RemoveLUN(0)
	if err := d.SetLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	again = newInitiator(t, d, name).ready()
	b.attentions()
	if !again.writes() || b.reads() {
		t.Error("the reservation did not stay with the logical unit")
	}
}

// All six types by reserve, release, unregister, clear and preempt, with two hosts that are registered and one that is
// not: who has access, who is told what.
func TestB82_AllTypes(t *testing.T) {
	access := func(i *initiator) string {
		s := ""
		if i.reads() {
			s += "r"
		}
		if i.writes() {
			s += "w"
		}
		return s
	}
	for kind, x := range map[ReservationType]struct {
		registered, other string // access of nexuses that do not hold it
		onRelease         []AdditionalSense
		onUnregister      []AdditionalSense // of the nexus that reserved
		stays             bool              // then
	}{
		WriteExclusive:                 {"r", "r", nil, nil, false},
		ExclusiveAccess:                {"", "", nil, nil, false},
		WriteExclusiveRegistrantsOnly:  {"rw", "r", []AdditionalSense{ReservationsReleased}, []AdditionalSense{ReservationsReleased}, false},
		ExclusiveAccessRegistrantsOnly: {"rw", "", []AdditionalSense{ReservationsReleased}, []AdditionalSense{ReservationsReleased}, false},
		WriteExclusiveAllRegistrants:   {"rw", "r", []AdditionalSense{ReservationsReleased}, nil, true},
		ExclusiveAccessAllRegistrants:  {"rw", "", []AdditionalSense{ReservationsReleased}, nil, true},
	} {
		for end, run := range map[string]func(a, b *initiator) (ua, ub []AdditionalSense, stays bool){
			"release": func(a, _ *initiator) ([]AdditionalSense, []AdditionalSense, bool) {
				a.mustOut(saRelease, kind, keyA, 0)
				return nil, x.onRelease, false
			},
			"unregister": func(a, _ *initiator) ([]AdditionalSense, []AdditionalSense, bool) {
				a.mustOut(saRegister, 0, keyA, 0)
				return nil, x.onUnregister, x.stays
			},
			"clear": func(_, b *initiator) ([]AdditionalSense, []AdditionalSense, bool) {
				b.mustOut(saClear, 0, keyB, 0)
				return []AdditionalSense{ReservationsPreempted}, nil, false
			},
			"preempt": func(_, b *initiator) ([]AdditionalSense, []AdditionalSense, bool) {
				b.mustOut(saPreempt, kind, keyB, keyA)
				return []AdditionalSense{RegistrationsPreempted}, nil, true
			},
		} {
			h := hosts(t, "a", "b", "c")
			a, b, c := h[0], h[1], h[2]
			a.mustOut(saRegister, 0, 0, keyA)
			b.mustOut(saRegister, 0, 0, keyB)
			a.mustOut(saReserve, kind, keyA, 0)
			what := fmt.Sprintf("%v, %s", kind, end)
			if got := [3]string{access(a), access(b), access(c)}; got != [3]string{"rw", x.registered, x.other} {
				t.Errorf("%s: access before %q", what, got)
			}
			ua, ub, stays := run(a, b)
			a.wantAttentions(what+", a", ua...)
			b.wantAttentions(what+", b", ub...)
			c.wantAttentions(what + ", c, not registered")
			want := [3]string{"rw", "rw", "rw"}
			if stays { // b holds it, a is not registered any more
				want = [3]string{x.other, "rw", x.other}
			}
			if got := [3]string{access(a), access(b), access(c)}; got != want {
				t.Errorf("%s: access after %q, want %q", what, got, want)
			}
		}
	}
}

// RESERVE and RELEASE beside persistent reservations: the rules that CRH stands for.
func TestB50_CompatibleReservations(t *testing.T) {
	h := hosts(t, "a", "b", "c")
	a, b, c := h[0], h[1], h[2]
	check := func(what string, i *initiator, want Status) {
		t.Helper()
		for _, cdb := range []string{"16", "56", "17", "57"} {
			if r := i.in(cdb, 0); r.status != want {
				t.Errorf("%s: %s: %v, want %v", what, cdb, r, want)
			}
		}
	}
	a.mustOut(saRegister, 0, 0, keyA)
	b.mustOut(saRegister, 0, 0, keyB)
	check("registered, no reservation", a, StatusReservationConflict)
	check("not registered, no reservation", c, StatusReservationConflict)
	for _, kind := range allReservationTypes {
		a.mustOut(saReserve, kind, keyA, 0)
		check(kind.String()+", holder", a, StatusGood)
		want := StatusReservationConflict
		if kind.shared() {
			want = StatusGood
		}
		check(kind.String()+", registered", b, want)
		check(kind.String()+", not registered", c, StatusReservationConflict)
		if _, now := a.reservation(); now != kind || a.nexus.LookupLUN(0).reservedBy.Load() != nil {
			t.Errorf("%v became %v", kind, now)
		}
		a.mustOut(saRelease, kind, keyA, 0)
		b.attentions()
	}
	a.mustOut(saClear, 0, keyA, 0)
	b.attentions()
	// And the other way round: nothing persistent while RESERVE holds the unit, not even for its holder.
	b.in("16", 0).expect(t, "RESERVE(6)", NoSense, 0)
	for _, i := range h {
		for sa := range 4 {
			if r := i.in(fmt.Sprintf("5e %02x 00 00 00 00 00 00ff 00", sa), 255); r.status != StatusReservationConflict {
				t.Errorf("PERSISTENT RESERVE IN %d: %v", sa, r)
			}
		}
		for _, sa := range []int{saRegister, saReserve, saRelease, saClear, saPreempt, saRegisterAndIgnore} {
			if r := i.persistentOut(sa, 1, 0, keyA); r.status != StatusReservationConflict {
				t.Errorf("PERSISTENT RESERVE OUT %d: %v", sa, r)
			}
		}
	}
	b.in("17", 0).expect(t, "RELEASE(6)", NoSense, 0)
	if len(a.keys()) != 0 {
		t.Errorf("keys %x", a.keys())
	}
}

// The check allocates nothing, also under a reservation of each kind.
func TestReservationCheckAllocs(t *testing.T) {
	for _, kind := range allReservationTypes {
		h := hosts(t, "a", "b")
		h[0].mustOut(saRegister, 0, 0, keyA)
		h[0].mustOut(saReserve, kind, keyA, 0)
		for n, i := range h {
			c := &Command{CDB: cdbOf("28 00 00000000 00 0001 00"), HasIn: true, ExpectedIn: 512}
			if allocs := testing.AllocsPerRun(100, func() { i.nexus.Start(c); c.Release() }); allocs != 0 {
				t.Errorf("%v: nexus %d allocates %v times", kind, n, allocs)
			}
		}
	}
}

// Reservations change while commands run: a host without a registration never gets through to a unit that is always
// under exclusive access of others, and nothing crashes.
func TestPersistentConcurrent(t *testing.T) {
	h := hosts(t, "a", "b", "c", "d", "e")
	h[0].mustOut(saRegister, 0, 0, 1)
	h[1].mustOut(saRegister, 0, 0, 2)
	h[0].mustOut(saReserve, ExclusiveAccessAllRegistrants, 1, 0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	work := func(do func(n int)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					do(n)
				}
			}
		}()
	}
	work(func(n int) { // in and out, the others stay
		key := []uint64{0, 2, 3}[n%3]
		h[1].persistentOut(saRegisterAndIgnore, 0, 0, key)
		if n%2 == 0 {
			h[1].persistentOut(saPreempt, ExclusiveAccessAllRegistrants, key, key)
		}
	})
	work(func(int) { h[2].in("5e 03 00 00 00 00 00 0fff 00", 4095); h[2].in("16", 0) })
	work(func(int) { h[3].writes(); h[3].nexus.LookupLUN(0).Info() })
	for range 3000 {
		if h[4].in("28 00 00000000 00 0001 00", 512).status != StatusReservationConflict {
			t.Error("a host that is not registered reads")
			break
		}
	}
	close(stop)
	wg.Wait()
}
