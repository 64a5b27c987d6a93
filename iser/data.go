package iser

import (
	"errors"

	"iserd/iscsi"
	"iserd/rdma"
)

// maxPieces bounds the scatter list of one work request: longer ones make every request of a queue pair longer.
const maxPieces = 8

// taskIO is what the datamover knows of a task's data.
type taskIO struct {
	task    *iscsi.Task
	buffers []rdma.Buf // of AllocateDataBuffers
	pieces  [][]byte   // the same, as given out
	bounce  []rdma.Buf // for copies of data-in that lies in memory that is not registered
	copies  [][]byte   // the copies

	move        [][]byte // what is moved now, in pieces
	one         [1][]byte
	piece, off  int    // where in move
	left        uint32 // bytes not yet posted
	remote      uint64 // initiator's address of the next byte
	stag        uint32
	outstanding int  // RDMA READs
	reading     bool // DataCompletionNotify is owed
	copyFirst   bool // data-in waits for room to be copied to
}

// start sets what is to be moved.
func (io *taskIO) start(t *iscsi.Task, move [][]byte, n uint32, stag uint32, remote uint64) {
	io.task, io.move, io.left, io.stag, io.remote = t, move, n, stag, remote
	io.piece, io.off = 0, 0
}

// next is the longest run of bytes at the current place that lies in one piece, at most max long.
func (io *taskIO) next(limit uint32) []byte {
	for io.piece < len(io.move) && io.off == len(io.move[io.piece]) {
		io.piece++
		io.off = 0
	}
	if io.piece == len(io.move) {
		return nil
	}
	b := io.move[io.piece][io.off:]
	return b[:min(uint32(len(b)), limit, io.left)]
}

// taken moves the current place on.
func (io *taskIO) taken(n uint32) {
	io.off += int(n)
	io.left -= n
	io.remote += uint64(n)
}

// AllocateDataBuffers implements [iscsi.Datamover].
func (c *conn) AllocateDataBuffers(t *iscsi.Task, n uint32) ([][]byte, bool) {
	if c.phase > phaseGraceful || t.Index >= len(c.io) {
		return nil, false
	}
	io := &c.io[t.Index]
	if !c.s.mayAllocate(c) {
		c.s.wait(c)
		return nil, false
	}
	first, firstPiece := len(io.buffers), len(io.pieces)
	var ok bool
	if io.buffers, ok = c.s.getBuffers(io.buffers, n); !ok {
		c.s.wait(c)
		return nil, false
	}
	for _, b := range io.buffers[first:] {
		k := min(uint32(len(b.Bytes())), n)
		io.pieces = append(io.pieces, b.Bytes()[:k:k])
		n -= k
	}
	return io.pieces[firstPiece:len(io.pieces):len(io.pieces)], true
}

// DeallocateTaskResources implements [iscsi.Datamover].
func (c *conn) DeallocateTaskResources(t *iscsi.Task) {
	if t.Index < len(c.io) {
		c.freeTask(&c.io[t.Index])
	}
}

func (c *conn) freeTask(io *taskIO) {
	c.s.putBuffers(io.buffers)
	c.s.putBuffers(io.bounce)
	clear(io.pieces)
	clear(io.copies)
	io.buffers, io.pieces, io.bounce = io.buffers[:0], io.pieces[:0], io.bounce[:0]
	io.task, io.move, io.one[0] = nil, nil, nil
	io.left, io.reading, io.copyFirst = 0, false, false
}

// PutData implements [iscsi.Datamover].
func (c *conn) PutData(t *iscsi.Task) {
	if c.phase > phaseGraceful {
		return
	}
	// The initiator's buffer is as long as it said; more is never written.
	n := min(t.Command.DataInLength, t.Command.ExpectedIn)
	if n == 0 {
		return
	}
	h := headerOf(t)
	if !h.RSV || h.ReadSTag == 0 {
		c.fail(errNoReadSTag)
		return
	}
	io := &c.io[t.Index]
	io.start(t, t.Command.Data, n, h.ReadSTag, h.ReadBaseOffset)
	if !c.s.registered(t.Command.Data, n) {
		io.copyFirst = !c.copyOut(io)
	}
	c.queueItem(item{itemData, uint32(t.Index)})
}

// copyOut copies data-in that lies in memory that the device does not know: the small answers of the device server, and
// stores whose memory could not be registered. It fails while the pool is short.
func (c *conn) copyOut(io *taskIO) bool {
	n := io.left
	i := io.task.Index * scratchSize
	if n <= scratchSize {
		b := c.scratch[i : i+int(n) : i+int(n)]
		gather(b, io.move)
		io.one[0] = b
		io.move = io.one[:]
		c.s.counters.bounced.add(int(n))
		return true
	}
	if !c.s.mayAllocate(c) {
		c.s.wait(c)
		return false
	}
	var ok bool
	if io.bounce, ok = c.s.getBuffers(io.bounce, n); !ok {
		c.s.wait(c)
		return false
	}
	io.copies = io.copies[:0]
	rest := n
	for _, b := range io.bounce {
		k := min(uint32(len(b.Bytes())), rest)
		io.copies = append(io.copies, b.Bytes()[:k])
		rest -= k
	}
	for _, p := range io.copies {
		for len(p) > 0 {
			from := io.next(uint32(len(p)))
			if len(from) == 0 {
				break
			}
			copy(p, from)
			p = p[len(from):]
			io.off += len(from)
		}
	}
	io.move, io.piece, io.off = io.copies, 0, 0
	c.s.counters.bounced.add(int(n))
	return true
}

// gather fills dst from the pieces.
func gather(dst []byte, pieces [][]byte) {
	for _, p := range pieces {
		dst = dst[copy(dst, p):]
	}
}

// buildWrites posts RDMA WRITEs of a task's data-in; false when it could not post them all.
func (c *conn) buildWrites(index uint32) bool {
	io := &c.io[index]
	if io.copyFirst {
		if io.copyFirst = !c.copyOut(io); io.copyFirst {
			return false
		}
	}
	for io.left > 0 {
		if c.tx.room() <= 0 {
			c.s.counters.waitSQ.inc()
			return false
		}
		wr := rdma.SendWR{Op: rdma.OpRDMAWrite, RemoteAddr: io.remote, RKey: io.stag}
		var n uint32
		if wr.SGE, n = c.takeSGEs(io, c.s.dev.writeSGE, c.s.dev.maxMessage); n == 0 {
			break // fewer bytes than the command said: the residual is the engine's to report
		}
		c.addSend(wr, record{recordWrite, index}, int(n))
	}
	return true
}

// takeSGEs names the next bytes of io, at most limit of them in at most pieces pieces.
func (c *conn) takeSGEs(io *taskIO, pieces int, limit uint32) ([]rdma.SGE, uint32) {
	s := c.s
	first, total := len(s.sges), uint32(0)
	for len(s.sges)-first < pieces && total < limit && io.left > 0 {
		b := io.next(limit - total)
		if len(b) == 0 {
			break
		}
		n := uint32(len(b))
		key, ok := s.keyOf(b)
		if !ok {
			c.fail(errUnregistered)
			break
		}
		s.sges = append(s.sges, rdma.SGE{Addr: rdma.AddrOf(b), Length: n, LKey: key})
		io.taken(n)
		total += n
	}
	return s.sges[first:len(s.sges):len(s.sges)], total
}

// GetData implements [iscsi.Datamover].
func (c *conn) GetData(t *iscsi.Task, offset, length uint32, dst [][]byte) {
	if c.phase > phaseGraceful {
		return
	}
	if length == 0 {
		c.s.notes = append(c.s.notes, note{c: c, kind: noteData, t: t})
		return
	}
	h := headerOf(t)
	// The base offset is that of the first byte after the immediate data: initiators have added its length already. A
	// write that is all immediate data may come with WSV and STag 0; it needs no STag, but then nothing is read either.
	if !h.WSV || h.WriteSTag == 0 || offset < t.ImmediateLength || uint64(offset)+uint64(length) > uint64(t.Command.ExpectedOut) {
		c.s.notes = append(c.s.notes, note{c: c, kind: noteData, t: t, err: iscsi.ErrDataSequence})
		return
	}
	io := &c.io[t.Index]
	io.start(t, dst, length, h.WriteSTag, h.WriteBaseOffset+uint64(offset-t.ImmediateLength))
	io.reading = true
	c.reads.push(uint32(t.Index))
	c.markDirty()
}

// buildReads posts RDMA READs, oldest task first, as many as the initiator answers at a time. What does not fit waits
// for completions; a device that had more out than that would fail or stall its whole send queue.
func (c *conn) buildReads() {
	d := c.s.dev
	limit := d.maxMessage
	if c.maxBurst > 0 {
		limit = min(limit, c.maxBurst)
	}
	for c.reads.len() > 0 {
		if c.ordOut >= c.ord {
			c.s.counters.waitORD.inc()
			return
		}
		if c.tx.room() <= 0 {
			c.s.counters.waitSQ.inc()
			return
		}
		index := *c.reads.front()
		io := &c.io[index]
		if io.left == 0 { // canceled meanwhile
			c.reads.pop()
			continue
		}
		wr := rdma.SendWR{Op: rdma.OpRDMARead, RemoteAddr: io.remote, RKey: io.stag, Flags: rdma.SendSignaled}
		var n uint32
		if wr.SGE, n = c.takeSGEs(io, d.readSGE, limit); n == 0 {
			c.fail(errUnregistered)
			return
		}
		io.outstanding++
		c.ordOut++
		c.addSend(wr, record{recordRead, index}, int(n))
		if io.left == 0 {
			c.reads.pop()
		}
	}
}

// readDone handles the end of one RDMA READ.
func (c *conn) readDone(index uint32) {
	io := &c.io[index]
	c.ordOut--
	io.outstanding--
	if io.reading && io.left == 0 && io.outstanding == 0 {
		io.reading = false
		c.eng.DataCompletionNotify(io.task, nil)
	}
}

// CancelData implements [iscsi.DataCanceler]: no further RDMA READ of t is posted. Those that are out end by themselves.
func (c *conn) CancelData(t *iscsi.Task) {
	if c.phase > phaseGraceful || t.Index >= len(c.io) {
		return
	}
	io := &c.io[t.Index]
	if !io.reading || io.left == 0 {
		return // its end is on the way
	}
	io.left = 0
	if io.outstanding == 0 {
		io.reading = false
		c.s.notes = append(c.s.notes, note{c: c, kind: noteData, t: t, err: errCanceled})
	}
}

var errCanceled = errors.New("iser: canceled")

// buffersBack is called when buffers came back and it is c's turn to try.
func (c *conn) buffersBack() {
	if c.phase > phaseGraceful {
		return
	}
	if c.tx.queue.len() > 0 {
		if it := c.tx.queue.front(); it.kind == itemData && c.io[it.index].copyFirst {
			if io := &c.io[it.index]; c.copyOut(io) {
				io.copyFirst = false
				c.markDirty()
			}
		}
	}
	if !c.waiting {
		c.eng.BuffersNotify()
	}
}
