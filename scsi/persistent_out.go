package scsi

import (
	"encoding/binary"
	"sync/atomic"
)

// persistentList is the parameter list of PERSISTENT RESERVE OUT.
type persistentList struct {
	key        uint64 // RESERVATION KEY: that of the nexus that asks
	serviceKey uint64 // SERVICE ACTION RESERVATION KEY
	flags      uint8
}

// Flags of the parameter list, and where they are.
const (
	specIPT          = 0x08
	allTgPt          = 0x04
	aptpl            = 0x01
	persistentFlagAt = 20
)

func decodePersistentList(b *[persistentListLength]byte) persistentList {
	return persistentList{
		key:        binary.BigEndian.Uint64(b[:]),
		serviceKey: binary.BigEndian.Uint64(b[8:]),
		flags:      b[persistentFlagAt],
	}
}

// startPersistentOut checks the CDB and asks for the parameter list. No service action here takes one of another length:
// SPEC_I_PT, which does, is not supported.
func startPersistentOut(c *Command) Next {
	if usesType(c.op.serviceAction) {
		if c.CDB[2]&reservationScopeMask != 0 || !ReservationType(c.CDB[2]&reservationTypeMask).supported() {
			return c.invalidField(2)
		}
	}
	if be32(c.CDB[5:]) != persistentListLength || !c.HasOut || c.ExpectedOut < persistentListLength {
		return c.Fail(IllegalRequest, ParameterListLengthError)
	}
	c.needOut = persistentListLength
	return c.askDataOut()
}

// usesType: RESERVE and PREEMPT make a reservation of the type in the CDB. RELEASE compares it with what is there.
func usesType(serviceAction int) bool {
	return serviceAction == saReserve || serviceAction == saPreempt || serviceAction == saPreemptAndAbort
}

// persistentOut runs a service action under the lock.
func persistentOut(do func(c *Command, s *persistent, list persistentList) Next) func(*Command) Next {
	return func(c *Command) Next {
		var b [persistentListLength]byte
		n := 0
		for _, piece := range c.Data {
			n += copy(b[n:], piece)
		}
		if n < len(b) {
			return c.Fail(IllegalRequest, ParameterListLengthError)
		}
		s := &c.LU.persistent
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.LU.reservedBy.Load() != nil {
			// SPC-2, as for PERSISTENT RESERVE IN.
			return c.FailStatus(StatusReservationConflict)
		}
		return do(c, s, decodePersistentList(&b))
	}
}

// registeredLocked ends the command if its nexus is not registered with the key that it names.
func (c *Command) registeredLocked(s *persistent, list persistentList) bool {
	if i := s.findLocked(c.nexus.name); i >= 0 && s.registrants[i].key == list.key {
		return true
	}
	c.FailStatus(StatusReservationConflict)
	return false
}

// registerAs is REGISTER, and REGISTER AND IGNORE EXISTING KEY if ignore is set.
func registerAs(ignore bool) func(*Command, *persistent, persistentList) Next {
	return func(c *Command, s *persistent, list persistentList) Next {
		name := c.nexus.name
		at := s.findLocked(name)
		if !ignore {
			var existing uint64 // 0 if not registered
			if at >= 0 {
				existing = s.registrants[at].key
			}
			if list.key != existing {
				return c.FailStatus(StatusReservationConflict)
			}
		}
		if list.flags&(specIPT|allTgPt|aptpl) != 0 {
			return c.invalidParameter(persistentFlagAt)
		}
		switch {
		case at < 0 && list.serviceKey == 0:
			return c.good() // nothing to take away
		case at < 0 && len(s.registrants) >= maxRegistrants:
			return c.Fail(IllegalRequest, InsufficientRegistrationResources)
		case at < 0:
			s.registrants = append(s.registrants, registrant{name, c.nexus.device.cfg.RelativePortID, list.serviceKey})
			s.refreshLocked()
		case list.serviceKey == 0:
			s.unregisterLocked(c.LU, name)
		default:
			s.registrants[at].key = list.serviceKey
		}
		s.generation++
		return c.good()
	}
}

// unregisterLocked takes a registration away. What the nexus alone held goes with it, and where others lose access by
// that, they are told.
func (s *persistent) unregisterLocked(lu *LogicalUnit, name nexusName) {
	r := s.reservation.Load()
	s.removeLocked(func(m registrant) bool { return m.nexusName == name })
	if r == nil {
		return
	}
	if r.holder != name || r.kind.allHold() {
		s.refreshLocked()
		return
	}
	s.reservation.Store(nil)
	if r.kind.shared() {
		lu.tell(ReservationsReleased, s.namesLocked(), name)
	}
}

func reservePersistent(c *Command, s *persistent, list persistentList) Next {
	if !c.registeredLocked(s, list) {
		return NextDone
	}
	kind := ReservationType(c.CDB[2] & reservationTypeMask)
	if r := s.reservation.Load(); r != nil {
		// The same again by a holder is no error, and no change.
		if r.kind != kind || !s.holdsLocked(c.nexus.name) {
			return c.FailStatus(StatusReservationConflict)
		}
		return c.good()
	}
	s.setLocked(kind, c.nexus.name)
	return c.good()
}

func releasePersistent(c *Command, s *persistent, list persistentList) Next {
	if !c.registeredLocked(s, list) {
		return NextDone
	}
	if !s.holdsLocked(c.nexus.name) {
		return c.good()
	}
	r := s.reservation.Load()
	if c.CDB[2] != uint8(r.kind) { // the scope is 0
		return c.Fail(IllegalRequest, InvalidReleaseOfPersistentReservation)
	}
	s.reservation.Store(nil)
	if r.kind.shared() {
		c.LU.tell(ReservationsReleased, s.namesLocked(), c.nexus.name)
	}
	return c.good()
}

func clearPersistent(c *Command, s *persistent, list persistentList) Next {
	if !c.registeredLocked(s, list) {
		return NextDone
	}
	names := s.namesLocked()
	s.reservation.Store(nil)
	s.registrants = nil
	s.generation++
	c.LU.tell(ReservationsPreempted, names, c.nexus.name)
	return c.good()
}

func preempt(c *Command, s *persistent, list persistentList) Next {
	c.preemptLocked(s, list)
	return NextDone
}

// preemptLocked does PREEMPT and returns whose registrations went, without the command's own nexus.
func (c *Command) preemptLocked(s *persistent, list persistentList) []nexusName {
	if !c.registeredLocked(s, list) {
		return nil
	}
	me := c.nexus.name
	kind := ReservationType(c.CDB[2] & reservationTypeMask)
	r := s.reservation.Load()
	matches := func(m registrant) bool { return m.key == list.serviceKey }
	takeOver := false
	switch {
	case r == nil:
	case r.kind.allHold():
		if takeOver = list.serviceKey == 0; takeOver {
			matches = func(registrant) bool { return true }
		}
	case list.serviceKey == 0:
		c.invalidParameter(8)
		return nil
	default:
		takeOver = s.registrants[s.findLocked(r.holder)].key == list.serviceKey
	}
	var lost []nexusName
	if takeOver {
		// The nexus that preempts stays registered, whatever its key is.
		lost = s.removeLocked(func(m registrant) bool { return m.nexusName != me && matches(m) })
		s.setLocked(kind, me)
		if r.kind != kind {
			c.LU.tell(ReservationsReleased, s.namesLocked(), me)
		}
	} else {
		if lost = s.removeLocked(matches); len(lost) == 0 {
			c.FailStatus(StatusReservationConflict)
			return nil
		}
		s.refreshLocked()
	}
	s.generation++
	c.LU.tell(RegistrationsPreempted, lost, me)
	c.good()
	return lost
}

// executePreemptAndAbort is PREEMPT, after which the transports end the tasks of those that were preempted. The status
// waits for that.
func executePreemptAndAbort(c *Command) Next {
	var lost []nexusName
	persistentOut(func(c *Command, s *persistent, list persistentList) Next {
		lost = c.preemptLocked(s, list)
		return NextDone
	})(c)
	var waiting atomic.Int32
	waiting.Store(1)
	done := func() {
		if waiting.Add(-1) == 0 {
			c.Done(c)
		}
	}
	for _, n := range c.LU.nexusesNamed(lost, c.nexus) {
		if abort := n.device.cfg.AbortTasks; abort != nil {
			waiting.Add(1)
			abort(n, c.LU, done)
		}
	}
	if waiting.Add(-1) == 0 {
		return NextDone
	}
	return NextPending
}
