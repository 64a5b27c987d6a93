package softroce

import (
	"encoding/binary"
	"time"

	"iserd/rdma"
)

// The requester's half of a queue pair: it turns requests into packets, within a window of unacknowledged ones, and goes
// back to the oldest of them when one is lost (IBTA 9.7). A request's packets are numbered when it is posted, so that
// the place in it follows from the number.

const (
	ackEvery = 16 // packets: an acknowledgement is asked for at least that often
	// readChunk is how much one READ request asks for at most.
	readChunk = 32 << 10
)

// packets is how many packets n bytes take: one at least.
func packets(n, mtu uint32) uint32 {
	if n == 0 {
		return 1
	}
	return (n + mtu - 1) / mtu
}

// inFlight is the number of packets that are not acknowledged.
func (s *sendQueue) inFlight() uint32 { return (s.next - s.una) & psnMask }

// pump sends what may be sent. mu is held.
func (q *qp) pump() {
	s := &q.sq
	for q.state == qpReady && !s.blocked && s.cur < s.tail {
		w := s.at(s.cur)
		if w.fence && q.readBefore(s.cur) {
			break
		}
		if w.op == rdma.OpRDMARead {
			if !q.sendRead(w) {
				break
			}
		} else if !q.sendMessage(w) {
			break
		}
		s.cur++
	}
	if q.state == qpReady && s.next != s.una {
		q.watch()
	}
}

// watch puts the queue pair under the timers' eyes.
func (q *qp) watch() {
	if !q.watched {
		q.watched = true
		q.dev.timers.add(q)
	}
}

// readBefore tells whether a READ before the request seq is not complete.
func (q *qp) readBefore(seq uint64) bool {
	for i := q.sq.done; i < seq; i++ {
		if q.sq.at(i).op == rdma.OpRDMARead {
			return true
		}
	}
	return false
}

// advance counts n packets as sent.
func (s *sendQueue) advance(n uint32) {
	if s.sampling == sampleWanted {
		s.sampling, s.sample, s.sampled = sampleRunning, s.next, time.Now()
	}
	s.next = (s.next + n) & psnMask
	if psnDiff(s.next, s.max) > 0 {
		s.max = s.next
	}
}

// localError ends a request whose own memory may not be used: at once, if everything before it is done, else when its
// turn comes again.
func (q *qp) localError() {
	if q.sq.cur == q.sq.done {
		q.sendError(rdma.StatusLocProtErr)
	}
}

// chunkOf is how many packets one READ request asks for at most: few enough that several fit the window and the buffer
// that their responses come to. A request splits at multiples of it, the same ones when it is repeated: a responder need
// not answer a repeated READ that goes beyond the one that it knows.
func chunkOf(mtu, room uint32) uint32 { return max(min(readChunk, room/4)/mtu, 1) }

// sendRead asks for the rest of w. It is true when all of it was asked for.
func (q *qp) sendRead(w *sendWQE) bool {
	s := &q.sq
	if q.path.ord == 0 {
		if s.cur == s.done {
			q.sendError(rdma.StatusLocQPOpErr)
		}
		return false
	}
	if !s.pieces(s.cur).granted(&q.dev.mrs, q.pd, rdma.AccessLocalWrite) {
		q.localError()
		return false
	}
	for {
		i := uint32(psnDiff(s.next, w.first))
		off := i * q.path.mtu
		n := min(w.length-off, (q.sq.chunk-i%q.sq.chunk)*q.path.mtu)
		k := packets(n, q.path.mtu)
		if s.reads.n >= q.path.ord || s.inFlight() > 0 && s.inFlight()+k > s.window || !q.ask(n) {
			return false
		}
		b := q.path.sock.begin(bthLen + rethLen + icrcLen)
		putBTH(b, opReadRequest, 0, false, true, q.path.destQP, s.next)
		putRETH(b[bthLen:], w.raddr+uint64(off), w.rkey, n)
		q.path.sock.end(q.path.peer, &q.path.flow)
		s.noAck = 0
		s.advance(k)
		s.reads.push((s.next - 1) & psnMask)
		if off+n == w.length {
			return true
		}
	}
}

// sendMessage sends the packets of a SEND or RDMA WRITE from next on. It is true when the last one went.
func (q *qp) sendMessage(w *sendWQE) bool {
	s := &q.sq
	mtu, sock := q.path.mtu, q.path.sock
	for {
		flying := s.inFlight()
		if flying >= s.window {
			return false
		}
		off := uint32(psnDiff(s.next, w.first)) * mtu
		n := min(w.length-off, mtu)
		last := off+n == w.length
		op, head := w.opcode(off == 0, last)
		pad := int(-n & 3)
		// The last packet of what there is asks for an acknowledgement, and one in so many before it. So does the last one
		// before a request that may have to wait for it, and every one that is sent again: else nobody would say anything
		// more, and what waits would wait for ever.
		s.noAck++
		ack := last && (w.signaled || s.recovering || s.waitsBehind()) || s.noAck >= ackEvery || flying+1 >= s.window
		if ack {
			s.noAck = 0
		}
		b := sock.begin(bthLen + head + int(n) + pad + icrcLen)
		putBTH(b, op, pad, last && w.solicited, ack, q.path.destQP, s.next)
		h := b[bthLen:]
		if op.has(hasRETH) {
			putRETH(h, w.raddr, w.rkey, w.length)
		}
		if op.has(hasIETH) {
			binary.BigEndian.PutUint32(h, w.inv)
		}
		h = h[head:]
		if w.inline {
			i := int(s.cur%uint64(len(s.ring))) * q.caps.MaxInline
			copy(h[:n], s.inline[i+int(off):])
		} else if !s.pieces(s.cur).gather(&q.dev.mrs, q.pd, h[:n], off) {
			sock.abandon()
			q.localError()
			return false
		}
		clear(h[n : int(n)+pad])
		sock.end(q.path.peer, &q.path.flow)
		s.advance(1)
		if last {
			return true
		}
	}
}

// waitsBehind tells whether what follows the request that is being sent may not be sent at once: there is none, or it is a
// READ, which is asked for in pieces that must fit the window, or it waits for READs.
func (s *sendQueue) waitsBehind() bool {
	if s.cur+1 == s.tail {
		return true
	}
	next := s.at(s.cur + 1)
	return next.op == rdma.OpRDMARead || next.fence
}

// opcode is that of the first, last, only or a middle packet, with the length of its extended headers.
func (w *sendWQE) opcode(first, last bool) (opcode, int) {
	write := w.op == rdma.OpRDMAWrite
	inv := w.op == rdma.OpSendWithInv
	switch {
	case first && last && write:
		return opWriteOnly, rethLen
	case first && last && inv:
		return opSendOnlyInv, iethLen
	case first && last:
		return opSendOnly, 0
	case first && write:
		return opWriteFirst, rethLen
	case first:
		return opSendFirst, 0
	case last && write:
		return opWriteLast, 0
	case last && inv:
		return opSendLastInv, iethLen
	case last:
		return opSendLast, 0
	case write:
		return opWriteMiddle, 0
	}
	return opSendMiddle, 0
}

// response takes an acknowledgement or a READ response. mu is held, the queue pair is ready.
func (q *qp) response(p *packet) {
	s := &q.sq
	switch {
	case psnDiff(p.psn, s.max) >= 0: // never sent: a ghost (IBTA 9.7.5.1.1)
	case psnDiff(p.psn, s.una) < 0: // old
		s.old(p.psn)
		if p.op.has(hasPayload) {
			s.early.again(p.psn, s.rtt)
		}
	case s.early.wait > 0 && q.keepResponse(p):
	default:
		q.take(p)
		if s.early.open {
			q.responsesInTurn()
		}
	}
}

// take takes a response that is neither old nor a ghost.
func (q *qp) take(p *packet) {
	switch {
	case p.op != opAcknowledge && p.op != opAtomicAck:
		q.readResponse(p)
	case p.op == opAtomicAck: // atomics are not posted by anyone here
	case p.syndrome>>5 == 0: // ACK
		q.acknowledge((p.psn + 1) & psnMask)
		q.pump()
	case p.syndrome>>5 == 1: // RNR NAK
		if q.acknowledge(p.psn) {
			q.rnr(p.syndrome & 31)
		}
	case p.syndrome>>5 == 3: // NAK
		if q.acknowledge(p.psn) {
			q.nak(p.syndrome & 31)
		}
	}
}

// acknowledge completes what lies before psn. READs complete by their data alone: an acknowledgement beyond one whose
// data is missing means that the data was lost, and asks for it again. It is false when that happened.
func (q *qp) acknowledge(psn uint32) bool {
	s := &q.sq
	for s.done < s.tail && psnDiff(psn, s.una) > 0 {
		w := s.at(s.done)
		if w.op == rdma.OpRDMARead {
			if !s.recovering {
				s.early.tell(s.una)
				q.recover()
			}
			return false
		}
		if psnDiff(psn, w.last) <= 0 {
			q.setUna(psn)
			break
		}
		q.setUna((w.last + 1) & psnMask)
		q.complete(w)
	}
	return q.state == qpReady
}

// complete ends the oldest request that is not complete.
func (q *qp) complete(w *sendWQE) {
	s := &q.sq
	s.done++
	if s.cur < s.done {
		s.cur = s.done
	}
	if !w.signaled {
		return
	}
	op := rdma.WCSend
	switch w.op {
	case rdma.OpRDMARead:
		op = rdma.WCRDMARead
	case rdma.OpRDMAWrite:
		op = rdma.WCRDMAWrite
	}
	q.pushSend(rdma.WC{ID: w.id, Op: op, ByteLen: w.length, QPNum: q.num})
}

// readResponse takes a READ response: in order, or it is lost.
func (q *qp) readResponse(p *packet) {
	s := &q.sq
	// Everything before it is acknowledged by it.
	if !q.acknowledge(p.psn) || p.psn != s.una || s.done >= s.tail {
		return
	}
	w := s.at(s.done)
	if w.op != rdma.OpRDMARead {
		return
	}
	off := uint32(psnDiff(p.psn, w.first)) * q.path.mtu
	n := min(w.length-off, q.path.mtu)
	if uint32(len(p.payload)) != n {
		q.sendError(rdma.StatusBadRespErr)
		return
	}
	if !s.pieces(s.done).scatter(&q.dev.mrs, q.pd, p.payload, off) {
		q.sendError(rdma.StatusLocProtErr)
		return
	}
	if s.next != s.una { // else it was asked for before going back, and not again yet
		q.answered(n)
	}
	s.early.came(p.psn)
	ends := s.reads.pop(p.psn)
	q.setUna((p.psn + 1) & psnMask)
	if off+n == w.length {
		q.complete(w)
	}
	if ends || s.next == s.una {
		q.pump()
	}
}
