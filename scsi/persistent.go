package scsi

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// ReservationType is the type of a persistent reservation (SPC-4); 0 is none.
type ReservationType uint8

const (
	noReservation                  ReservationType = 0
	WriteExclusive                 ReservationType = 1
	ExclusiveAccess                ReservationType = 3
	WriteExclusiveRegistrantsOnly  ReservationType = 5
	ExclusiveAccessRegistrantsOnly ReservationType = 6
	WriteExclusiveAllRegistrants   ReservationType = 7
	ExclusiveAccessAllRegistrants  ReservationType = 8
)

// Scope and type in byte 2 of PERSISTENT RESERVE OUT; the scope is 0, the logical unit, and nothing else.
const (
	reservationScopeMask = 0xF0
	reservationTypeMask  = 0x0F
)

// Lengths of the parameter list, and of the headers of the parameter data and of a full status descriptor.
const (
	persistentListLength   = 24
	persistentHeaderLength = 8
	fullStatusHeaderLength = 24
)

// maxRegistrants bounds the memory that initiators can take by registering under ever new names. It is more than 64
// hosts with 8 paths each, the largest clusters.
const maxRegistrants = 1024

func (t ReservationType) String() string {
	switch t {
	case noReservation:
		return "none"
	case WriteExclusive:
		return "write exclusive"
	case ExclusiveAccess:
		return "exclusive access"
	case WriteExclusiveRegistrantsOnly:
		return "write exclusive, registrants only"
	case ExclusiveAccessRegistrantsOnly:
		return "exclusive access, registrants only"
	case WriteExclusiveAllRegistrants:
		return "write exclusive, all registrants"
	case ExclusiveAccessAllRegistrants:
		return "exclusive access, all registrants"
	}
	return fmt.Sprintf("reservation type %d", uint8(t))
}

// supported is true for the six types that there are.
func (t ReservationType) supported() bool {
	switch t {
	case WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrantsOnly, ExclusiveAccessRegistrantsOnly,
		WriteExclusiveAllRegistrants, ExclusiveAccessAllRegistrants:
		return true
	}
	return false
}

// exclusive: others may not read either.
func (t ReservationType) exclusive() bool {
	return t == ExclusiveAccess || t == ExclusiveAccessRegistrantsOnly || t == ExclusiveAccessAllRegistrants
}

// shared: every registered nexus has access.
func (t ReservationType) shared() bool { return t >= WriteExclusiveRegistrantsOnly }

// allHold: every registered nexus is a reservation holder.
func (t ReservationType) allHold() bool { return t >= WriteExclusiveAllRegistrants }

// nexusName is what stays of an I_T nexus when its session ends: the names of its two ports. Registrations belong to it,
// so the next session with the same ISID finds them (known-faults B81).
type nexusName struct{ initiator, target string }

// registrant is a registered I_T nexus.
type registrant struct {
	nexusName
	relativePort uint16
	key          uint64
}

// persistent is the state of persistent reservations of a logical unit. It outlives sessions and resets, not the process.
type persistent struct {
	// reservation is what commands see: immutable, nil without a reservation. It changes under mu.
	reservation atomic.Pointer[persistentReservation]

	// mu also serializes RESERVE of SPC-2, because either method of reservation excludes the other.
	mu          sync.Mutex
	generation  uint32
	registrants []registrant // in order of registration
}

// persistentReservation is immutable.
type persistentReservation struct {
	kind   ReservationType
	holder nexusName // of types that have one holder
	// members may do everything: the holder, or all registrants if the type shares.
	members map[nexusName]struct{}
}

// conflicts is true if the command of a nexus must end with RESERVATION CONFLICT.
func (r *persistentReservation) conflicts(op *opcode, cdb []byte, name nexusName) bool {
	rule := withWriteExclusive
	if r.kind.exclusive() {
		rule = withExclusiveAccess
	}
	if op.conflict&rule == 0 {
		return false
	}
	if _, ok := r.members[name]; ok {
		return false
	}
	// START STOP UNIT with START and no power condition disturbs nobody (SBC-3).
	return op.conflict&unlessStarting == 0 || cdb[4]&0xF1 != 0x01
}

// findLocked is the index of the registration of a nexus, -1 if there is none.
func (s *persistent) findLocked(name nexusName) int {
	return slices.IndexFunc(s.registrants, func(r registrant) bool { return r.nexusName == name })
}

// holdsLocked is true if the nexus is a holder of the reservation.
func (s *persistent) holdsLocked(name nexusName) bool {
	r := s.reservation.Load()
	if r == nil {
		return false
	}
	if r.kind.allHold() {
		return s.findLocked(name) >= 0
	}
	return r.holder == name
}

// setLocked puts a reservation in place; every change of the registrants under one that shares needs it too.
func (s *persistent) setLocked(kind ReservationType, holder nexusName) {
	if kind == noReservation || kind.allHold() && len(s.registrants) == 0 {
		s.reservation.Store(nil)
		return
	}
	r := &persistentReservation{kind: kind, members: map[nexusName]struct{}{}}
	if !kind.allHold() {
		r.holder = holder
	}
	if kind.shared() {
		for _, m := range s.registrants {
			r.members[m.nexusName] = struct{}{}
		}
	} else {
		r.members[holder] = struct{}{}
	}
	s.reservation.Store(r)
}

// refreshLocked follows a change of the registrants.
func (s *persistent) refreshLocked() {
	if r := s.reservation.Load(); r != nil && r.kind.shared() {
		s.setLocked(r.kind, r.holder)
	}
}

// removeLocked ends the registrations that match and returns whose they were.
func (s *persistent) removeLocked(match func(registrant) bool) []nexusName {
	var removed []nexusName
	kept := make([]registrant, 0, len(s.registrants))
	for _, r := range s.registrants {
		if match(r) {
			removed = append(removed, r.nexusName)
		} else {
			kept = append(kept, r)
		}
	}
	s.registrants = kept
	return removed
}

// namesLocked are all registered nexuses.
func (s *persistent) namesLocked() []nexusName {
	names := make([]nexusName, len(s.registrants))
	for i, r := range s.registrants {
		names[i] = r.nexusName
	}
	return names
}

// conflicts is the reservation check of every command: two loads when there is no reservation, no lock in any case.
func (c *Command) conflicts(op *opcode) bool {
	if holder := c.LU.reservedBy.Load(); holder != nil && holder != c.nexus && op.conflict&withSPC2 != 0 {
		return true
	}
	r := c.LU.persistent.reservation.Load()
	return r != nil && r.conflicts(op, c.CDB, c.nexus.name)
}

// tell establishes a unit attention condition for those of the named nexuses, except one, that have a session.
func (lu *LogicalUnit) tell(code AdditionalSense, names []nexusName, except nexusName) {
	if len(names) == 0 {
		return
	}
	lu.attention(code, func(p *path) bool { return p.nexus.name != except && slices.Contains(names, p.nexus.name) })
}
