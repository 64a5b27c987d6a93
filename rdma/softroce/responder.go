package softroce

import (
	"time"

	"iserd/rdma"
)

// The responder's half of a queue pair: it executes requests in order, acknowledges them, refuses what was not granted,
// and answers what comes twice (IBTA 9.7).

// Codes of a NAK, and the kinds of AETH syndrome.
const (
	nakSequence = 0
	nakInvalid  = 1
	nakAccess   = 2
	nakRemoteOp = 3

	synACK = 0x1f // no credit count
	synRNR = 0x20
	synNAK = 0x60
)

// rnrDelay are the delays that the codes of an RNR NAK stand for (IBTA 9.7.5.2.8).
var rnrDelay = func() (t [32]time.Duration) {
	us := [32]int{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360,
		20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}
	for i, v := range us {
		t[i] = time.Duration(v) * time.Microsecond
	}
	return t
}()

// message is what the responder is in the middle of.
type message uint8

const (
	noMessage message = iota
	inSend
	inWrite
)

type responder struct {
	psn      uint32 // expected next
	msn      uint32
	rnrTimer uint8
	in       message
	// The SEND in progress: its receive and the bytes that came.
	recv    recvWQE
	recvSeq uint64
	off     uint32
	// The WRITE in progress: where the next byte goes, and how many are missing.
	va   uint64
	rkey uint32
	left uint32
	// quiet: one NAK for each gap.
	quiet  bool
	early  early // requests that came before their turn
	ackDue bool
	// owed is the syndrome of a NAK that is due when the READs before it are answered; zero: none. A fatal one fails the
	// queue pair then, and nothing is executed before.
	owed  uint8
	fatal bool
	// READs that are being answered: a ring.
	reads       []readResp
	head, count int
	// The newest READs, answered or not: as many as the peer may wait for.
	known  []readResp
	nknown int
}

// readResp is a READ request that is being answered.
type readResp struct {
	va         uint64
	rkey       uint32
	length     uint32
	first, psn uint32 // its first number, and that of the next response
	again      bool   // it was answered before
}

// request takes one request packet of the peer. mu is held, the queue pair is ready.
func (q *qp) request(p *packet) {
	r := &q.resp
	if r.fatal {
		return
	}
	switch d := psnDiff(p.psn, r.psn); {
	case d > 0:
		if r.quiet && !r.early.telling || q.keep(&r.early, r.psn, p) {
			return // without a receive, what follows is not kept
		}
		if !r.quiet {
			q.missing()
		}
	case d < 0:
		r.early.again(p.psn, q.sq.rtt)
		q.duplicate(p)
	default:
		r.early.came(p.psn)
		q.execute(p)
		if r.early.open {
			q.inTurn()
		}
	}
}

// missing owes the peer the news that a packet is missing.
func (q *qp) missing() {
	r := &q.resp
	r.quiet = true
	r.owed = synNAK | nakSequence
	r.early.tell(r.psn)
	q.dev.counters.gaps.Add(1)
}

// execute executes the packet whose turn it is.
func (q *qp) execute(p *packet) {
	r := &q.resp
	r.quiet, r.owed = false, 0
	if p.op == opReadRequest {
		q.read(p)
		return
	}
	if !p.op.has(isSend | isWrite) {
		q.refuse(nakInvalid)
		return
	}
	first, last := p.op.has(isFirst), p.op.has(isLast)
	kind := inSend
	if p.op.has(isWrite) {
		kind = inWrite
	}
	if first != (r.in == noMessage) || !first && r.in != kind {
		q.refuse(nakInvalid)
		return
	}
	n := uint32(len(p.payload))
	if n > q.path.mtu || !last && n != q.path.mtu || !first && n == 0 {
		q.refuse(nakInvalid)
		return
	}
	if kind == inSend {
		if !q.sendPacket(p, first) {
			return
		}
		r.in = inSend
		if last && !q.endSend(p) {
			return
		}
	} else if !q.writePacket(p, first, last) {
		return
	} else {
		r.in = inWrite
	}
	if last {
		r.in = noMessage
		r.msn = (r.msn + 1) & psnMask
	}
	r.psn = (r.psn + 1) & psnMask
	if p.ackReq {
		r.ackDue = true
	}
}

// takeRecv takes the next receive. Without one the peer is told to try again, and the packet was not executed.
func (q *qp) takeRecv() bool {
	r := &q.resp
	if q.rq.done == q.rq.tail {
		r.owed = synRNR | r.rnrTimer
		r.quiet = true // what follows it in flight is not answered
		q.dev.counters.rnrSent.Add(1)
		return false
	}
	r.recvSeq = q.rq.done
	r.recv = *q.rq.at(q.rq.done)
	q.rq.done++
	r.off = 0
	return true
}

// sendPacket puts one packet of a SEND into the receive buffer. It is false when the packet was refused.
func (q *qp) sendPacket(p *packet, first bool) bool {
	r := &q.resp
	if first && !q.takeRecv() {
		return false
	}
	n := uint32(len(p.payload))
	if uint64(r.off)+uint64(n) > uint64(r.recv.length) {
		q.recvError(rdma.StatusLocLenErr, nakInvalid)
		return false
	}
	// The receive's place is not given back before its completion is polled, so its pieces are still there.
	if !q.rq.pieces(r.recvSeq).scatter(&q.dev.mrs, q.pd, p.payload, r.off) {
		q.recvError(rdma.StatusLocProtErr, nakRemoteOp)
		return false
	}
	r.off += n
	return true
}

// recvError completes the receive in progress with a status and refuses the packet.
func (q *qp) recvError(st rdma.Status, code uint8) {
	q.resp.in = inSend
	q.recvInProgress(st)
	q.refuse(code)
}

// endSend completes a received SEND.
func (q *qp) endSend(p *packet) bool {
	r := &q.resp
	wc := rdma.WC{ID: r.recv.id, Op: rdma.WCRecv, ByteLen: r.off, QPNum: q.num}
	if p.op.has(hasIETH) {
		if !q.dev.mrs.invalidate(q.pd, p.invKey) {
			q.recvError(rdma.StatusLocAccessErr, nakAccess)
			return false
		}
		wc.WithInv, wc.InvRKey = true, p.invKey
	}
	q.pushRecv(wc)
	return true
}

// writePacket puts one packet of an RDMA WRITE where it belongs.
func (q *qp) writePacket(p *packet, first, last bool) bool {
	r := &q.resp
	if first {
		r.va, r.rkey, r.left = p.va, p.rkey, p.dmaLen
		if r.left > 0 && !q.dev.mrs.granted(q.pd, r.rkey, r.va, r.left, rdma.AccessRemoteWrite) {
			q.refuse(nakAccess)
			return false
		}
	}
	n := uint32(len(p.payload))
	if n > r.left || last && n != r.left {
		q.refuse(nakInvalid)
		return false
	}
	if last && p.op.has(hasImm) {
		// The immediate value has no place in a completion here; the receive that it takes is told without data.
		if !q.takeRecv() {
			return false
		}
	}
	if n > 0 {
		b, m, ok := q.dev.mrs.acquire(q.pd, r.rkey, r.va, n, rdma.AccessRemoteWrite)
		if !ok {
			if last && p.op.has(hasImm) {
				r.in = inSend
				q.recvInProgress(rdma.StatusFlushed)
			}
			q.refuse(nakAccess)
			return false
		}
		copy(b, p.payload)
		m.release()
		r.va += uint64(n)
		r.left -= n
	}
	if last && p.op.has(hasImm) {
		q.pushRecv(rdma.WC{ID: r.recv.id, Op: rdma.WCRecv, QPNum: q.num})
	}
	return true
}

// read takes an RDMA READ request. It is answered by settle, a burst at a time.
func (q *qp) read(p *packet) {
	r := &q.resp
	if r.count == len(r.reads) && r.reads[r.head].again {
		// A peer that keeps to its limit has the oldest answer by now: it asked again while the first was on its way.
		r.head = (r.head + 1) % len(r.reads)
		r.count--
	}
	if r.in != noMessage || q.path.ird == 0 || r.count == len(r.reads) || p.dmaLen > maxMsgSize {
		q.refuse(nakInvalid)
		return
	}
	if p.dmaLen > 0 && !q.dev.mrs.granted(q.pd, p.rkey, p.va, p.dmaLen, rdma.AccessRemoteRead) {
		q.refuse(nakAccess)
		return
	}
	r.msn = (r.msn + 1) & psnMask
	r.psn = (r.psn + packets(p.dmaLen, q.path.mtu)) & psnMask
	q.enqueueRead(p, false)
	r.known[r.nknown%len(r.known)] = readResp{va: p.va, rkey: p.rkey, length: p.dmaLen, first: p.psn}
	r.nknown++
}

// knows tells whether a READ that comes again is one of the newest, or the rest of one.
func (r *responder) knows(p *packet, mtu uint32) bool {
	for i := range min(r.nknown, len(r.known)) {
		k := &r.known[i]
		d := psnDiff(p.psn, k.first)
		if d < 0 || uint32(d) >= packets(k.length, mtu) || p.rkey != k.rkey {
			continue
		}
		if off := uint32(d) * mtu; p.va == k.va+uint64(off) && p.dmaLen <= k.length-off {
			return true
		}
	}
	return false
}

func (q *qp) enqueueRead(p *packet, again bool) {
	r := &q.resp
	r.reads[(r.head+r.count)%len(r.reads)] = readResp{va: p.va, rkey: p.rkey, length: p.dmaLen, first: p.psn, psn: p.psn, again: again}
	r.count++
}

// duplicate answers a request that was executed before: a READ that is known is answered again, any other is dropped,
// and anything else is acknowledged with the newest number. Half of all numbers are old: who only guessed one must not
// end the connection by a READ that is refused, nor what is being answered.
func (q *qp) duplicate(p *packet) {
	r := &q.resp
	q.dev.counters.duplicates.Add(1)
	if p.op.has(isSend | isWrite) {
		r.ackDue = true
		return
	}
	if p.op != opReadRequest || !r.knows(p, q.path.mtu) {
		return
	}
	if p.dmaLen > 0 && !q.dev.mrs.granted(q.pd, p.rkey, p.va, p.dmaLen, rdma.AccessRemoteRead) {
		return // taken away since
	}
	// The peer goes back, so what is still to be answered from here on will be asked for again.
	for r.count > 0 && psnDiff(r.reads[(r.head+r.count-1)%len(r.reads)].psn, p.psn) >= 0 {
		r.count--
	}
	if r.count < len(r.reads) {
		q.enqueueRead(p, true)
	}
}

// refuse owes a NAK that ends the queue pair.
func (q *qp) refuse(code uint8) {
	q.dev.counters.refused.Add(1)
	q.resp.owed, q.resp.fatal = synNAK|code, true
}

// respBurst is how many packets of READ responses go out before the socket is read again.
const respBurst = 64

// settle sends what the packets of a batch have caused: READ responses, then one acknowledgement or NAK. It is true when
// there are more READ responses than one burst. mu is held.
func (q *qp) settle() bool {
	r := &q.resp
	if q.state != qpReady {
		return false
	}
	for burst := respBurst; r.count > 0; {
		if burst = q.answer(&r.reads[r.head], burst); burst < 0 {
			return false
		}
		if burst == 0 {
			return true
		}
		r.head = (r.head + 1) % len(r.reads)
		r.count--
	}
	switch {
	case r.fatal:
		q.sendAck(r.owed, r.psn)
		t := rdma.AsyncQPReqErr
		if r.owed == synNAK|nakAccess {
			t = rdma.AsyncQPAccessErr
		}
		q.dev.async(rdma.AsyncEvent{Type: t, QPNum: q.num})
		q.fail()
	case r.owed != 0:
		q.sendAck(r.owed, r.psn)
		r.owed, r.ackDue = 0, false
	case r.ackDue:
		r.ackDue = false
		q.sendAck(synACK, (r.psn-1)&psnMask)
	}
	return false
}

// answer sends up to burst responses of one READ, which are fewer than it has if its memory went away and it is not the
// first answer. It returns what is left of the burst, zero when the READ is not done,
// and below zero when the queue pair failed.
func (q *qp) answer(a *readResp, burst int) int {
	k := packets(a.length, q.path.mtu)
	for ; burst > 1; burst-- {
		i := uint32(psnDiff(a.psn, a.first))
		off := i * q.path.mtu
		n := min(a.length-off, q.path.mtu)
		op, head := opReadRespMiddle, 0
		switch {
		case k == 1:
			op, head = opReadRespOnly, aethLen
		case i == 0:
			op, head = opReadRespFirst, aethLen
		case i == k-1:
			op, head = opReadRespLast, aethLen
		}
		pad := int(-n & 3)
		b := q.path.sock.begin(bthLen + head + int(n) + pad + icrcLen)
		putBTH(b, op, pad, false, false, q.path.destQP, a.psn)
		h := b[bthLen:]
		if head > 0 {
			putAETH(h, synACK, q.resp.msn)
			h = h[aethLen:]
		}
		if n > 0 {
			data, m, ok := q.dev.mrs.acquire(q.pd, a.rkey, a.va+uint64(off), n, rdma.AccessRemoteRead)
			if !ok { // taken away since
				q.path.sock.abandon()
				if a.again { // by the peer perhaps, which has the first answer by now and has told us to
					return burst
				}
				q.sendAck(synNAK|nakAccess, a.psn)
				q.fail()
				return -1
			}
			copy(h, data)
			m.release()
		}
		clear(h[n : int(n)+pad])
		q.path.sock.end(q.path.peer, &q.path.flow)
		a.psn = (a.psn + 1) & psnMask
		if i == k-1 {
			return burst - 1
		}
	}
	return 0
}

func (q *qp) sendAck(syndrome uint8, psn uint32) {
	b := q.path.sock.begin(bthLen + aethLen + icrcLen)
	putBTH(b, opAcknowledge, 0, false, false, q.path.destQP, psn)
	putAETH(b[bthLen:], syndrome, q.resp.msn)
	q.path.sock.end(q.path.peer, &q.path.flow)
}
