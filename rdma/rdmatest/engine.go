package rdmatest

import (
	"time"

	"iserd/rdma"
)

type outcome uint8

const (
	outDone    outcome = iota // with the status
	outReading                // will be done later
	outWait                   // cannot go on now; a timer or an event will try again
)

// run executes requests of the send queue as far as they go. It is called whenever something changed that one of them
// may wait for.
func (q *qp) run() {
	if q.running {
		return
	}
	q.running = true
	for q.state == qpReady && q.sqStarted < q.sqPosted {
		w := &q.sq[q.sqStarted%uint64(len(q.sq))]
		if q.reading > 0 && (w.flags&rdma.SendFence != 0 || w.op == rdma.OpRDMARead && q.reading >= q.maxRD) {
			break
		}
		out, status := q.execute(w, q.sqStarted)
		if out == outWait {
			break
		}
		q.waitEpoch++
		q.waiting = false
		if q.state != qpReady {
			break // flushed meanwhile, this request with it
		}
		if out == outReading {
			w.state = wqeReading
			q.reading++
			q.sqStarted++
			continue
		}
		w.state, w.status = wqeDone, status
		q.sqStarted++
		if status != rdma.StatusSuccess {
			q.dev.f.failed(q)
			break
		}
		q.retire()
	}
	q.running = false
}

// failed moves a queue pair to error whose request in the send queue has failed.
func (f *Fabric) failed(q *qp) {
	q.retire()
	q.enterError()
}

// retire completes, in order, what is done.
func (q *qp) retire() {
	for q.sqRetired < q.sqStarted {
		w := &q.sq[q.sqRetired%uint64(len(q.sq))]
		if w.state != wqeDone {
			return
		}
		seq := q.sqRetired
		q.sqRetired++
		if w.status == rdma.StatusSuccess && w.flags&rdma.SendSignaled == 0 && !q.signalAll {
			continue
		}
		e := cqe{q: q, seq: seq}
		if w.status == rdma.StatusSuccess {
			e.wc = rdma.WC{ID: w.id, QPNum: q.num, Op: wcOps[w.op], ByteLen: w.length}
		} else {
			e.wc = badWC(w.id, w.status, q.num)
			q.dev.stats.errors.Add(1)
		}
		q.scq.push(e, q.delay(w.id, false, w.op, seq, w.length))
	}
}

var wcOps = [...]rdma.WCOp{rdma.OpSend: rdma.WCSend, rdma.OpSendWithInv: rdma.WCSend, rdma.OpRDMAWrite: rdma.WCRDMAWrite, rdma.OpRDMARead: rdma.WCRDMARead}

// badWC has garbage in every field that is not valid.
func badWC(id uint64, s rdma.Status, qpNum uint32) rdma.WC {
	return rdma.WC{ID: id, Status: s, QPNum: qpNum, VendorErr: 0xE0 + uint32(s), Op: 0xEE, ByteLen: 0xEEEEEEEE, InvRKey: 0xEEEEEEEE, WithInv: true}
}

func (q *qp) delay(id uint64, recv bool, op rdma.SendOp, n uint64, length uint32) time.Duration {
	if q.f.faults.Delay == nil {
		return 0
	}
	return q.f.faults.Delay(WorkInfo{q.dev.cfg.Name, q.num, recv, op, id, n, length})
}

// completeRecv completes the oldest receive.
func (q *qp) completeRecv(s rdma.Status, n uint32, from *sendWQE) {
	w := &q.rq[q.rqUsed%uint64(len(q.rq))]
	e := cqe{q: q, seq: q.rqUsed, rcv: true}
	if s == rdma.StatusSuccess {
		e.wc = rdma.WC{ID: w.id, QPNum: q.num, Op: rdma.WCRecv, ByteLen: n}
		if from.op == rdma.OpSendWithInv {
			e.wc.WithInv, e.wc.InvRKey = true, from.inv
		}
	} else {
		e.wc = badWC(w.id, s, q.num)
		q.dev.stats.errors.Add(1)
	}
	q.rqUsed++
	q.rcq.push(e, q.delay(w.id, true, 0, e.seq, n))
}

// wait arranges that the request at the head of the queue is looked at again after d; see expire.
func (q *qp) wait(d time.Duration, status rdma.Status) (outcome, rdma.Status) {
	if q.waiting {
		return outWait, 0
	}
	q.waiting = true
	epoch := q.waitEpoch
	q.f.after(d, func() {
		if q.state != qpReady || q.waitEpoch != epoch || !q.waiting {
			return
		}
		q.expire(status)
	})
	return outWait, 0
}

// expire is the end of a wait: RNR may have tries left; an unanswered request fails.
func (q *qp) expire(status rdma.Status) {
	q.waiting = false
	q.waitEpoch++
	if status == rdma.StatusRNRRetryExcErr && (q.rnrRetry == 7 || q.rnrLeft > 0) {
		q.rnrLeft--
		q.run()
		return
	}
	if status == rdma.StatusRetryExcErr && q.reachable() {
		q.run()
		return
	}
	w := &q.sq[q.sqStarted%uint64(len(q.sq))]
	w.state, w.status = wqeDone, status
	q.sqStarted++
	q.f.failed(q)
}

// reachable tells whether the peer would answer.
func (q *qp) reachable() bool {
	p := q.peer
	return p != nil && p.state == qpReady && q.f.linked(q.dev, p.dev)
}

// execute carries one request out, or says what it waits for.
func (q *qp) execute(w *sendWQE, seq uint64) (outcome, rdma.Status) {
	if q.f.faults.Complete != nil && !w.asked {
		w.asked = true
		if s := q.f.faults.Complete(WorkInfo{q.dev.cfg.Name, q.num, false, w.op, w.id, seq, w.length}); s != rdma.StatusSuccess {
			return outDone, s
		}
	}
	if w.length > q.dev.attr.MaxMsgSize {
		return outDone, rdma.StatusLocLenErr
	}
	into := w.op == rdma.OpRDMARead
	for i := range w.sge {
		s := &w.sge[i]
		if s.Length == 0 {
			continue
		}
		b := q.pd.local(s, into)
		if b == nil || into && q.f.cfg.IWARP && q.dev.byKey(s.LKey).access&rdma.AccessRemoteWrite == 0 {
			return outDone, rdma.StatusLocProtErr
		}
	}
	if into && q.maxRD == 0 {
		return outDone, rdma.StatusLocQPOpErr
	}
	if !q.reachable() {
		return q.wait(q.f.cfg.RetryTimeout, rdma.StatusRetryExcErr)
	}
	switch w.op {
	case rdma.OpSend, rdma.OpSendWithInv:
		return q.send(w)
	case rdma.OpRDMAWrite:
		return outDone, q.write(w)
	}
	return q.read(w, seq)
}

// send delivers a message into the peer's oldest receive.
func (q *qp) send(w *sendWQE) (outcome, rdma.Status) {
	p := q.peer
	if p.rqUsed == p.rqPosted {
		if q.waiting {
			return outWait, 0
		}
		p.dev.stats.rnr.Add(1)
		q.f.misuse(MisuseRNR, "a message of %d bytes for %s", w.length, p.describe())
		if q.rnrFor != q.sqStarted+1 {
			q.rnrFor, q.rnrLeft = q.sqStarted+1, int(q.rnrRetry)
		}
		return q.wait(min(rnrDelay(p.rnrTimer), q.f.cfg.MaxRNRDelay), rdma.StatusRNRRetryExcErr)
	}
	r := &p.rq[p.rqUsed%uint64(len(p.rq))]
	room := uint64(0)
	for i := range r.sge {
		s := &r.sge[i]
		if s.Length > 0 && p.pd.local(s, true) == nil {
			p.completeRecv(rdma.StatusLocProtErr, 0, nil)
			p.enterError()
			return outDone, rdma.StatusRemOpErr
		}
		room += uint64(s.Length)
	}
	if uint64(w.length) > room {
		p.completeRecv(rdma.StatusLocLenErr, 0, nil)
		p.enterError()
		return outDone, rdma.StatusRemInvReqErr
	}
	if q.f.faults.Complete != nil {
		n := p.rqUsed
		if s := q.f.faults.Complete(WorkInfo{p.dev.cfg.Name, p.num, true, 0, r.id, n, w.length}); s != rdma.StatusSuccess {
			p.completeRecv(s, 0, nil)
			p.enterError()
			return outDone, rdma.StatusRemOpErr
		}
	}
	if w.op == rdma.OpSendWithInv && !p.pd.invalidate(w.inv) {
		// As soft-RoCE does: the peer's queue pair dies, without an answer.
		p.completeRecv(rdma.StatusRemInvReqErr, 0, nil)
		p.enterError()
		return q.wait(q.f.cfg.RetryTimeout, rdma.StatusRetryExcErr)
	}
	d := scatter{pd: p.pd, sge: r.sge}
	if len(w.inline) > 0 {
		d.put(w.inline)
	}
	for i := range w.sge {
		if w.sge[i].Length > 0 {
			d.put(q.pd.local(&w.sge[i], false))
		}
	}
	p.received()
	p.completeRecv(rdma.StatusSuccess, w.length, w)
	return outDone, rdma.StatusSuccess
}

// received tells the connection manager, by an asynchronous event, of a message that came before its own event.
func (q *qp) received() {
	if q.gotMessage {
		return
	}
	q.gotMessage = true
	if q.conn.passive && !q.conn.established {
		q.dev.raise(rdma.AsyncEvent{Type: rdma.AsyncCommEst, QPNum: q.num})
	}
}

// scatter fills pieces of memory one after the other.
type scatter struct {
	pd  *pd
	sge []rdma.SGE
	at  int
	off uint32
}

func (d *scatter) put(b []byte) {
	for len(b) > 0 {
		s := &d.sge[d.at]
		if d.off == s.Length {
			d.at, d.off = d.at+1, 0
			continue
		}
		n := copy(d.pd.local(s, true)[d.off:], b)
		d.off += uint32(n)
		b = b[n:]
	}
}

// refuse is a peer's answer to an access that it does not allow: its queue pair goes to error too.
func (q *qp) refuse(t rdma.AsyncEventType) {
	q.dev.raise(rdma.AsyncEvent{Type: t, QPNum: q.num})
	q.enterError()
}

func (q *qp) write(w *sendWQE) rdma.Status {
	p := q.peer
	if w.length == 0 {
		return rdma.StatusSuccess
	}
	dst := p.pd.remote(w.remoteAddr, w.length, w.rkey, rdma.AccessRemoteWrite)
	if dst == nil {
		p.refuse(rdma.AsyncQPAccessErr)
		return rdma.StatusRemAccessErr
	}
	if len(w.inline) > 0 {
		copy(dst, w.inline)
	}
	for i := range w.sge {
		if w.sge[i].Length > 0 {
			dst = dst[copy(dst, q.pd.local(&w.sge[i], false)):]
		}
	}
	return rdma.StatusSuccess
}

// read starts an RDMA READ, and ends it too unless a fault makes it last.
func (q *qp) read(w *sendWQE, seq uint64) (outcome, rdma.Status) {
	p := q.peer
	if q.reading >= p.maxDestRD {
		p.refuse(rdma.AsyncQPReqErr)
		return outDone, rdma.StatusRemInvReqErr
	}
	if w.length > 0 && p.pd.remote(w.remoteAddr, w.length, w.rkey, rdma.AccessRemoteRead) == nil {
		p.refuse(rdma.AsyncQPAccessErr)
		return outDone, rdma.StatusRemAccessErr
	}
	var d time.Duration
	if q.f.faults.ReadTime != nil {
		d = q.f.faults.ReadTime(WorkInfo{q.dev.cfg.Name, q.num, false, w.op, w.id, seq, w.length})
	}
	switch {
	case d == Held:
		q.f.heldReads = append(q.f.heldReads, heldRead{q, seq})
		return outReading, 0
	case d > 0:
		q.f.after(d, func() { q.readDone(seq) })
		return outReading, 0
	}
	return outDone, q.copyRead(w)
}

func (q *qp) copyRead(w *sendWQE) rdma.Status {
	if w.length == 0 {
		return rdma.StatusSuccess
	}
	src := q.peer.pd.remote(w.remoteAddr, w.length, w.rkey, rdma.AccessRemoteRead)
	if src == nil {
		q.peer.refuse(rdma.AsyncQPAccessErr)
		return rdma.StatusRemAccessErr
	}
	for i := range w.sge {
		if w.sge[i].Length == 0 {
			continue
		}
		b := q.pd.local(&w.sge[i], true)
		if b == nil {
			return rdma.StatusLocProtErr
		}
		src = src[copy(b, src):]
	}
	return rdma.StatusSuccess
}

// readDone ends an RDMA READ that took time.
func (q *qp) readDone(seq uint64) {
	if q.state != qpReady || seq < q.sqRetired {
		return
	}
	w := &q.sq[seq%uint64(len(q.sq))]
	if w.state != wqeReading {
		return
	}
	if !q.reachable() {
		w.state, w.status = wqeDone, rdma.StatusRetryExcErr
	} else {
		w.state, w.status = wqeDone, q.copyRead(w)
	}
	q.reading--
	if q.state != qpReady {
		return
	}
	if w.status != rdma.StatusSuccess {
		q.f.failed(q)
		return
	}
	q.retire()
	q.run()
}

// rnrDelay is the time that an RNR timer code stands for, in the table of the InfiniBand specification.
func rnrDelay(code uint8) time.Duration {
	hundredths := [32]int{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
		6144, 8192, 12288, 16384, 24576, 32768, 49152}
	return time.Duration(hundredths[code&31]) * 10 * time.Microsecond
}
