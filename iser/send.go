package iser

import (
	"errors"
	"fmt"

	"iserd/iscsi"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

const (
	// smallSlot holds a full feature PDU: headers and 128 bytes of data.
	smallSlot   = 256
	largeSlot   = (headersLength + loginData + 63) &^ 63
	largeSlots  = 2
	scratchSize = 1024
	// sendSlack are send slots beside two for each task.
	sendSlack = 64
)

var (
	errSendSlots  = errors.New("iser: more PDUs queued than the connection has buffers for")
	errDataOut    = errors.New("iser: SCSI Data-Out PDU over iSER")
	errNoReadSTag = errors.New("iser: data-in for a command that came without a read STag")
	errTooLong    = errors.New("iser: data segment longer than the initiator's receive buffers")
)

// sendSlot is a buffer for one control-type PDU on its way out.
type sendSlot struct {
	mem    []byte
	addr   uint64
	key    uint32
	length uint32
	inv    uint32      // STag to invalidate, or 0
	task   *iscsi.Task // released when the PDU has left
	large  bool
}

type itemKind uint8

const (
	itemSend itemKind = iota // index is a send slot
	itemData                 // index is a task
)

// item is work that waits for room in the send queue.
type item struct {
	kind  itemKind
	index uint32
}

// record says what a posted work request is for.
type record struct {
	kind  recordKind
	index uint32
}

type recordKind uint8

const (
	recordWrite recordKind = iota
	recordSend             // index is a send slot
	recordRead             // index is a task
)

// sendSide is a connection's send queue. Work requests are numbered as they are posted. A completion of one stands for
// all before it, so only the last of each chain and every few in between are signaled, and the number of the newest
// completed one is all the accounting there is.
type sendSide struct {
	slots        []sendSlot
	small, large []uint32 // free slots
	queue        fifo[item]
	records      []record // a ring, by number
	posted, done uint32   // numbers of the newest posted and of the newest completed work request
	capacity     int      // work requests that may be out; one more is kept for the sentinel
	unsignaled   int      // posted since the last signaled one
}

func (t *sendSide) outstanding() int { return int(t.posted - t.done) }
func (t *sendSide) room() int        { return t.capacity - t.outstanding() }
func (t *sendSide) idle() bool       { return t.queue.len() == 0 && t.outstanding() == 0 }

// setDepth makes the ring for a send queue that holds depth work requests, one of which is the sentinel's.
func (t *sendSide) setDepth(depth int) {
	t.capacity = depth - 1
	n := 1
	for n < depth {
		n *= 2
	}
	t.records = make([]record, n)
}

// addSends cuts n send slots of the given size out of mem.
func (c *conn) addSends(mem []byte, key uint32, n, size int, large bool) {
	for i := range n {
		b := mem[i*size:][:size:size]
		index := uint32(len(c.tx.slots))
		c.tx.slots = append(c.tx.slots, sendSlot{mem: b, addr: rdma.AddrOf(b), key: key, large: large})
		if large {
			c.tx.large = append(c.tx.large, index)
		} else {
			c.tx.small = append(c.tx.small, index)
		}
	}
}

// openSends makes the send slots of the full feature phase and the tasks' scratch memory.
func (c *conn) openSends(r iscsi.Resources) error {
	n := 2*r.Tasks + sendSlack
	need := n*smallSlot + r.Tasks*scratchSize
	if limit := c.s.pool.MaxSize(); need > limit {
		return fmt.Errorf("iser: %d bytes for %d tasks, buffers have at most %d", need, r.Tasks, limit)
	}
	b, ok := c.s.getBuffer(need)
	if !ok {
		return fmt.Errorf("%w: %d send buffers", errPoolEmpty, n)
	}
	c.blocks = append(c.blocks, b)
	mem := b.Bytes()
	c.addSends(mem, b.LKey(), n, smallSlot, false)
	c.scratch = mem[n*smallSlot : need : need]
	return nil
}

// SendControl implements [iscsi.Datamover].
func (c *conn) SendControl(bhs *pdu.BHS, data []byte, t *iscsi.Task) { c.sendControl(bhs, data, t) }

func (c *conn) sendControl(bhs *pdu.BHS, data []byte, t *iscsi.Task) {
	if c.phase > phaseGraceful {
		return
	}
	if len(data) > c.MaxSendDataSegmentLength() {
		c.fail(errTooLong)
		return
	}
	// Initiators close the connection after these. Going first would race with them: libiscsi 1.19 then takes our
	// disconnect for one of its next connection.
	c.peerCloses = bhs.Opcode() == pdu.OpLogoutResponse || bhs.Opcode() == pdu.OpLoginResponse && bhs.LoginResponse().StatusClass() != 0
	// Padded, as on any transport; initiators take both, and 128 is a multiple of four.
	padded := (len(data) + 3) &^ 3
	index, slot := c.takeSendSlot(padded)
	if slot == nil {
		return
	}
	h := Header{}
	h.Put(slot.mem)
	copy(slot.mem[HeaderLength:], bhs[:])
	slot.mem[HeaderLength+5], slot.mem[HeaderLength+6], slot.mem[HeaderLength+7] = byte(len(data)>>16), byte(len(data)>>8), byte(len(data))
	copy(slot.mem[headersLength:], data)
	clear(slot.mem[headersLength+len(data) : headersLength+padded])
	slot.length = uint32(headersLength + padded)
	slot.task = t
	if c.invalidate && t != nil {
		slot.inv = invalidateFor(t)
	}
	c.queueItem(item{itemSend, index})
}

// invalidateFor is the one STag that the response of t may invalidate: one that came with this very command. A command
// whose data is all immediate has none, and the initiator ends the connection over an STag it did not expect.
func invalidateFor(t *iscsi.Task) uint32 {
	h := headerOf(t)
	if h.RSV && h.ReadSTag != 0 {
		return h.ReadSTag
	}
	if h.WSV {
		return h.WriteSTag
	}
	return 0
}

// takeSendSlot finds a free slot for n bytes of data. There always is one (see mayDispatch), unless the engine talks
// without being asked to a peer that does not listen: that connection is ended.
func (c *conn) takeSendSlot(n int) (uint32, *sendSlot) {
	list := &c.tx.small
	if n > fullFeatureData || len(*list) == 0 {
		list = &c.tx.large
	}
	k := len(*list)
	if k == 0 {
		c.fail(errSendSlots)
		return 0, nil
	}
	index := (*list)[k-1]
	*list = (*list)[:k-1]
	slot := &c.tx.slots[index]
	slot.inv, slot.task = 0, nil
	return index, slot
}

func (c *conn) freeSendSlot(index uint32) {
	slot := &c.tx.slots[index]
	slot.task = nil
	if slot.large {
		c.tx.large = append(c.tx.large, index)
	} else {
		c.tx.small = append(c.tx.small, index)
	}
}

// answerHello answers a Hello message with the number of RDMA READs that we shall have out.
func (c *conn) answerHello(h Hello, length int) {
	index, slot := c.takeSendSlot(0)
	if slot == nil {
		return
	}
	slot.length = uint32(putHelloReply(slot.mem, h, uint16(c.ord), length))
	c.queueItem(item{itemSend, index})
	if !h.acceptable() {
		c.end(phaseGraceful, errVersion)
	}
}

var errVersion = errors.New("iser: the initiator speaks another version of iSER")

func (c *conn) queueItem(it item) {
	c.tx.queue.push(it)
	c.markDirty()
}

// build appends what c has queued to the shard's batch, as far as credits reach.
func (c *conn) build() {
	if c.phase > phaseGraceful || c.qp == nil {
		return
	}
	s := c.s
	firstRecv, firstSend := len(s.recvs), len(s.sends)
	c.buildReceives()
	c.buildReads()
	c.buildItems()
	if n := len(s.sends); n > firstSend {
		// Whatever else is signaled, the last one is: credits come back, nothing waits for a completion that is not
		// on its way.
		if last := &s.sends[n-1]; last.Flags&rdma.SendSignaled == 0 {
			last.Flags |= rdma.SendSignaled
			s.counters.signaled.inc()
			c.tx.unsignaled = 0
		}
	}
	if len(s.recvs) > firstRecv || len(s.sends) > firstSend {
		s.posts = append(s.posts, rdma.QPPost{
			QP:    c.qp,
			Recvs: s.recvs[firstRecv:len(s.recvs):len(s.recvs)],
			Sends: s.sends[firstSend:len(s.sends):len(s.sends)],
		})
		s.owners = append(s.owners, c)
	}
}

// buildItems takes responses and data-in in the order they were queued.
func (c *conn) buildItems() {
	for c.tx.queue.len() > 0 {
		if c.tx.room() <= 0 {
			c.s.counters.waitSQ.inc()
			return
		}
		it := *c.tx.queue.front()
		if it.kind == itemData {
			if !c.buildWrites(it.index) {
				return
			}
			c.tx.queue.pop()
			continue
		}
		c.tx.queue.pop()
		slot := &c.tx.slots[it.index]
		wr := rdma.SendWR{Op: rdma.OpSend}
		if slot.inv != 0 {
			wr.Op, wr.InvRKey = rdma.OpSendWithInv, slot.inv
		}
		if int(slot.length) <= c.caps.MaxInline {
			wr.Flags |= rdma.SendInline
		}
		k := len(c.s.sges)
		c.s.sges = append(c.s.sges, rdma.SGE{Addr: slot.addr, Length: slot.length, LKey: slot.key})
		wr.SGE = c.s.sges[k : k+1 : k+1]
		c.addSend(wr, record{recordSend, it.index}, int(slot.length))
	}
}

// addSend appends a work request to the batch.
func (c *conn) addSend(wr rdma.SendWR, r record, bytes int) {
	t := &c.tx
	t.posted++
	t.records[t.posted&uint32(len(t.records)-1)] = r
	wr.ID = c.idBase | wrID(idSend, 0, 0, t.posted)
	t.unsignaled++
	// A quarter of the queue at a time comes back while a long chain is still under way.
	if 4*t.unsignaled >= t.capacity {
		wr.Flags |= rdma.SendSignaled
	}
	if wr.Flags&rdma.SendSignaled != 0 {
		t.unsignaled = 0
	}
	c.s.counters.countWR(&wr, bytes)
	c.s.counters.sendOutstanding.inc()
	c.s.sends = append(c.s.sends, wr)
}

// complete handles a completion of c.
func (c *conn) complete(wc *rdma.WC) {
	switch idKindOf(wc.ID) {
	case idRecv:
		c.received(wc)
	case idSend:
		c.sent(wc)
	case idRecvSentinel, idSendSentinel:
		if c.phase == phaseDraining && c.sentinels > 0 {
			c.sentinels--
		}
	default:
		c.s.counters.stale.inc()
	}
}

// sent handles a completion of the send queue.
func (c *conn) sent(wc *rdma.WC) {
	t := &c.tx
	n := (idNumber(wc.ID) - t.done) & idNumberMask
	if n == 0 || int(n) > t.outstanding() {
		// Some devices report a broken request twice.
		c.s.counters.stale.inc()
		return
	}
	c.s.counters.sendOutstanding.add(-int(n))
	if wc.Status != rdma.StatusSuccess {
		t.done += n
		if c.phase < phaseDraining {
			if wc.Status == rdma.StatusRNRRetryExcErr {
				c.s.counters.rnr.inc()
			}
			c.fail(wc.Err())
		}
		return
	}
	for ; n > 0 && c.phase <= phaseGraceful; n-- {
		t.done++
		c.finished(t.records[t.done&uint32(len(t.records)-1)])
	}
	t.done += n
	if c.tx.queue.len() > 0 || c.reads.len() > 0 {
		c.markDirty()
	}
}

// finished handles one work request that has left.
func (c *conn) finished(r record) {
	switch r.kind {
	case recordSend:
		t := c.tx.slots[r.index].task
		c.freeSendSlot(r.index)
		if c.rx.held.len() > 0 {
			c.s.notes = append(c.s.notes, note{c: c, kind: noteHeld})
		}
		if t != nil {
			c.eng.TaskReleased(t)
		}
	case recordRead:
		c.readDone(r.index)
	}
}
