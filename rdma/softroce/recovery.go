package softroce

import (
	"time"

	"iserd/rdma"
)

// What the requester does about loss: how much may be on its way (additive increase, multiplicative decrease, as TCP does
// it), how long it waits for an answer, and going back (IBTA 9.7.5, 9.9). The data path does not read the clock for
// deadlines: the timers' goroutine does, and what it finds is at most a tick too long.

const (
	minWindow = 4        // packets
	maxWindow = 1024     // packets
	maxFlight = 1 << 20  // bytes
	startWith = 64 << 10 // bytes

	initialRTO = 50 * time.Millisecond
	minRTO     = 8 * time.Millisecond
	maxRTO     = time.Second
	// maxFloor is how far waits that were too short raise the shortest one.
	maxFloor = 256 * time.Millisecond
	// patience is how long a peer may be silent, for each retry that the connection has. A retry counter alone would end
	// a connection the sooner, the faster the network is.
	patience = 2 * time.Second
)

// windowLimit is the largest window at a path MTU, and windowStart the first.
func windowLimit(mtu uint32) uint32 { return min(maxFlight/mtu, maxWindow) }
func windowStart(mtu uint32) uint32 { return max(startWith/mtu, 16) }

// setUna notes progress: everything before psn is acknowledged. mu is held.
func (q *qp) setUna(psn uint32) {
	s := &q.sq
	if acked, flying := uint32(psnDiff(psn, s.una)), s.inFlight(); flying >= s.window/2 && s.window < s.most {
		// Only a window that is used may grow.
		if s.window < s.threshold {
			s.window = min(s.window+acked, s.most)
		} else if s.grown += acked; s.grown >= s.window {
			s.grown -= s.window
			s.window++
		}
	}
	if s.sampling == sampleRunning && psnDiff(psn, s.sample) > 0 {
		s.measure()
	}
	s.una = psn
	if psnDiff(s.next, psn) < 0 { // acknowledged before it was repeated
		s.next = psn
		for s.cur < s.tail && psnDiff(psn, s.at(s.cur).last) > 0 {
			s.cur++
		}
	}
	s.retryLeft, s.rnrLeft = q.path.retry, q.path.rnrMax
	s.recovering = false
	s.stamp, s.since = time.Time{}, time.Time{}
	s.backoff = 0
}

// shrink makes the window smaller after a sign of congestion.
func (s *sendQueue) shrink(to uint32) {
	s.threshold = max(s.window/2, minWindow)
	s.window = max(to, minWindow)
	s.grown = 0
}

// recover goes back after a loss, once: what was on its way behind the gap is not a new loss.
func (q *qp) recover() {
	s := &q.sq
	if s.recovering {
		return
	}
	q.dev.counters.recoveries.Add(1)
	s.shrink(s.window / 2)
	q.rewind()
	q.pump()
}

// rewind goes back to the oldest unacknowledged packet.
func (q *qp) rewind() {
	s := &q.sq
	s.recovering = true
	s.reads.n = 0
	q.answered(s.asked)
	s.next, s.cur = s.una, s.done
	s.stamp = time.Time{}
	s.sampling = noSample
}

// rnr: the peer has no receive; wait as long as it asks.
func (q *qp) rnr(timer uint8) {
	s := &q.sq
	if q.path.rnrMax != 7 {
		if s.rnrLeft == 0 {
			q.sendError(rdma.StatusRNRRetryExcErr)
			return
		}
		s.rnrLeft--
	}
	q.dev.counters.rnr.Add(1)
	q.rewind()
	s.since = time.Time{}
	s.blocked, s.blockUntil = true, time.Now().Add(rnrDelay[timer])
	q.watch()
	q.dev.timers.wakeAt(s.blockUntil)
}

// nak: the peer refused a packet.
func (q *qp) nak(code uint8) {
	switch code {
	case nakSequence:
		q.dev.counters.sequence.Add(1)
		q.recover()
	case nakInvalid:
		q.sendError(rdma.StatusRemInvReqErr)
	case nakAccess:
		q.sendError(rdma.StatusRemAccessErr)
	default:
		q.sendError(rdma.StatusRemOpErr)
	}
}

// congested answers a CNP: the network is full. What was on its way then counts once.
func (q *qp) congested() {
	s := &q.sq
	q.dev.counters.congested.Add(1)
	if psnDiff(s.una, s.slowed) >= 0 {
		s.slowed = s.next
		s.shrink(s.window / 2)
	}
}

// rto is how long to wait for an answer.
func (s *sendQueue) rto() time.Duration {
	d := initialRTO
	if s.rtt > 0 {
		d = max(s.rtt+4*s.rttVar, minRTO, s.floor)
	}
	return min(d<<s.backoff, maxRTO)
}

// old takes an answer that came before. After a wait that ended, it says that both what was sent first and what was sent
// again arrived: the wait was too short. A round trip that has become longer cannot be measured before the wait outlasts it.
func (s *sendQueue) old(psn uint32) {
	if s.hasty && psnDiff(psn, s.hastyFrom) >= 0 && psnDiff(psn, s.hastyTo) < 0 {
		s.hasty = false
		s.floor = min(max(2*s.floor, 2*minRTO), maxFloor)
	}
}

// Of a round trip that is measured: the timers ask for one, the next packet that is sent begins it. So the clock is read
// twice between two ticks, however many packets there are.
const (
	noSample = iota
	sampleWanted
	sampleRunning
)

// measure takes the round-trip time (RFC 6298) of the packet that began the sample, which is acknowledged. What was sent
// again tells nothing.
func (s *sendQueue) measure() {
	s.sampling = noSample
	s.floor -= s.floor / 4
	d := time.Since(s.sampled)
	if s.rtt == 0 {
		s.rtt, s.rttVar = d, d/2
	} else {
		s.rttVar += (max(d-s.rtt, s.rtt-d) - s.rttVar) / 4
		s.rtt += (d - s.rtt) / 8
	}
}

// tick looks at the deadlines; the timers' goroutine calls it with mu held. It returns when to look again, zero for
// never.
func (q *qp) tick(now time.Time) time.Time {
	s := &q.sq
	if s.blocked && q.state == qpReady {
		if now.Before(s.blockUntil) {
			return s.blockUntil
		}
		s.blocked = false
		q.pump()
	}
	if q.state != qpReady {
		q.watched, q.quiet = false, now
		return time.Time{}
	}
	early := q.tellLate(now)
	if s.next == s.una {
		if early.IsZero() {
			q.watched, q.quiet = false, now
		}
		return early
	}
	if next := q.tickAnswers(now); early.IsZero() || next.Before(early) {
		return next // zero where the queue pair has failed
	}
	return early
}

// tickAnswers looks at how long answers have been missing.
func (q *qp) tickAnswers(now time.Time) time.Time {
	s := &q.sq
	if s.sampling == noSample && !s.recovering {
		s.sampling = sampleWanted
	}
	rto := s.rto()
	switch {
	case s.stamp.IsZero():
		s.stamp = now
		if s.since.IsZero() {
			s.since = now
		}
		return now.Add(rto / 2)
	case now.Sub(s.stamp) < rto:
		return now.Add(min(rto/2, rto-now.Sub(s.stamp)))
	case s.retryLeft == 0 && now.Sub(s.since) >= time.Duration(q.path.retry)*patience:
		q.sendError(rdma.StatusRetryExcErr)
		q.watched = false
		return time.Time{}
	}
	if s.retryLeft > 0 {
		s.retryLeft--
	}
	q.dev.counters.timeouts.Add(1)
	if s.backoff < 10 {
		s.backoff++
	}
	s.hasty, s.hastyFrom, s.hastyTo = true, s.una, s.max
	s.shrink(minWindow)
	s.window = 1 // one packet asks how it is there: its answer, if there are two, is the evidence for old
	q.rewind()
	q.pump()
	s.stamp = now
	return now.Add(s.rto() / 2)
}

// readEnds are the last packets of the READ requests whose responses are awaited, oldest first.
type readEnds struct {
	ring []uint32
	head int
	n    int
}

func (r *readEnds) push(psn uint32) {
	r.ring[(r.head+r.n)%len(r.ring)] = psn
	r.n++
}

// pop drops the requests that end at or before psn, and tells whether there were any.
func (r *readEnds) pop(psn uint32) bool {
	was := r.n
	for r.n > 0 && psnDiff(psn, r.ring[r.head]) >= 0 {
		r.head = (r.head + 1) % len(r.ring)
		r.n--
	}
	return r.n < was
}

// ask takes room for n bytes in the buffer that READ responses come to, which all queue pairs of a socket share. One
// that has nothing on its way may always ask.
func (q *qp) ask(n uint32) bool {
	sock := q.path.sock
	if sock.asked.Add(int64(n)) > int64(sock.readRoom) && q.sq.asked > 0 {
		sock.asked.Add(-int64(n))
		return false
	}
	q.sq.asked += n
	return true
}

// answered gives room back.
func (q *qp) answered(n uint32) {
	if n > 0 {
		q.sq.asked -= n
		q.path.sock.asked.Add(-int64(n))
	}
}
