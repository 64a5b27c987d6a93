package tcp

import (
	"iserd/iscsi"
	"iserd/iscsi/pdu"
)

// txParams is how PDUs leave.
type txParams struct {
	headerDigest, dataDigest bool
	maxSegment               int // what the initiator declared
	maxBurst                 uint32
}

// maxControlSegment bounds the data segment of a control PDU whatever the initiator declared, so that long answers go
// out piece by piece instead of being copied whole.
const maxControlSegment = 64 << 10

// MaxSendDataSegmentLength implements [iscsi.Datamover].
func (c *conn) MaxSendDataSegmentLength() int { return min(c.tx.maxSegment, maxControlSegment) }

// SendControl implements [iscsi.Datamover].
func (c *conn) SendControl(bhs *pdu.BHS, data []byte, t *iscsi.Task) {
	if c.phase >= phaseEnded {
		return
	}
	if t == nil || bhs.Opcode() != pdu.OpSCSIResponse {
		c.out.control(c, bhs, data)
	} else if len(data) > 0 || !c.collapse(bhs.SCSIResponse(), t) {
		h := c.out.control(c, bhs, data).SCSIResponse()
		if h.Response() == pdu.ResponseCompleted {
			x := &c.xfers[t.Index]
			h.SetExpDataSN(x.dataSN + x.r2tSN)
			c.redigest(h.BHS())
		}
	}
	if t != nil {
		c.out.release(t)
	}
}

// redigest makes the header digest of the last queued header anew.
func (c *conn) redigest(h *pdu.BHS) {
	if c.tx.headerDigest {
		pdu.PutDigest(c.out.lastHeader[pdu.BHSLength:], pdu.UpdateDigest(0, h[:]))
	}
}

// collapse puts a status into the final Data-In of the same task, if that is the last thing in the queue: one PDU less.
// RFC 7143 allows it for a status without sense data.
func (c *conn) collapse(r *pdu.SCSIResponse, t *iscsi.Task) bool {
	q := &c.out
	if q.lastTask != t || q.lastStart < q.sent || r.Response() != pdu.ResponseCompleted || r.Status() != 0 ||
		r.BidiReadOverflow() || r.BidiReadUnderflow() {
		return false
	}
	h := (*pdu.BHS)(q.lastHeader)
	d := h.DataIn()
	d.SetHasStatus(true)
	d.SetStatus(r.Status())
	d.SetOverflow(r.Overflow())
	d.SetUnderflow(r.Underflow())
	d.SetResidualCount(r.ResidualCount())
	d.SetStatSN(r.StatSN())
	d.SetExpCmdSN(r.ExpCmdSN())
	d.SetMaxCmdSN(r.MaxCmdSN())
	c.redigest(h)
	q.lastTask = nil
	c.n.collapsed++
	return true
}

// PutData implements [iscsi.Datamover]: Data-In PDUs of up to the initiator's MaxRecvDataSegmentLength, in sequences of
// up to MaxBurstLength, each of which ends with the F bit. The data is not copied, with one exception: a store's memory
// that others may write to until the data has left, when there is a digest of it to keep.
func (c *conn) PutData(t *iscsi.Task) {
	left := t.Command.DataInLength
	if c.phase >= phaseEnded || left == 0 {
		return
	}
	x := &c.xfers[t.Index]
	_, expCmdSN, maxCmdSN := c.eng.Numbers()
	var bhs pdu.BHS
	d := bhs.DataIn()
	d.Init()
	bhs.SetInitiatorTaskTag(t.BHS.InitiatorTaskTag())
	d.SetTargetTransferTag(pdu.ReservedTag)
	d.SetExpCmdSN(expCmdSN)
	d.SetMaxCmdSN(maxCmdSN)
	moving := c.tx.dataDigest && len(x.buffers) == 0
	pieces := cursor{pieces: t.Command.Data}
	burst := c.tx.maxBurst
	for offset := uint32(0); left > 0; {
		n := min(left, uint32(c.tx.maxSegment), burst)
		left -= n
		burst -= n
		d.SetFinal(left == 0 || burst == 0)
		if burst == 0 {
			burst = c.tx.maxBurst
		}
		d.SetDataSN(x.dataSN)
		d.SetBufferOffset(offset)
		x.dataSN++
		offset += n
		start := c.out.queued
		c.out.header(c, &bhs, int(n))
		crc := uint32(0)
		for rest := int(n); rest > 0; {
			b := pieces.take(rest)
			rest -= len(b)
			if moving {
				crc = c.out.copyIn(c, b, crc)
				continue
			}
			if c.tx.dataDigest {
				crc = pdu.UpdateDigest(crc, b)
			}
			c.out.refer(b)
		}
		c.out.trailer(c, int(n), crc)
		if left == 0 {
			c.out.lastTask, c.out.lastStart = t, start
		}
	}
}

// cursor walks through pieces of memory.
type cursor struct {
	pieces [][]byte
	at     int // in pieces[0]
}

// take gives the next contiguous bytes, at most n of them. The pieces must hold them.
func (p *cursor) take(n int) []byte {
	for len(p.pieces[0]) == p.at {
		p.pieces, p.at = p.pieces[1:], 0
	}
	b := p.pieces[0][p.at:]
	b = b[:min(n, len(b))]
	p.at += len(b)
	return b
}
