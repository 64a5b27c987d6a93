package iser

import (
	"fmt"

	"iserd/iscsi"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

const (
	// receiveLength holds the largest control-type PDU: headers, 256 bytes of AHS (the default of MaxAHSLength) and the
	// 8192 bytes of data that login and TargetRecvDataSegmentLength allow.
	receiveLength = headersLength + 256 + loginData
	// The data segment of a PDU without AHS begins on a multiple of 512, so that immediate data can be written with
	// direct I/O from where it lies.
	receiveOffset = 512 - headersLength
	receiveStride = (receiveOffset + receiveLength + 511) &^ 511
	// dispatchReserve are send slots kept for what the engine says unasked: NOP-In, asynchronous messages.
	dispatchReserve = 8
)

type receiveState uint8

const (
	receiveFree receiveState = iota
	receivePosted
	receiveHeld     // arrived, waiting for dispatch
	receiveRetained // the engine uses its data
)

// receiveSlot is one receive buffer.
type receiveSlot struct {
	mem   []byte
	addr  uint64
	key   uint32
	state receiveState
}

// recvSide are a connection's receives. Slot 0 is the login receive, which serves on in full feature phase.
type recvSide struct {
	slots  []receiveSlot
	toPost []uint32
	posted int
	held   fifo[heldReceive]
}

type heldReceive struct{ slot, length uint32 }

// addReceives cuts receive slots out of buf.
func (c *conn) addReceives(buf rdma.Buf, n int) {
	mem, key := buf.Bytes(), buf.LKey()
	for i := range n {
		b := mem[i*receiveStride+receiveOffset:][:receiveLength:receiveLength]
		c.rx.slots = append(c.rx.slots, receiveSlot{mem: b, addr: rdma.AddrOf(b), key: key})
	}
}

// openReceives makes the receives of the full feature phase: one for every command that the window allows and for
// every PDU that may come beside it, however long the commands take. An initiator thus never meets a receiver that is
// not ready.
func (c *conn) openReceives(r iscsi.Resources) error {
	n := r.Window + r.Immediate
	if r.Discovery {
		n = max(r.Immediate, 1) // one request at a time
	}
	if limit := c.caps.MaxRecvWR - 2; n > limit { // less the login receive and the sentinel
		return fmt.Errorf("iser: %d receives are needed, the queue pair has room for %d", n, limit)
	}
	per := c.s.pool.MaxSize() / receiveStride
	for left := n; left > 0; {
		k := min(left, per)
		b, ok := c.s.getBuffer(k * receiveStride)
		if !ok {
			return fmt.Errorf("%w: %d receive buffers", errPoolEmpty, n)
		}
		c.blocks = append(c.blocks, b)
		c.addReceives(b, k)
		left -= k
	}
	return nil
}

// readyReceives queues every receive that is free.
func (c *conn) readyReceives() {
	for i := range c.rx.slots {
		if c.rx.slots[i].state == receiveFree {
			c.repost(uint32(i))
		}
	}
}

// repost queues the receive slot for the end of the turn.
func (c *conn) repost(n uint32) {
	c.rx.slots[n].state = receivePosted
	c.rx.toPost = append(c.rx.toPost, n)
	c.markDirty()
}

// received handles the completion of a receive.
func (c *conn) received(wc *rdma.WC) {
	n := idNumber(wc.ID)
	if int(n) >= len(c.rx.slots) || c.rx.slots[n].state != receivePosted || c.rx.posted == 0 {
		c.s.counters.stale.inc()
		return
	}
	slot := &c.rx.slots[n]
	slot.state = receiveFree
	c.rx.posted--
	c.s.counters.recvPosted.dec()
	if wc.Status != rdma.StatusSuccess {
		if c.phase < phaseDraining {
			c.fail(wc.Err())
		}
		return
	}
	// The first PDU may overtake the connection manager's word that the connection stands.
	if !c.established && c.phase < phaseDraining {
		if c.id != nil {
			_ = c.id.NotifyEstablished()
		}
		c.nowEstablished()
	}
	if c.phase != phaseOpen {
		return
	}
	length := min(wc.ByteLen, uint32(len(slot.mem)))
	if c.rx.held.len() > 0 || !c.mayDispatch() {
		c.s.counters.waitReceive.inc()
		slot.state = receiveHeld
		c.rx.held.push(heldReceive{n, length})
		return
	}
	c.dispatch(n, length)
}

// mayDispatch tells whether there is room to answer one more PDU, beside the answers that running tasks will want. An
// initiator that asks without ever taking answers is held up here, by its own window or by receives not reposted.
func (c *conn) mayDispatch() bool {
	switch {
	case !c.fullFeature:
		return len(c.tx.large) > 0
	case c.discovery:
		return len(c.tx.large) > 0 && len(c.tx.small) > dispatchReserve
	}
	return len(c.tx.small) > len(c.io)+dispatchReserve
}

// dispatchHeld takes up receives that had to wait.
func (c *conn) dispatchHeld() {
	for c.phase == phaseOpen && c.rx.held.len() > 0 && c.mayDispatch() {
		h := c.rx.held.pop()
		c.dispatch(h.slot, h.length)
	}
}

// dispatch gives a message to the engine.
func (c *conn) dispatch(n, length uint32) {
	msg := c.rx.slots[n].mem[:length]
	switch opcodeOf(msg) {
	case OpControl:
		m, err := parseMessage(msg)
		if err != nil {
			c.malformed(n, err)
			return
		}
		if c.fullFeature && m.bhs[0]&0x3f == byte(pdu.OpDataOut) {
			// RFC 7145: data-out comes by RDMA Read; unsolicited Data-Out was not negotiated.
			c.malformed(n, errDataOut)
			return
		}
		ctl := &c.s.control
		*ctl = iscsi.Control{
			BHS: (*pdu.BHS)(m.bhs), AHS: m.ahs, Data: m.data, Handle: int(n), Private: m.header.private(),
		}
		// Before the call: the engine may release it from within.
		c.rx.slots[n].state = receiveRetained
		c.eng.ControlNotify(ctl)
		if !ctl.Retain && c.rx.slots[n].state == receiveRetained {
			c.release(n)
		}
	case OpHello:
		h, err := ParseHello(msg)
		if err != nil {
			c.malformed(n, err)
			return
		}
		c.s.counters.hellos.inc()
		c.answerHello(h, len(msg))
		c.release(n)
	default:
		c.malformed(n, errOpcode)
	}
}

// malformed tells the engine of a message that is none.
func (c *conn) malformed(n uint32, err error) {
	c.s.counters.malformed.inc()
	c.eng.MalformedNotify(err.Error())
	c.release(n)
}

// release makes the receive slot ready for the next message.
func (c *conn) release(n uint32) {
	c.rx.slots[n].state = receiveFree
	if c.phase == phaseOpen {
		c.repost(n)
	}
}

// ReleaseControl implements [iscsi.Datamover].
func (c *conn) ReleaseControl(handle int) {
	if handle < 0 || handle >= len(c.rx.slots) || c.rx.slots[handle].state != receiveRetained {
		return
	}
	c.release(uint32(handle))
}

// buildReceives appends the queued receives to the shard's batch.
func (c *conn) buildReceives() {
	s := c.s
	for _, n := range c.rx.toPost {
		slot := &c.rx.slots[n]
		k := len(s.sges)
		s.sges = append(s.sges, rdma.SGE{Addr: slot.addr, Length: uint32(len(slot.mem)), LKey: slot.key})
		s.recvs = append(s.recvs, rdma.RecvWR{ID: c.idBase | wrID(idRecv, 0, 0, n), SGE: s.sges[k : k+1 : k+1]})
	}
	c.rx.posted += len(c.rx.toPost)
	s.counters.recvPosted.add(len(c.rx.toPost))
	s.counters.recvs.add(len(c.rx.toPost))
	c.rx.toPost = c.rx.toPost[:0]
}

// private packs the header for [iscsi.Task]'s Private.
func (h *Header) private() [4]uint64 {
	p := [4]uint64{uint64(h.WriteSTag)<<32 | uint64(h.ReadSTag), h.WriteBaseOffset, h.ReadBaseOffset, 0}
	if h.WSV {
		p[3] |= flagWSV
	}
	if h.RSV {
		p[3] |= flagRSV
	}
	return p
}

// headerOf is the header that a task came with.
func headerOf(t *iscsi.Task) Header {
	p := &t.Private
	return Header{
		WriteSTag: uint32(p[0] >> 32), ReadSTag: uint32(p[0]), WriteBaseOffset: p[1], ReadBaseOffset: p[2],
		WSV: p[3]&flagWSV != 0, RSV: p[3]&flagRSV != 0,
	}
}
