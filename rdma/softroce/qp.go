package softroce

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"iserd/rdma"
)

type qpState uint8

const (
	qpInit   qpState = iota // made; receives may be posted
	qpReady                 // connected: sends and receives
	qpError                 // everything is flushed
	qpClosed                // destroyed
)

// qp is a reliable connected queue pair. mu guards what stands below it; it is taken by whoever posts, by the goroutine
// that reads the socket and by the timers', never while another queue pair's is held.
type qp struct {
	dev            *device
	pd             *pd
	conn           *conn
	num            uint32
	sendCQ, recvCQ *cq
	caps           rdma.QPCaps
	signalAll      bool
	// Places taken in the queues: from the post until the completion was polled.
	sendHeld, recvHeld atomic.Int32

	mu    sync.Mutex
	state qpState
	path  path
	sq    sendQueue
	rq    recvQueue
	resp  responder

	ids     identTrack
	quiet   time.Time // when the timers last found nothing on its way; zero: they never did
	watched bool      // the timers look after it
	touched bool      // the reader has it on its list
	heard   bool      // a packet of the peer came
}

// path is what the connection manager found out, set before the state becomes qpReady.
type path struct {
	sock   *socket
	peer   netip.AddrPort
	flow   flow
	destQP uint32
	mtu    uint32
	ird    int // READs of the peer that may be outstanding at us
	ord    int // our READs that may be outstanding at the peer
	rnrMax uint8
	retry  uint8
	// Where the numbers of packets start.
	sendPSN, recvPSN uint32
}

// sendWQE is a posted send request.
type sendWQE struct {
	id          uint64
	op          rdma.SendOp
	signaled    bool
	solicited   bool
	fence       bool
	inline      bool // the data is in the queue's own memory
	nsge        uint8
	inv         uint32
	raddr       uint64
	rkey        uint32
	length      uint32
	first, last uint32 // its packets' numbers
}

// sendQueue is the requester's half. tail, cur, done and freed count requests since the beginning.
type sendQueue struct {
	ring   []sendWQE
	sges   []rdma.SGE
	inline []byte
	sge    int
	tail   uint64 // posted
	cur    uint64 // the one that sends next
	done   uint64 // complete
	freed  uint64 // of those, told to the program

	post uint32 // number of the first packet of the next request to be posted
	next uint32 // of the next packet to send
	una  uint32 // of the oldest packet that is not acknowledged
	max  uint32 // after the newest packet that was ever sent

	early      early // responses that came before their turn
	reads      readEnds
	chunk      uint32 // packets that one READ request asks for
	asked      uint32 // bytes of READs that are awaited
	noAck      uint32 // packets since one that asks for an acknowledgement
	window     uint32 // packets that may be on their way
	most       uint32 // the largest window
	threshold  uint32 // up to here the window grows fast
	grown      uint32 // packets acknowledged since it grew
	slowed     uint32 // the next packet when a CNP was last heeded
	recovering bool   // went back to una, which has not moved since
	retryLeft  uint8
	rnrLeft    uint8
	blocked    bool // the peer asked to wait until blockedUntil
	blockUntil time.Time
	stamp      time.Time     // when the timers saw una where it is, or last sent again; zero: it moved since
	since      time.Time     // when they first saw it there
	backoff    uint8         // doublings of the time to wait
	floor      time.Duration // of the time to wait
	// hasty: the last wait that ended did so while these packets were on their way, and was perhaps too short.
	hasty              bool
	hastyFrom, hastyTo uint32

	sampling    uint8
	sample      uint32    // the packet whose round trip is measured
	sampled     time.Time // when it was sent
	rtt, rttVar time.Duration
}

func (s *sendQueue) at(seq uint64) *sendWQE { return &s.ring[seq%uint64(len(s.ring))] }

func (s *sendQueue) pieces(seq uint64) pieces {
	i := int(seq % uint64(len(s.ring)))
	return s.sges[i*s.sge:][:s.ring[i].nsge]
}

type recvWQE struct {
	id     uint64
	nsge   uint8
	length uint32
}

// recvQueue holds receives; tail and done count them since the beginning.
type recvQueue struct {
	ring       []recvWQE
	sges       []rdma.SGE
	sge        int
	tail, done uint64
}

func (r *recvQueue) at(seq uint64) *recvWQE { return &r.ring[seq%uint64(len(r.ring))] }

func (r *recvQueue) pieces(seq uint64) pieces {
	i := int(seq % uint64(len(r.ring)))
	return r.sges[i*r.sge:][:r.ring[i].nsge]
}

func (d *device) newQP(c *conn, p *pd, cfg rdma.QPConfig) (*qp, error) {
	const op = "create_qp"
	s, ok1 := cfg.SendCQ.(*cq)
	r, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || s.ch.dev != d || r.ch.dev != d || p.dev != d {
		return nil, invalid(op, "a completion queue or protection domain of another device")
	}
	if p.closed.Load() || d.closed.Load() {
		return nil, rdma.ErrClosed
	}
	for _, l := range []struct {
		name     string
		is, most int
	}{{"MaxSendWR", cfg.MaxSendWR, maxQPWR}, {"MaxRecvWR", cfg.MaxRecvWR, maxQPWR}, {"MaxSendSGE", cfg.MaxSendSGE, maxSGE}, {"MaxRecvSGE", cfg.MaxRecvSGE, maxSGE}} {
		if l.is < 0 {
			return nil, invalid(op, l.name+" is negative")
		}
		if l.is > l.most {
			return nil, tooBig(l.name, l.is, l.most)
		}
	}
	q := &qp{dev: d, pd: p, conn: c, sendCQ: s, recvCQ: r, signalAll: cfg.SignalAll, caps: rdma.QPCaps{
		MaxSendWR: max(cfg.MaxSendWR, 1), MaxRecvWR: max(cfg.MaxRecvWR, 1),
		MaxSendSGE: max(cfg.MaxSendSGE, 1), MaxRecvSGE: max(cfg.MaxRecvSGE, 1), MaxInline: min(max(cfg.MaxInline, 0), maxInline)}}
	q.sq = sendQueue{ring: make([]sendWQE, q.caps.MaxSendWR), sge: q.caps.MaxSendSGE,
		sges: make([]rdma.SGE, q.caps.MaxSendWR*q.caps.MaxSendSGE), inline: make([]byte, q.caps.MaxSendWR*q.caps.MaxInline)}
	q.rq = recvQueue{ring: make([]recvWQE, q.caps.MaxRecvWR), sge: q.caps.MaxRecvSGE,
		sges: make([]rdma.SGE, q.caps.MaxRecvWR*q.caps.MaxRecvSGE)}
	if err := d.qps.add(q); err != nil {
		return nil, err
	}
	s.qps.Add(1)
	r.qps.Add(1)
	p.users.Add(1)
	d.open.qps.Add(1)
	return q, nil
}

// ready moves the queue pair to where it sends and receives.
func (q *qp) ready(p path) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state != qpInit {
		return
	}
	q.path = p
	s := &q.sq
	s.post, s.next, s.una, s.max = p.sendPSN, p.sendPSN, p.sendPSN, p.sendPSN
	s.window, s.most, s.threshold, s.slowed = windowStart(p.mtu), windowLimit(p.mtu), windowLimit(p.mtu), p.sendPSN
	s.reads.ring = make([]uint32, max(p.ord, 1))
	s.chunk = chunkOf(p.mtu, p.sock.readRoom)
	s.retryLeft, s.rnrLeft = p.retry, p.rnrMax
	s.sampling = sampleWanted
	q.resp.psn = p.recvPSN
	q.resp.reads, q.resp.known = make([]readResp, max(p.ird, 1)), make([]readResp, max(p.ird, 1))
	q.state = qpReady
}

// quietFor is for how long nothing has been on its way: no time while something is, very long if nothing ever was. mu is
// held.
func (q *qp) quietFor() time.Duration {
	switch {
	case q.watched:
		return 0
	case q.quiet.IsZero():
		return time.Hour
	}
	return time.Since(q.quiet)
}

func (q *qp) Num() uint32       { return q.num }
func (q *qp) Caps() rdma.QPCaps { return q.caps }

func (q *qp) SetMinRNRTimer(code uint8) error {
	if code > 31 {
		return invalid("modify_qp", "an RNR timer code is below 32")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == qpClosed {
		return rdma.ErrClosed
	}
	q.resp.rnrTimer = code
	return nil
}

func (q *qp) SetError() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == qpClosed {
		return rdma.ErrClosed
	}
	q.fail()
	return nil
}

func (q *qp) Close() error {
	q.mu.Lock()
	if q.state == qpClosed {
		q.mu.Unlock()
		return nil
	}
	q.fail()
	q.state = qpClosed
	q.mu.Unlock()
	q.dev.qps.remove(q)
	q.sendCQ.qps.Add(-1)
	q.recvCQ.qps.Add(-1)
	q.pd.users.Add(-1)
	q.dev.open.qps.Add(-1)
	q.conn.qpClosed(q)
	return nil
}

// fail moves the queue pair to error and flushes, in order, what is posted. mu is held.
func (q *qp) fail() {
	if q.state >= qpError {
		return
	}
	if q.state == qpReady {
		q.answered(q.sq.asked)
	}
	q.closeEarly(&q.sq.early)
	q.closeEarly(&q.resp.early)
	q.state = qpError
	q.flush()
}

// flush completes everything posted with StatusFlushed. mu is held.
func (q *qp) flush() {
	s := &q.sq
	for s.done < s.tail {
		w := s.at(s.done)
		s.done++
		q.pushSend(rdma.WC{ID: w.id, Status: rdma.StatusFlushed, QPNum: q.num})
	}
	s.cur = s.tail
	q.recvInProgress(rdma.StatusFlushed)
	for r := &q.rq; r.done < r.tail; r.done++ {
		q.pushRecv(rdma.WC{ID: r.at(r.done).id, Status: rdma.StatusFlushed, QPNum: q.num})
	}
}

// recvInProgress ends the receive of the SEND that is half there, if one is.
func (q *qp) recvInProgress(st rdma.Status) {
	if q.resp.in == inSend {
		q.resp.in = noMessage
		q.pushRecv(rdma.WC{ID: q.resp.recv.id, Status: st, Op: rdma.WCRecv, QPNum: q.num})
	}
}

// pushSend tells the program of the request before sq.done, and gives back the places of all up to it.
func (q *qp) pushSend(wc rdma.WC) {
	s := &q.sq
	n := int32(s.done - s.freed)
	s.freed = s.done
	q.sendCQ.push(cqe{wc: wc, held: &q.sendHeld, free: n})
}

func (q *qp) pushRecv(wc rdma.WC) { q.recvCQ.push(cqe{wc: wc, held: &q.recvHeld, free: 1}) }

// sendError completes the oldest request with a status and fails the queue pair. mu is held.
func (q *qp) sendError(st rdma.Status) {
	s := &q.sq
	if q.state != qpReady {
		return
	}
	if s.done < s.tail {
		w := s.at(s.done)
		s.done++
		q.pushSend(rdma.WC{ID: w.id, Status: st, QPNum: q.num})
	}
	q.fail()
}
