package scsi

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// reservationModel is what SPC-4 says, written down the plain way, without names, snapshots or locks.
type reservationModel struct {
	keys       map[int]uint64 // of registered nexuses
	kind       ReservationType
	holder     int
	generation uint32
	spc2       int // who holds an SPC-2 reservation, -1
	tell       map[int]map[AdditionalSense]bool
}

func (m *reservationModel) attention(code AdditionalSense, who, by int) {
	if who != by {
		m.tell[who][code] = true
	}
}

func (m *reservationModel) registered(n int, key uint64) bool {
	k, ok := m.keys[n]
	return ok && k == key
}

func (m *reservationModel) holds(n int) bool {
	_, ok := m.keys[n]
	return m.kind != 0 && (m.holder == n || m.kind >= 7) && ok
}

func (m *reservationModel) access(n int, write bool) bool {
	if m.spc2 >= 0 {
		return m.spc2 == n
	}
	_, registered := m.keys[n]
	switch m.kind {
	case 0:
		return true
	case 1:
		return !write || m.holder == n
	case 3:
		return m.holder == n
	case 5, 7:
		return !write || registered
	}
	return registered
}

// out returns GOOD, RESERVATION CONFLICT or CHECK CONDITION.
func (m *reservationModel) out(n, sa int, kind ReservationType, key, serviceKey uint64) Status {
	if m.spc2 >= 0 {
		return StatusReservationConflict
	}
	if sa == saRegister && m.keys[n] != key {
		return StatusReservationConflict
	}
	if sa == saRegister || sa == saRegisterAndIgnore {
		_, was := m.keys[n]
		switch {
		case serviceKey != 0:
			m.keys[n] = serviceKey
		case !was:
			return StatusGood
		default:
			held := m.holds(n)
			delete(m.keys, n)
			if held && (m.kind < 7 || len(m.keys) == 0) {
				for o := range m.keys {
					if m.kind >= 5 {
						m.attention(ReservationsReleased, o, n)
					}
				}
				m.kind = 0
			}
		}
		m.generation++
		return StatusGood
	}
	if !m.registered(n, key) {
		return StatusReservationConflict
	}
	switch sa {
	case saReserve:
		if m.kind == 0 {
			m.kind, m.holder = kind, n
		} else if m.kind != kind || !m.holds(n) {
			return StatusReservationConflict
		}
	case saRelease:
		if !m.holds(n) {
			return StatusGood
		}
		if m.kind != kind {
			return StatusCheckCondition
		}
		for o := range m.keys {
			if kind >= 5 {
				m.attention(ReservationsReleased, o, n)
			}
		}
		m.kind = 0
	case saClear:
		for o := range m.keys {
			m.attention(ReservationsPreempted, o, n)
		}
		m.keys, m.kind = map[int]uint64{}, 0
		m.generation++
	case saPreempt:
		return m.preempt(n, kind, serviceKey)
	}
	return StatusGood
}

func (m *reservationModel) preempt(n int, kind ReservationType, victim uint64) Status {
	all := m.kind >= 7 && victim == 0
	if m.kind != 0 && m.kind < 7 && victim == 0 {
		return StatusCheckCondition
	}
	if all || m.kind != 0 && m.kind < 7 && m.keys[m.holder] == victim {
		for o, k := range m.keys {
			if o == n {
				continue
			}
			if all || k == victim {
				delete(m.keys, o)
				m.attention(RegistrationsPreempted, o, n)
			} else if kind != m.kind {
				m.attention(ReservationsReleased, o, n)
			}
		}
		m.kind, m.holder = kind, n
		m.generation++
		return StatusGood
	}
	found := false
	for o, k := range m.keys {
		if k == victim {
			found = true
			delete(m.keys, o)
			m.attention(RegistrationsPreempted, o, n)
		}
	}
	if !found {
		return StatusReservationConflict
	}
	if len(m.keys) == 0 {
		m.kind = 0
	}
	m.generation++
	return StatusGood
}

// spc2Command is RESERVE(6) or RELEASE(6).
func (m *reservationModel) spc2Command(n int, release bool) Status {
	if len(m.keys) > 0 {
		_, registered := m.keys[n]
		if m.kind != 0 && (m.holds(n) || registered && m.kind >= 5) {
			return StatusGood
		}
		return StatusReservationConflict
	}
	switch {
	case release && m.spc2 == n:
		m.spc2 = -1
	case !release && m.spc2 < 0:
		m.spc2 = n
	case !release && m.spc2 != n:
		return StatusReservationConflict
	}
	return StatusGood
}

// Any sequence of reservation commands, of sessions that end and begin again, and of resets does what the model does:
// the same status, the same keys, reservation and generation, the same unit attentions at the same nexuses, and the same
// access. Two of the nexuses differ by the target port alone.
func TestPersistentModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		first := withStore(t, mustNull(t, 1<<20))
		lu := first.nexus.LookupLUN(0)
		second := NewDevice(DeviceConfig{PortName: "iqn.2026-12.lab.iserd:u,t,0x0001", RelativePortID: 2})
		if err := second.SetLUN(0, lu); err != nil {
			rt.Fatal(err)
		}
		const nexuses = 4
		connect := func(n int) *initiator {
			d := first.nexus.device
			if n == nexuses-1 {
				d = second
			}
			return newInitiator(t, d, fmt.Sprintf("iqn.2026-12.lab:i,i,0x%012x", n%(nexuses-1)))
		}
		m := &reservationModel{keys: map[int]uint64{}, spc2: -1, tell: map[int]map[AdditionalSense]bool{}}
		h := make([]*initiator, nexuses)
		for n := range h {
			h[n] = connect(n)
			h[n].attentions()
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			for n := range h {
				m.tell[n] = map[AdditionalSense]bool{}
			}
			n := rapid.IntRange(0, nexuses-1).Draw(rt, "nexus")
			key := rapid.SampledFrom([]uint64{0, 5, 1<<32 | 5, 1<<63 | 5})
			what, want, got := "", StatusGood, StatusGood
			switch op := rapid.IntRange(0, 19).Draw(rt, "op"); op {
			case 0:
				what, want, got = "RESERVE(6)", m.spc2Command(n, false), h[n].in("16", 0).status
			case 1, 2:
				what, want, got = "RELEASE(6)", m.spc2Command(n, true), h[n].in("17", 0).status
			case 3:
				what = "relogin"
				h[n].nexus.Close()
				h[n] = connect(n)
				h[n].attentions()
				if m.spc2 == n {
					m.spc2 = -1
				}
			case 4:
				what = "reset"
				lu.Reset()
				m.spc2 = -1
				for o := range h {
					m.attention(BusDeviceResetFunctionOccurred, o, -1)
				}
			default:
				sa := rapid.SampledFrom([]int{saRegister, saReserve, saRelease, saClear, saPreempt, saPreempt, saRegisterAndIgnore, saRegisterAndIgnore}).Draw(rt, "service action")
				kind := rapid.SampledFrom(allReservationTypes).Draw(rt, "type")
				mine, service := m.keys[n], key.Draw(rt, "service key")
				if rapid.IntRange(0, 9).Draw(rt, "wrong") == 0 {
					mine = key.Draw(rt, "key")
				}
				if m.kind != 0 && rapid.Bool().Draw(rt, "same type") {
					kind = m.kind
				}
				what = fmt.Sprintf("service action %d, %v, keys %x %x", sa, kind, mine, service)
				want, got = m.out(n, sa, kind, mine, service), h[n].persistentOut(sa, kind, mine, service).status
			}
			if got != want {
				rt.Fatalf("%s by %d: %v, want %v", what, n, got, want)
			}
			compareReservations(rt, m, h, what)
		}
	})
}

func compareReservations(rt *rapid.T, m *reservationModel, h []*initiator, what string) {
	for n, i := range h {
		got := map[AdditionalSense]bool{}
		for _, code := range i.attentions() {
			got[code] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(m.tell[n]) {
			rt.Fatalf("%s: nexus %d has unit attentions %v, want %v", what, n, got, m.tell[n])
		}
		if i.reads() != m.access(n, false) || i.writes() != m.access(n, true) {
			rt.Fatalf("%s: nexus %d reads %v and writes %v", what, n, i.reads(), i.writes())
		}
	}
	if m.spc2 >= 0 {
		if r := h[m.spc2].in("5e 00 00 00 00 00 00 00ff 00", 255); r.status != StatusReservationConflict {
			rt.Fatalf("%s: PERSISTENT RESERVE IN beside an SPC-2 reservation: %v", what, r)
		}
		return
	}
	count := map[uint64]int{}
	for _, k := range m.keys {
		count[k]++
	}
	for _, k := range h[0].keys() {
		count[k]--
	}
	for k, n := range count {
		if n != 0 {
			rt.Fatalf("%s: key %x is there %d times too few", what, k, n)
		}
	}
	if generation, _ := h[1].persistentIn(saReadKeys); generation != m.generation {
		rt.Fatalf("%s: generation %d, want %d", what, generation, m.generation)
	}
	var wantKey uint64
	if m.kind != 0 && m.kind < 7 {
		wantKey = m.keys[m.holder]
	}
	if key, kind := h[2].reservation(); kind != m.kind || key != wantKey {
		rt.Fatalf("%s: key %x, %v; want %x, %v", what, key, kind, wantKey, m.kind)
	}
}
