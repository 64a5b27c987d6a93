package softroce

import (
	"sync"
	"time"

	"iserd/rdma"
)

// Some networks deliver packets out of order. The specification's answer, to drop what comes early and to say so at once
// (IBTA 9.7.5.1.2, 9.7.5.2.8), makes the peer send everything from there on again, which on such a network never ends. So a
// queue pair begins as the specification has it; when a packet that was missed turns out to have been late, since it comes
// once on its own and once more repeated, the queue pair becomes patient: it keeps what comes early for a while, and tells
// the peer only when that time is over. Each mistake doubles the time and each packet that was really lost shortens it, down
// to none. Nobody can make a queue pair keep packets who does not see the connection's own.

const (
	earlySlots = 256 // packets that one direction of a queue pair keeps, from the missing one on
	earlyBytes = 32 << 20
	minWait    = time.Millisecond
	maxWait    = 6 * time.Millisecond // less than a peer's wait for an answer: see minRTO
	suspicion  = 3                    // mistakes, less the packets that were really lost, from which on a queue pair is patient
)

// early are the packets of one direction that came before their turn.
type early struct {
	wait     time.Duration // how long the missing one may still come; zero: not at all
	mistakes uint8
	slots    []earlyPacket // by number, made when the first is kept
	open     bool          // something is missing and something is kept
	last     uint32        // the newest that is kept
	since    time.Time     // when it was missed
	telling  bool          // the peer was told of the missing one
	told     [8]told       // the newest that it was told of
	next     int           // of those, the one to forget next
}

// told is a number that the peer was told to be missing.
type told struct {
	psn  uint32
	wait bool // it has not come since
	came bool // it came; if it comes again, it was only late
}

type earlyPacket struct {
	used bool
	pkt  packet
	buf  *earlyBuffer
}

type earlyBuffer [4096]byte

var earlyBuffers = sync.Pool{New: func() any { return new(earlyBuffer) }}

// tell notes that the peer is told that psn is missing.
func (e *early) tell(psn uint32) {
	t := &e.told[e.next]
	e.next = (e.next + 1) % len(e.told)
	if t.came && e.mistakes > 0 { // that one came once: it had been lost
		e.mistakes--
		e.wait -= e.wait / 8
		if e.mistakes == 0 {
			e.wait = 0
		}
	}
	*t = told{psn: psn, wait: true}
	e.telling = true
}

// came notes that a packet came in its turn.
func (e *early) came(psn uint32) {
	if !e.telling {
		return
	}
	e.telling = false
	for i := range e.told {
		if t := &e.told[i]; t.wait {
			t.wait, t.came = false, t.psn == psn
		}
	}
}

// again notes that a packet came that had come before. The peer waits longer than rtt for its answers, so that far the
// missing one may be waited for.
func (e *early) again(psn uint32, rtt time.Duration) {
	for i := range e.told {
		if t := &e.told[i]; t.came && t.psn == psn {
			t.came = false
			if e.mistakes = min(e.mistakes+1, 2*suspicion); e.mistakes >= suspicion {
				e.wait = min(max(2*e.wait, minWait), max(maxWait, rtt/2))
			}
		}
	}
}

// keep keeps a packet, while next is missing. It is false when the time is over, or when there is no room.
func (q *qp) keep(e *early, next uint32, p *packet) bool {
	if e.wait == 0 || uint32(psnDiff(p.psn, next)) >= earlySlots || len(p.payload) > int(q.path.mtu) {
		return false
	}
	if !e.open {
		e.open, e.last = true, p.psn
		q.missed(e)
	}
	if e.slots == nil {
		e.slots = make([]earlyPacket, earlySlots)
	}
	s := &e.slots[p.psn%earlySlots]
	if s.used {
		if s.pkt.psn == p.psn {
			return true
		}
		q.forget(s)
	}
	if q.dev.early.Add(int64(len(earlyBuffer{}))) > earlyBytes {
		q.dev.early.Add(-int64(len(earlyBuffer{})))
		return false
	}
	s.used, s.pkt, s.buf = true, *p, earlyBuffers.Get().(*earlyBuffer)
	s.pkt.payload = s.buf[:copy(s.buf[:], p.payload)]
	if psnDiff(p.psn, e.last) > 0 {
		e.last = p.psn
	}
	q.dev.counters.early.Add(1)
	return true
}

// keepResponse keeps a response that implies data which is missing. What lies before the data it acknowledges at once: it
// may be all that the peer will ever say of that.
func (q *qp) keepResponse(p *packet) bool {
	from, misses := q.missesRead(p.psn)
	if !misses || !q.keep(&q.sq.early, q.sq.una, p) {
		return false
	}
	if q.sq.una != from && q.acknowledge(from) {
		q.pump()
	}
	return true
}

// missed begins the time of the packet that is missing now.
func (q *qp) missed(e *early) {
	e.since = time.Now()
	q.watch()
	q.dev.timers.wakeAt(e.since.Add(e.wait))
}

// forget gives a packet's memory back.
func (q *qp) forget(s *earlyPacket) {
	if s.used {
		earlyBuffers.Put(s.buf)
		*s = earlyPacket{}
		q.dev.early.Add(-int64(len(earlyBuffer{})))
	}
}

// closeEarly forgets everything that is kept.
func (q *qp) closeEarly(e *early) {
	if e.open {
		for i := range e.slots {
			q.forget(&e.slots[i])
		}
		e.open = false
	}
}

// late tells whether the missing packet has had its time, and when it will have. The timers call it.
func (e *early) late(now time.Time) (bool, time.Time) {
	if !e.open || e.telling {
		return false, time.Time{}
	}
	at := e.since.Add(e.wait)
	return !now.Before(at), at
}

// inTurn executes the requests that were kept and whose turn has come.
func (q *qp) inTurn() {
	e := &q.resp.early
	was := q.resp.psn
	for q.state == qpReady && !q.resp.fatal && psnDiff(e.last, q.resp.psn) >= 0 {
		s := &e.slots[q.resp.psn%earlySlots]
		if !s.used || s.pkt.psn != q.resp.psn {
			break
		}
		psn := q.resp.psn
		q.execute(&s.pkt)
		q.forget(s)
		if q.resp.psn == psn {
			break // refused, or there is no receive: the peer repeats it
		}
	}
	if psnDiff(e.last, q.resp.psn) < 0 {
		q.closeEarly(e)
	} else if q.resp.psn != was {
		q.missed(e)
	}
}

// responsesInTurn takes the responses that were kept and whose turn has come.
func (q *qp) responsesInTurn() {
	s := &q.sq
	e := &s.early
	was := s.una
	for psn := s.una; q.state == qpReady && psnDiff(e.last, psn) >= 0; psn = (psn + 1) & psnMask {
		x := &e.slots[psn%earlySlots]
		if !x.used || x.pkt.psn != psn {
			continue
		}
		if _, misses := q.missesRead(psn); misses {
			if s.una != was {
				q.missed(e)
			}
			return
		}
		q.take(&x.pkt)
		q.forget(x)
	}
	q.closeEarly(e)
}

// missesRead tells whether data of a READ is still missing that a response with that number implies, and from where on.
func (q *qp) missesRead(psn uint32) (from uint32, misses bool) {
	s := &q.sq
	for i := s.done; i < s.tail; i++ {
		w := s.at(i)
		from = w.first
		if psnDiff(s.una, from) > 0 {
			from = s.una
		}
		if psnDiff(psn, from) <= 0 {
			break
		}
		if w.op == rdma.OpRDMARead {
			return from, true
		}
	}
	return 0, false
}

// tellLate tells the peer of what has had its time. The timers call it; it returns when to look again, zero for never.
func (q *qp) tellLate(now time.Time) (next time.Time) {
	look := func(e *early, tell func() bool) {
		is, at := e.late(now)
		if is && !tell() {
			at = now.Add(minWait)
		} else if is {
			return
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	look(&q.resp.early, func() bool {
		r := &q.resp
		if r.count > 0 || r.fatal || r.owed != 0 { // READs are to be answered first
			return false
		}
		q.missing()
		r.owed = 0
		q.sendAck(synNAK|nakSequence, r.psn)
		return true
	})
	look(&q.sq.early, func() bool {
		if from, misses := q.missesRead(q.sq.early.last); misses {
			q.sq.early.tell(from)
		}
		q.recover()
		return true
	})
	return next
}
