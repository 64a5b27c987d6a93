package rdmatest

import (
	"fmt"
	"syscall"

	"iserd/rdma"
)

type qpState uint8

const (
	qpInit qpState = iota // receives may be posted
	qpReady
	qpError
	qpClosed
)

// sendWQE is a place in a send queue.
type sendWQE struct {
	id         uint64
	remoteAddr uint64
	rkey, inv  uint32
	length     uint32
	sge        []rdma.SGE // its share of the queue pair's array
	inline     []byte     // likewise
	op         rdma.SendOp
	flags      rdma.SendFlags
	state      wqeState
	asked      bool // the fault hook was
	status     rdma.Status
}

type wqeState uint8

const (
	wqePosted wqeState = iota
	wqeReading
	wqeDone
)

type recvWQE struct {
	id  uint64
	sge []rdma.SGE
}

// qp implements [rdma.QP]. Requests of each queue are numbered; those below freed are gone, below retired completed,
// below started under way, below posted waiting.
type qp struct {
	f          *Fabric
	dev        *Device
	pd         *pd
	conn       *Conn
	num        uint32
	caps       rdma.QPCaps
	signalAll  bool
	scq, rcq   *cq
	state      qpState
	peer       *qp
	sq         []sendWQE
	rq         []recvWQE
	sgeStore   []rdma.SGE
	inlineMem  []byte
	sqPosted   uint64
	sqStarted  uint64
	sqRetired  uint64
	sqFreed    uint64
	rqPosted   uint64
	rqUsed     uint64
	rqFreed    uint64
	reading    int // RDMA READs under way
	readsOut   int // RDMA READs not yet known to be done, as the poster sees it
	maxRD      int // RDMA READs that we may have under way
	maxDestRD  int // and the peer at us
	rnrRetry   uint8
	rnrTimer   uint8
	rnrLeft    int    // tries
	rnrFor     uint64 // the request that they are for, plus one
	waiting    bool   // a timer will try again, or fail the request
	waitEpoch  uint64
	gotMessage bool
	running    bool
}

func (q *qp) describe() string {
	return fmt.Sprintf("QP %#x of %s", q.num, q.dev.cfg.Name)
}

// newQP checks a configuration and makes a queue pair.
func newQP(c *Conn, p *pd, cfg rdma.QPConfig) (*qp, error) {
	d := c.dev
	a := d.attr
	for _, l := range []struct {
		what     string
		n, limit int
	}{
		{"send requests", cfg.MaxSendWR, a.MaxQPWR}, {"receive requests", cfg.MaxRecvWR, a.MaxQPWR},
		{"pieces of a send", cfg.MaxSendSGE, a.MaxSGE}, {"pieces of a receive", cfg.MaxRecvSGE, a.MaxSGE}, {"queue pairs", d.qps + 1, a.MaxQP},
	} {
		if l.n > l.limit {
			return nil, tooBig(l.what, l.n, l.limit)
		}
		if l.n < 0 {
			return nil, invalid("rdma_create_qp", fmt.Sprintf("%s %d", l.what, l.n))
		}
	}
	scq, ok1 := cfg.SendCQ.(*cq)
	rcq, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.dev != d || rcq.dev != d || scq.ch == nil || rcq.ch == nil {
		return nil, invalid("rdma_create_qp", "completion queues of this device are needed")
	}
	if p.dev != d || p.closed {
		return nil, invalid("rdma_create_qp", "a protection domain of this device is needed")
	}
	f := d.f
	q := &qp{f: f, dev: d, pd: p, conn: c, num: f.nextQP, signalAll: cfg.SignalAll, scq: scq, rcq: rcq, rnrTimer: 0}
	q.caps = rdma.QPCaps{MaxSendWR: cfg.MaxSendWR, MaxRecvWR: cfg.MaxRecvWR, MaxSendSGE: cfg.MaxSendSGE, MaxRecvSGE: cfg.MaxRecvSGE,
		MaxInline: max(0, min(cfg.MaxInline, a.MaxInline))}
	q.sq = make([]sendWQE, cfg.MaxSendWR)
	q.rq = make([]recvWQE, cfg.MaxRecvWR)
	q.sgeStore = make([]rdma.SGE, cfg.MaxSendWR*cfg.MaxSendSGE+cfg.MaxRecvWR*cfg.MaxRecvSGE)
	q.inlineMem = make([]byte, cfg.MaxSendWR*q.caps.MaxInline)
	rest, mem := q.sgeStore, q.inlineMem
	for i := range q.sq {
		q.sq[i].sge, rest = rest[:0:cfg.MaxSendSGE], rest[cfg.MaxSendSGE:]
		q.sq[i].inline, mem = mem[:0:q.caps.MaxInline], mem[q.caps.MaxInline:]
	}
	for i := range q.rq {
		q.rq[i].sge, rest = rest[:0:cfg.MaxRecvSGE], rest[cfg.MaxRecvSGE:]
	}
	f.nextQP++
	f.qps[q.num] = q
	f.open[q] = struct{}{}
	d.qps++
	p.users++
	scq.qps++
	if rcq != scq {
		rcq.qps++
	}
	return q, nil
}

func (q *qp) Num() uint32       { return q.num }
func (q *qp) Caps() rdma.QPCaps { return q.caps }

func (q *qp) SetError() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.state == qpClosed {
		return rdma.ErrClosed
	}
	if err := q.dev.check("SetError"); err != nil {
		return err
	}
	q.enterError()
	return nil
}

func (q *qp) SetMinRNRTimer(code uint8) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.state == qpClosed {
		return rdma.ErrClosed
	}
	if err := q.dev.check("SetMinRNRTimer"); err != nil {
		return err
	}
	if code > 31 {
		return invalid("ibv_modify_qp", fmt.Sprintf("RNR timer %d", code))
	}
	if q.state != qpReady {
		return invalid("ibv_modify_qp", "the queue pair is not connected")
	}
	q.rnrTimer = code
	return nil
}

func (q *qp) Close() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	q.close()
	return nil
}

func (q *qp) close() {
	if q.state == qpClosed {
		return
	}
	q.state = qpClosed
	q.dev.qps--
	q.pd.users--
	q.scq.qps--
	if q.rcq != q.scq {
		q.rcq.qps--
	}
	if q.conn.qp == q {
		q.conn.qp = nil
	}
	delete(q.f.qps, q.num)
	delete(q.f.open, q)
	if q.peer != nil {
		q.peer.run() // it notices that nobody answers
	}
}

// enterError flushes everything that was posted.
func (q *qp) enterError() {
	if q.state == qpError || q.state == qpClosed {
		return
	}
	q.state = qpError
	q.waitEpoch++
	q.waiting = false
	q.flushSends()
	for q.rqUsed < q.rqPosted {
		q.completeRecv(rdma.StatusFlushed, 0, nil)
	}
	if q.peer != nil {
		q.peer.run()
	}
}

// flushSends completes what is left in the send queue, in order: what is done as done, the rest as flushed.
func (q *qp) flushSends() {
	for s := q.sqRetired; s < q.sqPosted; s++ {
		w := &q.sq[s%uint64(len(q.sq))]
		if w.state != wqeDone {
			w.state, w.status = wqeDone, rdma.StatusFlushed
		}
	}
	q.sqStarted = q.sqPosted
	q.reading = 0
	q.retire()
}

// freeTo gives back the slots of sends below n, which the owner knows now to be done.
func (q *qp) freeTo(n uint64) {
	for q.sqFreed < n {
		if q.sq[q.sqFreed%uint64(len(q.sq))].op == rdma.OpRDMARead {
			q.readsOut--
		}
		q.sqFreed++
	}
}

// Post implements [rdma.Device].
func (d *Device) Post(posts []rdma.QPPost) {
	d.stats.posts.Add(1)
	f := d.f
	f.mu.Lock()
	for i := range posts {
		p := &posts[i]
		p.RecvsPosted, p.SendsPosted, p.Err = 0, 0, nil
		q, ok := p.QP.(*qp)
		switch {
		case !ok || q.dev != d:
			p.Err = invalid("ibv_post_send", "a queue pair of another device")
			continue
		case q.state == qpClosed || d.removed.Load():
			p.Err = rdma.ErrClosed
			continue
		}
		if len(p.Recvs) > 0 {
			d.stats.recvDoorbells.Add(1)
			p.RecvsPosted, p.Err = q.postRecvs(p.Recvs)
		}
		if len(p.Sends) > 0 && p.Err == nil {
			d.stats.sendDoorbells.Add(1)
			p.SendsPosted, p.Err = q.postSends(p.Sends)
		}
	}
	f.mu.Unlock()
}

// postRecvs takes receives until one cannot be taken.
func (q *qp) postRecvs(wrs []rdma.RecvWR) (n int, err error) {
	for i := range wrs {
		if err = q.postRecv(&wrs[i]); err != nil {
			break
		}
		n++
	}
	if q.state == qpReady && q.peer != nil {
		q.peer.run() // which may wait for a receive
	}
	return n, err
}

func (q *qp) postRecv(wr *rdma.RecvWR) error {
	if q.f.faults.Verb != nil {
		if err := q.f.verb(q.dev, "PostRecv"); err != nil {
			return err
		}
	}
	if len(wr.SGE) > q.caps.MaxRecvSGE {
		return &rdma.OpError{Op: "ibv_post_recv", Errno: syscall.EINVAL, Hint: "too many pieces"}
	}
	if q.rqPosted-q.rqFreed >= uint64(len(q.rq)) {
		q.f.misuse(MisuseQueueFull, "%d receives on %s", len(q.rq), q.describe())
		return &rdma.OpError{Op: "ibv_post_recv", Errno: syscall.ENOMEM}
	}
	w := &q.rq[q.rqPosted%uint64(len(q.rq))]
	w.id = wr.ID
	w.sge = append(w.sge[:0], wr.SGE...)
	q.rqPosted++
	q.dev.stats.recvs.Add(1)
	if q.state == qpError {
		q.f.misuse(MisuseAfterError, "receive on %s", q.describe())
		if !q.f.cfg.NoFlushAfterError {
			q.completeRecv(rdma.StatusFlushed, 0, nil)
		}
	}
	return nil
}

func (q *qp) postSends(wrs []rdma.SendWR) (n int, err error) {
	for i := range wrs {
		if err = q.postSend(&wrs[i]); err != nil {
			break
		}
		n++
	}
	if q.state == qpError {
		q.f.misuse(MisuseAfterError, "send on %s", q.describe())
		q.flushSends()
	} else {
		q.run()
	}
	return n, err
}

func (q *qp) postSend(wr *rdma.SendWR) error {
	d := q.dev
	if q.f.faults.Verb != nil {
		if err := q.f.verb(d, "PostSend"); err != nil {
			return err
		}
	}
	if q.state == qpInit {
		return &rdma.OpError{Op: "ibv_post_send", Errno: syscall.EINVAL, Hint: "the queue pair is not connected"}
	}
	if len(wr.SGE) > q.caps.MaxSendSGE || wr.Op > rdma.OpRDMARead || wr.Op == rdma.OpRDMARead && len(wr.SGE) > d.attr.MaxSGERead {
		return &rdma.OpError{Op: "ibv_post_send", Errno: syscall.EINVAL, Hint: "too many pieces, or no such operation"}
	}
	if q.sqPosted-q.sqFreed >= uint64(len(q.sq)) {
		q.f.misuse(MisuseQueueFull, "%d sends on %s", len(q.sq), q.describe())
		return &rdma.OpError{Op: "ibv_post_send", Errno: syscall.ENOMEM}
	}
	total := uint64(0)
	for i := range wr.SGE {
		total += uint64(wr.SGE[i].Length)
	}
	inline := wr.Flags&rdma.SendInline != 0
	if inline && (total > uint64(q.caps.MaxInline) || wr.Op == rdma.OpRDMARead) {
		return &rdma.OpError{Op: "ibv_post_send", Errno: syscall.EINVAL, Hint: "inline data above the limit, or of a READ"}
	}
	w := &q.sq[q.sqPosted%uint64(len(q.sq))]
	w.id, w.remoteAddr, w.rkey, w.inv, w.op, w.flags = wr.ID, wr.RemoteAddr, wr.RKey, wr.InvRKey, wr.Op, wr.Flags
	w.state, w.asked, w.status = wqePosted, false, rdma.StatusSuccess
	w.length = uint32(min(total, 1<<32-1))
	w.sge, w.inline = w.sge[:0], w.inline[:0]
	if inline {
		for i := range wr.SGE {
			if s := &wr.SGE[i]; s.Length > 0 {
				w.inline = append(w.inline, memoryAt(s.Addr, s.Length)...)
			}
		}
		d.stats.inlineSends.Add(1)
	} else {
		w.sge = append(w.sge, wr.SGE...)
	}
	q.sqPosted++
	d.stats.sends[wr.Op].Add(1)
	if wr.Flags&rdma.SendSignaled != 0 || q.signalAll {
		d.stats.signaled.Add(1)
	}
	if wr.Op == rdma.OpRDMARead {
		q.countRead()
	}
	return nil
}

// countRead compares the READs that the owner has out, as far as it can know, with what the peer granted.
func (q *qp) countRead() {
	q.readsOut++
	s := &q.dev.stats
	if n := uint64(q.readsOut); n > s.maxReads.Load() {
		s.maxReads.Store(n)
	}
	if limit := q.readLimit(); q.readsOut > limit {
		s.readsOverDepth.Add(1)
		q.f.misuse(MisuseReadDepth, "%d READs on %s, the peer granted %d", q.readsOut, q.describe(), limit)
	}
}

func (q *qp) readLimit() int {
	if q.peer == nil {
		return q.maxRD
	}
	return min(q.maxRD, q.peer.maxDestRD)
}
