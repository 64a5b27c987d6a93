package scsi

import "encoding/binary"

// persistentIn builds the answer of a service action of PERSISTENT RESERVE IN, under the lock.
func persistentIn(build func(s *persistent, b []byte) []byte) func(*Command) Next {
	return func(c *Command) Next {
		lu := c.LU
		s := &lu.persistent
		s.mu.Lock()
		if lu.reservedBy.Load() != nil {
			// SPC-2: while RESERVE holds the logical unit, this conflicts, also for who holds it.
			s.mu.Unlock()
			return c.FailStatus(StatusReservationConflict)
		}
		b := build(s, c.page(InlineData)[:0])
		s.mu.Unlock()
		return c.reply(b, be16(c.CDB[7:]))
	}
}

// appendGeneration appends the header; length is put in by closeLength.
func appendGeneration(s *persistent, b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, s.generation)
	return append(b, 0, 0, 0, 0)
}

func closeLength(b []byte) []byte {
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-persistentHeaderLength))
	return b
}

func readKeys(s *persistent, b []byte) []byte {
	b = appendGeneration(s, b)
	for _, r := range s.registrants {
		b = binary.BigEndian.AppendUint64(b, r.key)
	}
	return closeLength(b)
}

func readReservation(s *persistent, b []byte) []byte {
	b = appendGeneration(s, b)
	if r := s.reservation.Load(); r != nil {
		var key uint64 // 0 if all registrants hold it
		if !r.kind.allHold() {
			key = s.registrants[s.findLocked(r.holder)].key
		}
		b = binary.BigEndian.AppendUint64(b, key)
		// The scope is 0, the logical unit.
		b = append(b, 0, 0, 0, 0, 0, uint8(r.kind), 0, 0)
	}
	return closeLength(b)
}

// reportCapabilities says what PERSISTENT RESERVE OUT takes: no reservations that survive a loss of power (PTPL_C), no
// registrations of other initiator ports (SIP_C) or at other target ports (ATP_C).
func reportCapabilities(_ *persistent, b []byte) []byte {
	const (
		crh = 0x10 // RESERVE and RELEASE of registered nexuses are handled as SPC-4 says
		tmv = 0x80 // the type mask is valid
		// allowCommands 001b: TEST UNIT READY is allowed by every type.
		allowCommands = 0x10
		// The types: 7, 6, 5, 3 and 1 in the first byte, 8 in the second.
		types0, types1 = 0x80 | 0x40 | 0x20 | 0x08 | 0x02, 0x01
	)
	return append(b, 0, 8, crh, tmv|allowCommands, types0, types1, 0, 0)
}

func readFullStatus(s *persistent, b []byte) []byte {
	const rHolder = 0x01
	b = appendGeneration(s, b)
	reservation := s.reservation.Load()
	for _, r := range s.registrants {
		at := len(b)
		b = append(b, make([]byte, fullStatusHeaderLength)...)
		b = appendTransportID(b, r.initiator)
		d := b[at:]
		binary.BigEndian.PutUint64(d, r.key)
		if reservation != nil && (reservation.kind.allHold() || reservation.holder == r.nexusName) {
			d[12], d[13] = rHolder, uint8(reservation.kind)
		}
		binary.BigEndian.PutUint16(d[18:], r.relativePort)
		binary.BigEndian.PutUint32(d[20:], uint32(len(d)-fullStatusHeaderLength))
	}
	return closeLength(b)
}
