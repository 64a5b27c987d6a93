package scsi

// thirdParty and extent are the bits of RESERVE and RELEASE that SPC-2 lets a device server refuse.
const (
	thirdParty = 0x10
	extent     = 0x01
)

// reserve is RESERVE(6) and (10) of SPC-2, the whole logical unit for one nexus.
func reserve(c *Command) Next {
	if c.CDB[1]&(thirdParty|extent) != 0 {
		return c.invalidField(1)
	}
	lu, n := c.LU, c.nexus
	lu.persistent.mu.Lock()
	defer lu.persistent.mu.Unlock()
	if len(lu.persistent.registrants) > 0 {
		return c.compatibleLocked()
	}
	if !lu.reservedBy.CompareAndSwap(nil, n) && lu.reservedBy.Load() != n {
		return c.FailStatus(StatusReservationConflict)
	}
	if n.closed.Load() || c.path.gone.Load() {
		// The nexus ended meanwhile, and may have released its reservations before this one was made.
		lu.reservedBy.CompareAndSwap(n, nil)
	}
	return c.good()
}

// release is RELEASE(6) and (10). Without a reservation of this nexus it changes nothing and is GOOD (known-faults B51).
func release(c *Command) Next {
	if c.CDB[1]&(thirdParty|extent) != 0 {
		return c.invalidField(1)
	}
	lu := c.LU
	lu.persistent.mu.Lock()
	defer lu.persistent.mu.Unlock()
	if len(lu.persistent.registrants) > 0 {
		return c.compatibleLocked()
	}
	lu.reservedBy.CompareAndSwap(c.nexus, nil)
	return c.good()
}

// compatibleLocked is what RESERVE and RELEASE do while there are registrations: for those to whom the persistent
// reservation gives access already, GOOD and nothing (CRH in REPORT CAPABILITIES); for all others, the conflict that
// SPC-2 asks for.
func (c *Command) compatibleLocked() Next {
	if r := c.LU.persistent.reservation.Load(); r != nil {
		if _, ok := r.members[c.nexus.name]; ok {
			return c.good()
		}
	}
	return c.FailStatus(StatusReservationConflict)
}
