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
	c.LU.reservedBy.CompareAndSwap(c.nexus, nil)
	return c.good()
}
