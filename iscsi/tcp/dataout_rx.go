package tcp

import (
	"iserd/iscsi"
	"iserd/iscsi/pdu"
)

// beginDataOut decides where the n bytes of a Data-Out PDU go. The LUN field is not looked at (known-faults B87).
func (c *conn) beginDataOut(h *pdu.BHS, n int) {
	rx := &c.rx
	rx.inData, rx.header = true, *h
	rx.left, rx.trail = n, pdu.Pad4(n)-n
	if rx.dataDigest && n > 0 {
		rx.trail += pdu.DigestLength
	}
	rx.crc = 0
	rx.x, rx.burst, rx.r2t, rx.spill = nil, nil, nil, nil
	d := h.DataOut()
	rx.offset = d.BufferOffset()
	if d.TargetTransferTag() == pdu.ReservedTag {
		c.beginUnsolicited(d, uint32(n))
	} else {
		c.beginSolicited(d, uint32(n))
	}
}

func (c *conn) beginUnsolicited(d *pdu.DataOut, n uint32) {
	rx := &c.rx
	b := c.findBurst(d.InitiatorTaskTag())
	if b == nil {
		c.n.discarded++
		return
	}
	rx.burst = b
	if b.err != nil || b.orphan {
		return
	}
	switch {
	case d.BufferOffset() != b.next || d.DataSN() != b.dataSN:
		c.failBurst(b, iscsi.ErrDataSequence)
	case n > b.limit-b.next:
		c.failBurst(b, iscsi.ErrUnexpectedData)
	default:
		b.dataSN++
		if b.x != nil {
			rx.x = b.x
			return
		}
		// The engine has not asked for the data, it waits for memory. It is not left in the socket meanwhile: behind it
		// may be what other commands need to give memory back. FirstBurstLength bounds it.
		if b.spill == nil {
			b.spill = make([]byte, b.limit-b.start)
		}
		rx.spill = b.spill[b.next-b.start:][:n]
	}
}

// failBurst has the task fail and the rest of its unsolicited data thrown away.
func (c *conn) failBurst(b *burst, err error) {
	if b.err == nil {
		b.err = err
	}
	if x := b.x; x != nil {
		c.later(x, err)
	}
}

func (c *conn) beginSolicited(d *pdu.DataOut, n uint32) {
	ttt := d.TargetTransferTag()
	slot := tttSlot(ttt)
	if slot >= len(c.xfers) {
		c.n.discarded++
		return
	}
	x := &c.xfers[slot]
	r := &x.r2t[tttNumber(ttt)]
	if x.t == nil || !r.open || r.ttt != ttt || d.InitiatorTaskTag() != x.t.BHS.InitiatorTaskTag() {
		// The rest of a transfer that was aborted or has failed.
		c.n.discarded++
		return
	}
	if d.BufferOffset() != r.next || d.DataSN() != r.dataSN || n > r.end-r.next || d.Final() != (n == r.end-r.next) {
		c.later(x, iscsi.ErrDataSequence)
		return
	}
	r.dataSN++
	c.rx.x, c.rx.r2t = x, r
}

// consume takes what lies in the chunk of the Data-Out PDU under way. It returns false when more must come.
func (c *conn) consume() bool {
	rx := &c.rx
	for rx.left > 0 {
		b := rx.unread()
		if len(b) == 0 {
			return false
		}
		b = b[:min(len(b), rx.left)]
		c.scatter(b)
		rx.r += len(b)
	}
	b := rx.unread()
	if len(b) < rx.trail {
		rx.want = rx.trail
		return false
	}
	good := true
	if rx.dataDigest && rx.trail >= pdu.DigestLength {
		pad := rx.trail - pdu.DigestLength
		good = pdu.GetDigest(b[pad:]) == pdu.UpdateDigest(rx.crc, b[:pad])
	}
	rx.r += rx.trail
	rx.inData = false
	c.n.pdusIn++
	if good {
		c.dataArrived()
	} else {
		c.dataDigestError()
	}
	return true
}

// scatter puts the next bytes of the PDU under way where they belong.
func (c *conn) scatter(b []byte) {
	rx := &c.rx
	if rx.dataDigest {
		rx.crc = pdu.UpdateDigest(rx.crc, b)
	}
	switch {
	case rx.x != nil:
		rx.x.copyIn(rx.offset, b)
	case rx.spill != nil:
		copy(rx.spill[int(rx.offset-rx.header.DataOut().BufferOffset()):], b)
	}
	rx.offset += uint32(len(b))
	rx.left -= len(b)
}

// direct appends to iov the memory that the rest of the PDU under way can be read into. It returns its length.
func (c *conn) direct() int {
	rx := &c.rx
	switch {
	case rx.x != nil:
		total, offset := 0, rx.offset
		for total < rx.left && len(rx.iov) < maxIovecs-1 {
			mem, n := rx.x.at(offset, rx.left-total)
			if len(mem) == 0 {
				break
			}
			rx.iov = appendIovec(rx.iov, mem)
			total += n
			offset += uint32(n)
		}
		return total
	case rx.spill != nil:
		mem := rx.spill[int(rx.offset-rx.header.DataOut().BufferOffset()):]
		rx.iov = appendIovec(rx.iov, mem)
		return len(mem)
	}
	return 0
}

// placed counts n bytes that were read to where direct said.
func (c *conn) placed(n int) {
	rx := &c.rx
	if rx.dataDigest {
		for offset, left := rx.offset, n; left > 0; {
			mem := rx.spill
			if rx.x != nil {
				mem, _ = rx.x.at(offset, left)
			} else {
				mem = mem[int(offset-rx.header.DataOut().BufferOffset()):][:left]
			}
			rx.crc = pdu.UpdateDigest(rx.crc, mem)
			offset += uint32(len(mem))
			left -= len(mem)
		}
	}
	rx.offset += uint32(n)
	rx.left -= n
}

// dataArrived goes on after a good Data-Out PDU.
func (c *conn) dataArrived() {
	rx := &c.rx
	d := rx.header.DataOut()
	n := uint32(rx.header.DataSegmentLength())
	x := rx.x
	rx.x = nil
	switch b := rx.burst; {
	case b != nil:
		if b.err == nil && !b.orphan {
			if x == nil && b.x != nil {
				// GetData came while the data did.
				x = b.x
				x.copyIn(b.next, rx.spill)
			}
			if x != nil {
				x.arrived(b.next, n, true)
			}
			b.next += n
		}
		c.endBurst(b, d.Final())
	case x != nil:
		r := rx.r2t
		r.next += n
		x.arrived(d.BufferOffset(), n, false)
		if r.next == r.end {
			r.open = false
			x.open--
			c.ask(x)
		}
	}
	rx.burst, rx.r2t, rx.spill = nil, nil, nil
}

// endBurst goes on when the F bit has come.
func (c *conn) endBurst(b *burst, final bool) {
	if !final {
		return
	}
	b.ended = true
	x := b.x
	if x != nil {
		x.burst = nil
	}
	c.dropBurst(b)
	if x != nil {
		c.ask(x)
	}
}

// dataDigestError: the PDU is rejected, the task fails, the connection goes on (known-faults B99).
func (c *conn) dataDigestError() {
	rx := &c.rx
	c.n.digestErrors++
	c.rejectData()
	if b := rx.burst; b != nil {
		c.failBurst(b, iscsi.ErrDataDigest)
		c.endBurst(b, rx.header.Final())
	} else if rx.x != nil {
		c.later(rx.x, iscsi.ErrDataDigest)
	}
	rx.x, rx.burst, rx.r2t, rx.spill = nil, nil, nil, nil
}

// rejectData has the engine answer the Data-Out PDU under way with a Reject.
func (c *conn) rejectData() {
	c.control = iscsi.Control{BHS: &c.rx.header, DataDigestError: true}
	c.eng.ControlNotify(&c.control)
}
