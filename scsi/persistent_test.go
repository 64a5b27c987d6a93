package scsi

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

var allReservationTypes = []ReservationType{WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrantsOnly, ExclusiveAccessRegistrantsOnly,
	WriteExclusiveAllRegistrants, ExclusiveAccessAllRegistrants}

// persistentOut sends PERSISTENT RESERVE OUT.
func (i *initiator) persistentOut(sa int, kind ReservationType, key, serviceKey uint64) result {
	i.t.Helper()
	return i.persistentFlags(sa, kind, key, serviceKey, 0)
}

func (i *initiator) persistentFlags(sa int, kind ReservationType, key, serviceKey uint64, flags byte) result {
	i.t.Helper()
	list := binary.BigEndian.AppendUint64(nil, key)
	list = binary.BigEndian.AppendUint64(list, serviceKey)
	list = append(list, 0, 0, 0, 0, flags, 0, 0, 0)
	return i.run(0, []byte{0x5F, byte(sa), byte(kind), 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0}, list, 24)
}

// persistentIn sends PERSISTENT RESERVE IN, which must end well, and checks the length in the answer.
func (i *initiator) persistentIn(sa int) (generation uint32, rest []byte) {
	i.t.Helper()
	b := i.mustGood(fmt.Sprintf("5e %02x 00 00 00 00 00 ffff 00", sa), 65535)
	if int(binary.BigEndian.Uint32(b[4:])) != len(b)-8 {
		i.t.Fatalf("PERSISTENT RESERVE IN %d: %d bytes, additional length %x", sa, len(b), b[4:8])
	}
	return binary.BigEndian.Uint32(b), b[8:]
}

func (i *initiator) keys() []uint64 {
	i.t.Helper()
	_, b := i.persistentIn(saReadKeys)
	var keys []uint64
	for ; len(b) > 0; b = b[8:] {
		keys = append(keys, binary.BigEndian.Uint64(b))
	}
	return keys
}

// reservation is the key and the type, 0 and 0 if there is none.
func (i *initiator) reservation() (key uint64, kind ReservationType) {
	i.t.Helper()
	_, b := i.persistentIn(saReadReservation)
	if len(b) == 0 {
		return 0, noReservation
	}
	if len(b) != 16 || b[13]&0xF0 != 0 {
		i.t.Fatalf("READ RESERVATION: %x", b)
	}
	return binary.BigEndian.Uint64(b), ReservationType(b[13])
}

func (i *initiator) mustOut(sa int, kind ReservationType, key, serviceKey uint64) {
	i.t.Helper()
	if r := i.persistentOut(sa, kind, key, serviceKey); r.status != StatusGood {
		i.t.Fatalf("PERSISTENT RESERVE OUT %d, type %d, keys %x %x: %v", sa, kind, key, serviceKey, r)
	}
}

// attentions are the unit attentions that wait, which are thereby reported.
func (i *initiator) attentions() []AdditionalSense {
	i.t.Helper()
	var list []AdditionalSense
	for range 2 * maxAttentions {
		s := i.mustGood("03 00 00 00 12 00", 18)
		if s[2] != byte(UnitAttention) {
			return list
		}
		list = append(list, AdditionalSense(binary.BigEndian.Uint16(s[12:])))
	}
	i.t.Fatal("unit attentions without end")
	return nil
}

func (i *initiator) wantAttentions(what string, want ...AdditionalSense) {
	i.t.Helper()
	if got := i.attentions(); fmt.Sprint(got) != fmt.Sprint(want) {
		i.t.Errorf("%s: unit attentions %v, want %v", what, got, want)
	}
}

func (i *initiator) reads() bool {
	return i.in("28 00 00000000 00 0001 00", 512).status != StatusReservationConflict
}

func (i *initiator) writes() bool {
	return i.run(0, cdbOf("2a 00 00000000 00 0001 00"), make([]byte, 512), 512).status != StatusReservationConflict
}

// hosts are initiators that share a logical unit.
func hosts(t testing.TB, names ...string) []*initiator {
	t.Helper()
	first := withStore(t, mustRAM(t, 1<<20))
	list := []*initiator{}
	for _, name := range names {
		list = append(list, newInitiator(t, first.nexus.device, "iqn.2026-12.lab:"+name+",i,0x800000000001").ready())
	}
	return list
}

const (
	keyA uint64 = 0xA000_0001_0000_0007
	keyB uint64 = 0xB000_0002_0000_0007 // the same low half
	keyC uint64 = 0xC000_0003_0000_0007
)

func TestPersistentRefusals(t *testing.T) {
	h := hosts(t, "a", "b")
	a, b := h[0], h[1]
	a.mustOut(saRegister, 0, 0, keyA)
	out := make([]byte, 64)
	binary.BigEndian.PutUint64(out, keyA)
	for _, c := range []struct {
		name, cdb string
		n         uint32
		code      AdditionalSense
	}{
		{"no list", "5f 00 00 00 00 00000000 00", 0, ParameterListLengthError},
		{"a list of 23", "5f 00 00 00 00 00000017 00", 23, ParameterListLengthError},
		{"a list of 25", "5f 06 00 00 00 00000019 00", 25, ParameterListLengthError},
		{"a list of 16 MiB", "5f 00 00 00 00 01000018 00", 64, ParameterListLengthError},
		{"the length in the wrong half", "5f 00 00 00 00 00180000 00", 64, ParameterListLengthError},
		{"less data than the list", "5f 00 00 00 00 00000018 00", 23, ParameterListLengthError},
		{"scope element", "5f 01 21 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"scope extent", "5f 01 11 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"type 0", "5f 01 00 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"type 2, read exclusive", "5f 01 02 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"type 4, shared access", "5f 04 04 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"type 9", "5f 04 09 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"type F", "5f 01 0f 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"PREEMPT AND ABORT without the means", "5f 05 01 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"REGISTER AND MOVE", "5f 07 00 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"REPLACE LOST RESERVATION", "5f 08 00 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"service action 1F", "5f 1f 00 00 00 00000018 00", 24, InvalidFieldInCDB},
		{"PREEMPT without a reservation key", "5f 03 00 00 00 00000000 00", 0, ParameterListLengthError},
	} {
		r := a.run(0, cdbOf(c.cdb), out[:c.n], c.n)
		r.expect(t, c.name, IllegalRequest, c.code)
	}
	a.in("5f 00 00 00 00 00000018 00", 24).expect(t, "the R bit", IllegalRequest, ParameterListLengthError)
	for _, flags := range []byte{aptpl, allTgPt, specIPT, aptpl | allTgPt | specIPT} {
		for _, sa := range []int{saRegister, saRegisterAndIgnore} {
			r := a.persistentFlags(sa, 0, keyA, keyB, flags)
			r.expect(t, fmt.Sprintf("service action %d, flags %02x", sa, flags), IllegalRequest, InvalidFieldInParameterList)
			if len(r.sense) != 18 || r.sense[15] != 0x80 || r.sense[17] != 20 {
				t.Errorf("sense data %x", r.sense)
			}
		}
	}
	for sa := 4; sa < 32; sa++ {
		a.in(fmt.Sprintf("5e %02x 00 00 00 00 00 00ff 00", sa), 255).expect(t, fmt.Sprintf("PERSISTENT RESERVE IN %d", sa), IllegalRequest, InvalidFieldInCDB)
	}
	// Wrong keys and nexuses that are not registered.
	for sa := saRegister; sa <= saPreempt; sa++ {
		if r := a.persistentOut(sa, 1, keyB, keyC); r.status != StatusReservationConflict {
			t.Errorf("service action %d with a wrong key: %v", sa, r)
		}
		if r := b.persistentOut(sa, 1, keyA, keyA); r.status != StatusReservationConflict {
			t.Errorf("service action %d, not registered: %v", sa, r)
		}
		if r := b.persistentOut(sa, 1, 0, 0); sa != saRegister && r.status != StatusReservationConflict {
			t.Errorf("service action %d, not registered, key 0: %v", sa, r)
		}
	}
	// None of this was anything.
	if generation, _ := a.persistentIn(saReadKeys); generation != 1 || fmt.Sprintf("%x", a.keys()) != fmt.Sprintf("%x", []uint64{keyA}) {
		t.Errorf("generation %d, keys %x", generation, a.keys())
	}
	a.wantAttentions("a")
	b.wantAttentions("b")
}

func TestPersistentRegister(t *testing.T) {
	h := hosts(t, "a", "b")
	a, b := h[0], h[1]
	for _, c := range []struct {
		name            string
		who             *initiator
		sa              int
		key, serviceKey uint64
		status          Status
		generation      uint32
		keys            []uint64
	}{
		{"nothing to take away", a, saRegister, 0, 0, StatusGood, 0, nil},
		{"nothing to take away, ignoring", a, saRegisterAndIgnore, keyC, 0, StatusGood, 0, nil},
		{"a key that is not there", a, saRegister, keyA, keyA, StatusReservationConflict, 0, nil},
		{"new", a, saRegister, 0, keyA, StatusGood, 1, []uint64{keyA}},
		{"again as if new", a, saRegister, 0, keyA, StatusReservationConflict, 1, []uint64{keyA}},
		{"low half of the key", a, saRegister, keyB, keyC, StatusReservationConflict, 1, []uint64{keyA}},
		{"another", b, saRegisterAndIgnore, keyC, keyB, StatusGood, 2, []uint64{keyA, keyB}},
		{"a new key", a, saRegister, keyA, keyC, StatusGood, 3, []uint64{keyC, keyB}},
		{"the old key", a, saRegister, keyA, 0, StatusReservationConflict, 3, []uint64{keyC, keyB}},
		{"any key", a, saRegisterAndIgnore, 0, keyB, StatusGood, 4, []uint64{keyB, keyB}},
		{"unregister", a, saRegister, keyB, 0, StatusGood, 5, []uint64{keyB}},
		{"unregister, ignoring", b, saRegisterAndIgnore, 0, 0, StatusGood, 6, nil},
	} {
		if r := c.who.persistentOut(c.sa, 0, c.key, c.serviceKey); r.status != c.status {
			t.Errorf("%s: %v", c.name, r)
		}
		if generation, _ := a.persistentIn(saReadKeys); generation != c.generation || fmt.Sprint(b.keys()) != fmt.Sprint(c.keys) {
			t.Errorf("%s: generation %d, keys %x", c.name, generation, b.keys())
		}
	}
	a.wantAttentions("a")
	b.wantAttentions("b")
}

func TestPersistentCapabilities(t *testing.T) {
	h := hosts(t, "a")
	if got := hex.EncodeToString(h[0].mustGood("5e 02 00 00 00 00 00 00ff 00", 255)); got != "00081090ea010000" {
		t.Errorf("REPORT CAPABILITIES: %s", got)
	}
	if got := h[0].mustGood("5e 02 00 00 00 00 00 0003 00", 255); len(got) != 3 {
		t.Errorf("cut: %x", got)
	}
}

func TestPersistentFullStatus(t *testing.T) {
	h := hosts(t, "a", "host")
	plain := newInitiator(t, h[0].nexus.device, "iqn.x").ready()
	h[0].mustOut(saRegister, 0, 0, keyA)
	plain.mustOut(saRegister, 0, 0, keyC)
	h[1].mustOut(saRegister, 0, 0, keyB)
	h[1].mustOut(saReserve, ExclusiveAccess, keyB, 0)
	transport := func(first, name string, length int) string {
		return fmt.Sprintf("%s00%04x%s%s", first, length, hexText(name), strings.Repeat("00", length-len(name)))
	}
	descriptor := func(key uint64, holder, kind int, id string) string {
		return fmt.Sprintf("%016x00000000%02x%02x000000000001%08x%s", key, holder, kind, len(id)/2, id)
	}
	a := transport("45", "iqn.2026-12.lab:a,i,0x800000000001", 36)
	host := transport("45", "iqn.2026-12.lab:host,i,0x800000000001", 40)
	bare := transport("05", "iqn.x", 20)
	want := descriptor(keyA, 0, 0, a) + descriptor(keyC, 0, 0, bare) + descriptor(keyB, 1, 3, host)
	if generation, got := h[0].persistentIn(saReadFullStatus); generation != 3 || hex.EncodeToString(got) != want {
		t.Errorf("generation %d\n got %x\nwant %s", generation, got, want)
	}
	h[1].mustOut(saPreempt, WriteExclusiveAllRegistrants, keyB, keyB)
	want = descriptor(keyA, 1, 7, a) + descriptor(keyC, 1, 7, bare) + descriptor(keyB, 1, 7, host)
	h[0].attentions()
	full := h[0].mustGood("5e 03 00 00 00 00 00 ffff 00", 65535)
	if hex.EncodeToString(full[8:]) != want {
		t.Errorf("\n got %x\nwant %s", full[8:], want)
	}
	// Allocation lengths cut the transfer and not the length field.
	for n := range len(full) + 3 {
		got := h[0].mustGood(fmt.Sprintf("5e 03 00 00 00 00 00 %04x 00", n), uint32(n))
		if !bytes.Equal(got, full[:min(n, len(full))]) {
			t.Fatalf("cut to %d: %x", n, got)
		}
	}
}

func TestPersistentRelease(t *testing.T) {
	for _, kind := range allReservationTypes {
		h := hosts(t, "a", "b", "c")
		a, b, c := h[0], h[1], h[2]
		a.mustOut(saRegister, 0, 0, keyA)
		b.mustOut(saRegister, 0, 0, keyB)
		a.mustOut(saRelease, kind, keyA, 0) // nothing is reserved
		a.mustOut(saReserve, kind, keyA, 0)
		a.mustOut(saReserve, kind, keyA, 0) // again
		for _, other := range allReservationTypes {
			if other == kind {
				continue
			}
			if r := a.persistentOut(saReserve, other, keyA, 0); r.status != StatusReservationConflict {
				t.Errorf("%v: RESERVE as %v: %v", kind, other, r)
			}
			a.persistentOut(saRelease, other, keyA, 0).expect(t, fmt.Sprintf("%v: RELEASE of %v", kind, other), IllegalRequest, InvalidReleaseOfPersistentReservation)
		}
		a.persistentOut(saRelease, kind|0x10, keyA, 0).expect(t, "RELEASE of another scope", IllegalRequest, InvalidReleaseOfPersistentReservation)
		if r := c.persistentOut(saRelease, kind, 0, 0); r.status != StatusReservationConflict {
			t.Errorf("%v: RELEASE, not registered: %v", kind, r)
		}
		r := b.persistentOut(saReserve, kind, keyB, 0)
		if want := kind.allHold(); (r.status == StatusGood) != want {
			t.Errorf("%v: RESERVE by another: %v", kind, r)
		}
		b.mustOut(saRelease, kind, keyB, 0)
		key, now := c.reservation()
		switch {
		case kind.allHold(): // everyone holds it, so b released it
			if now != noReservation {
				t.Errorf("%v: released by another holder, and is there", kind)
			}
			a.wantAttentions(kind.String(), ReservationsReleased)
		case now != kind || key != keyA:
			t.Errorf("%v: key %x, type %v", kind, key, now)
		default:
			a.mustOut(saRelease, kind, keyA, 0)
			if _, now := c.reservation(); now != noReservation {
				t.Errorf("%v: not released", kind)
			}
			if kind.shared() {
				b.wantAttentions(kind.String(), ReservationsReleased)
			}
		}
		a.wantAttentions(kind.String() + ": a")
		b.wantAttentions(kind.String() + ": b")
		c.wantAttentions(kind.String() + ": c")
		if generation, _ := a.persistentIn(saReadKeys); generation != 2 {
			t.Errorf("%v: generation %d", kind, generation)
		}
	}
}

func TestPersistentClear(t *testing.T) {
	h := hosts(t, "a", "b", "c")
	a, b, c := h[0], h[1], h[2]
	a.mustOut(saRegister, 0, 0, keyA)
	b.mustOut(saRegister, 0, 0, keyB)
	a.mustOut(saReserve, ExclusiveAccess, keyA, 0)
	b.mustOut(saClear, 0, keyB, 0) // it need not hold it
	a.wantAttentions("a", ReservationsPreempted)
	b.wantAttentions("b")
	c.wantAttentions("c")
	if _, kind := a.reservation(); kind != noReservation || len(a.keys()) != 0 || !c.writes() {
		t.Errorf("%v is left, keys %x", kind, a.keys())
	}
	if generation, _ := a.persistentIn(saReadKeys); generation != 3 {
		t.Errorf("generation %d", generation)
	}
}

func TestPersistentPreempt(t *testing.T) {
	type steps func(a, b, c *initiator) result
	conflict := func(r result) bool { return r.status == StatusReservationConflict }
	good := func(r result) bool { return r.status == StatusGood }
	invalid := func(r result) bool { return r.code == InvalidFieldInParameterList && r.key == IllegalRequest }
	some := func(list ...AdditionalSense) []AdditionalSense { return list }
	for _, x := range []struct {
		name       string
		held       ReservationType // by a
		do         steps
		want       func(result) bool
		keys       []uint64
		key        uint64
		kind       ReservationType
		ua, ub, uc []AdditionalSense
	}{
		{"the reservation, same type", WriteExclusiveRegistrantsOnly, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, WriteExclusiveRegistrantsOnly, keyB, keyA)
		}, good, []uint64{keyB, keyC}, keyB, WriteExclusiveRegistrantsOnly, some(RegistrationsPreempted), nil, nil},
		{"the reservation, another type", WriteExclusive, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, keyA)
		}, good, []uint64{keyB, keyC}, keyB, ExclusiveAccess, some(RegistrationsPreempted), nil, some(ReservationsReleased)},
		{"a registration", ExclusiveAccess, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, WriteExclusive, keyB, keyC)
		}, good, []uint64{keyA, keyB}, keyA, ExclusiveAccess, nil, nil, some(RegistrationsPreempted)},
		{"itself, to change the type", ExclusiveAccess, func(a, _, _ *initiator) result {
			return a.persistentOut(saPreempt, WriteExclusiveAllRegistrants, keyA, keyA)
		}, good, []uint64{keyA, keyB, keyC}, 0, WriteExclusiveAllRegistrants, nil, some(ReservationsReleased), some(ReservationsReleased)},
		{"its own registration", ExclusiveAccess, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, keyB)
		}, good, []uint64{keyA, keyC}, keyA, ExclusiveAccess, nil, nil, nil},
		{"key 0", ExclusiveAccess, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, 0)
		}, invalid, []uint64{keyA, keyB, keyC}, keyA, ExclusiveAccess, nil, nil, nil},
		{"a key that nobody has", ExclusiveAccess, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, 7)
		}, conflict, []uint64{keyA, keyB, keyC}, keyA, ExclusiveAccess, nil, nil, nil},
		{"without a reservation", noReservation, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, keyA)
		}, good, []uint64{keyB, keyC}, 0, noReservation, some(RegistrationsPreempted), nil, nil},
		{"key 0 without a reservation", noReservation, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, 0)
		}, conflict, []uint64{keyA, keyB, keyC}, 0, noReservation, nil, nil, nil},
		{"all registrants, key 0", WriteExclusiveAllRegistrants, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, ExclusiveAccess, keyB, 0)
		}, good, []uint64{keyB}, keyB, ExclusiveAccess, some(RegistrationsPreempted), nil, some(RegistrationsPreempted)},
		{"all registrants, one of them", ExclusiveAccessAllRegistrants, func(_, b, _ *initiator) result {
			return b.persistentOut(saPreempt, WriteExclusive, keyB, keyA)
		}, good, []uint64{keyB, keyC}, 0, ExclusiveAccessAllRegistrants, some(RegistrationsPreempted), nil, nil},
	} {
		h := hosts(t, "a", "b", "c")
		for n, key := range []uint64{keyA, keyB, keyC} {
			h[n].mustOut(saRegister, 0, 0, key)
		}
		if x.held != noReservation {
			h[0].mustOut(saReserve, x.held, keyA, 0)
		}
		r := x.do(h[0], h[1], h[2])
		if !x.want(r) {
			t.Errorf("%s: %v", x.name, r)
		}
		for n, want := range [][]AdditionalSense{x.ua, x.ub, x.uc} {
			h[n].wantAttentions(fmt.Sprintf("%s: nexus %d", x.name, n), want...)
		}
		if key, kind := h[0].reservation(); key != x.key || kind != x.kind {
			t.Errorf("%s: key %x, type %v", x.name, key, kind)
		}
		if got := h[0].keys(); fmt.Sprint(got) != fmt.Sprint(x.keys) {
			t.Errorf("%s: keys %x", x.name, got)
		}
		generation, _ := h[0].persistentIn(saReadKeys)
		if want := uint32(3); r.status == StatusGood && generation != want+1 || r.status != StatusGood && generation != want {
			t.Errorf("%s: generation %d", x.name, generation)
		}
	}
}

// Several nexuses under one key, the one that preempts too: it stays registered when it takes the reservation over.
func TestPersistentPreemptSharedKey(t *testing.T) {
	h := hosts(t, "a", "b", "c")
	for _, i := range h {
		i.mustOut(saRegister, 0, 0, keyA)
	}
	h[0].mustOut(saReserve, ExclusiveAccessRegistrantsOnly, keyA, 0)
	h[1].mustOut(saPreempt, ExclusiveAccessRegistrantsOnly, keyA, keyA)
	h[0].wantAttentions("a", RegistrationsPreempted)
	h[1].wantAttentions("b")
	h[2].wantAttentions("c", RegistrationsPreempted)
	if h[0].reads() || !h[1].writes() || h[2].reads() || len(h[1].keys()) != 1 {
		t.Errorf("keys %x", h[1].keys())
	}
	// With all registrants under one key, preempting that takes the last registration and the reservation with it.
	h[1].mustOut(saPreempt, WriteExclusiveAllRegistrants, keyA, keyA)
	h[1].mustOut(saPreempt, WriteExclusiveAllRegistrants, keyA, keyA)
	if _, kind := h[0].reservation(); kind != noReservation || len(h[0].keys()) != 0 || !h[0].writes() {
		t.Errorf("%v is left, keys %x", kind, h[0].keys())
	}
}

func TestPersistentLimit(t *testing.T) {
	a := hosts(t, "a")[0]
	s := &a.nexus.LookupLUN(0).persistent
	for n := range maxRegistrants {
		s.registrants = append(s.registrants, registrant{nexusName{fmt.Sprint("i", n), testPort}, 1, uint64(n) + 1})
	}
	a.persistentOut(saRegister, 0, 0, keyA).expect(t, "one too many", IllegalRequest, InsufficientRegistrationResources)
	if n := len(a.keys()); n != maxRegistrants {
		t.Errorf("%d keys", n)
	}
	// The full status is longer than an allocation length can be: the length field still says all of it.
	b := a.mustGood("5e 03 00 00 00 00 00 ffff 00", 65535)
	if len(b) > 65535 || int(binary.BigEndian.Uint32(b[4:])) != maxRegistrants*(24+4+len(nameString("i1000"+strings.Repeat(" ", 12)))) {
		t.Errorf("%d bytes of %d", len(b), binary.BigEndian.Uint32(b[4:]))
	}
	s.registrants[7].nexusName = a.nexus.name
	a.mustOut(saClear, 0, 8, 0)
	a.mustOut(saRegister, 0, 0, keyA)
}

func TestPreemptAndAbort(t *testing.T) {
	type abort struct {
		n    *ITNexus
		done func()
	}
	var aborts []abort
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1, AbortTasks: func(n *ITNexus, _ *LogicalUnit, done func()) {
		aborts = append(aborts, abort{n, done})
	}})
	lu := mustUnit(t, LogicalUnitConfig{Store: mustRAM(t, 1<<20)})
	if err := d.SetLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	a, b, c := newInitiator(t, d, "a").ready(), newInitiator(t, d, "b").ready(), newInitiator(t, d, "c").ready()
	for n, i := range []*initiator{a, b, c} {
		i.mustOut(saRegister, 0, 0, uint64(n+1))
	}
	a.mustOut(saReserve, ExclusiveAccessAllRegistrants, 1, 0)
	if r := a.persistentOut(saPreemptAndAbort, ExclusiveAccess, 9, 0); r.status != StatusReservationConflict || len(aborts) != 0 {
		t.Fatalf("a wrong key: %v, %d aborts", r, len(aborts))
	}
	m := &a.cmd
	m.LUN, m.CDB, m.HasIn, m.HasOut, m.ExpectedOut = 0, cdbOf("5f 05 03 00 00 00000018 00"), false, true, 24
	list := make([]byte, 24)
	list[7] = 1
	if next := a.nexus.Start(m); next != NextDataOut {
		t.Fatal(next)
	}
	m.Data = [][]byte{list[:5], list[5:]}
	if next := m.Execute(); next != NextPending || len(aborts) != 2 {
		t.Fatalf("%v, %d aborts", next, len(aborts))
	}
	for n, x := range aborts {
		if x.n == a.nexus {
			t.Error("aborts its own tasks")
		}
		select {
		case <-a.done:
			t.Fatalf("done after %d of 2", n)
		default:
		}
		x.done()
	}
	<-a.done
	if m.Status != StatusGood {
		t.Errorf("%v", m.Status)
	}
	m.Release()
	b.wantAttentions("b", RegistrationsPreempted)
	c.wantAttentions("c", RegistrationsPreempted)
	if b.reads() || !a.writes() {
		t.Error("access after PREEMPT AND ABORT")
	}
	// Who has no session has no tasks; tasks that end at once need no wait.
	aborts = nil
	b.mustOut(saRegister, 0, 0, 2)
	b.nexus.Close()
	a.mustOut(saPreemptAndAbort, ExclusiveAccess, 1, 2)
	if len(aborts) != 0 {
		t.Errorf("%d aborts", len(aborts))
	}
	if one := a.mustGood("a3 0c 02 5f 0005 000000ff 00 00", 255); one[1]&7 != 3 {
		t.Errorf("REPORT SUPPORTED OPERATION CODES: %x", one)
	}
}

// Which commands conflict, for each command that there is: with an SPC-2 reservation, and with write exclusive and
// exclusive access reservations of others. The tables of SPC-4 and SBC-3; those of SPC-2 for the first.
func TestPersistentConflicts(t *testing.T) {
	const s, w, x = "S", "W", "X"
	rules := map[string]string{
		"TEST UNIT READY": s, "REQUEST SENSE": "", "INQUIRY": "", "REPORT LUNS": "",
		"READ(6)": s + x, "READ(10)": s + x, "READ(12)": s + x, "READ(16)": s + x,
		"VERIFY(10)": s + x, "VERIFY(12)": s + x, "VERIFY(16)": s + x,
		"WRITE(6)": s + w + x, "WRITE(10)": s + w + x, "WRITE(12)": s + w + x, "WRITE(16)": s + w + x,
		"MODE SENSE(6)": s + x, "MODE SENSE(10)": s + x,
		"SYNCHRONIZE CACHE(10)": s + w + x, "SYNCHRONIZE CACHE(16)": s + w + x, "START STOP UNIT": s + w + x,
		"READ CAPACITY(10)": s, "READ CAPACITY(16)": s, "REPORT SUPPORTED OPERATION CODES": x,
		"RESERVE(6)": s + w + x, "RESERVE(10)": s + w + x, "RELEASE(6)": w + x, "RELEASE(10)": w + x,
		"PERSISTENT RESERVE IN, READ KEYS": s, "PERSISTENT RESERVE IN, READ RESERVATION": s,
		"PERSISTENT RESERVE IN, REPORT CAPABILITIES": s, "PERSISTENT RESERVE IN, READ FULL STATUS": s,
	}
	try := func(i *initiator, op opcode) bool {
		cdb := make([]byte, 16)
		cdb[0] = byte(op.code)
		if op.serviceAction != noServiceAction {
			cdb[1] = byte(op.serviceAction)
		}
		return i.run(0, cdb, nil, 0).status == StatusReservationConflict
	}
	check := func(what, letter string, i *initiator, never bool) {
		for _, op := range standardCommands().rows {
			rule, ok := rules[op.name]
			if op.code == OpPersistentReserveOut {
				continue // has its own tables
			}
			if !ok {
				t.Errorf("%s has no rule", op.name)
			}
			want := strings.Contains(rule, letter) && !never
			if got := try(i, op); got != want {
				t.Errorf("%s: %s conflicts: %v, want %v", what, op.name, got, want)
			}
		}
	}
	h := hosts(t, "a", "b")
	a, b := h[0], h[1]
	a.in("16", 0).expect(t, "RESERVE(6)", NoSense, 0)
	check("RESERVE(6)", s, b, false)
	a.in("17", 0).expect(t, "RELEASE(6)", NoSense, 0)
	for _, kind := range allReservationTypes {
		a.mustOut(saRegister, 0, 0, keyA)
		a.mustOut(saReserve, kind, keyA, 0)
		letter := w
		if kind.exclusive() {
			letter = x
		}
		check(kind.String()+", not registered", letter, b, false)
		check(kind.String()+", the holder", letter, a, true)
		if (b.in("1b 00 00 00 01 00", 0).status == StatusReservationConflict) || b.in("1b 00 00 00 00 00", 0).status != StatusReservationConflict ||
			b.in("1b 00 00 00 11 00", 0).status != StatusReservationConflict {
			t.Errorf("%v: START STOP UNIT", kind)
		}
		b.mustOut(saRegister, 0, 0, keyB)
		check(kind.String()+", registered", letter, b, kind.shared())
		a.mustOut(saClear, 0, keyA, 0)
		b.attentions()
	}
}
