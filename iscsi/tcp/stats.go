package tcp

import "sync/atomic"

// Stats are counters since the start, and gauges where it says so.
type Stats struct {
	Accepted, AcceptErrors uint64
	Connections            int // now
	// Turns ran an engine; Wakeups are those that another goroutine asked for and the waker ran.
	Turns, Wakeups uint64
	// Reads and Writes are system calls, EmptyReads those that found nothing.
	Reads, EmptyReads, Writes uint64
	BytesIn, BytesOut         uint64
	PDUsIn, PDUsOut           uint64
	// Collapsed counts responses that travelled in the last Data-In.
	Collapsed uint64
	// Blocked counts the times that a socket would take no more.
	Blocked uint64
	// Discarded counts Data-Out PDUs that nobody waited for.
	Discarded uint64
	// DigestErrors counts digests that did not match, of headers and of data.
	DigestErrors uint64
	// BufferWaits counts allocations that had to wait; BufferBytes is the memory in use now, BufferMemory what the pool
	// has taken from the system.
	BufferWaits               uint64
	BufferBytes, BufferMemory int64
}

// counters is what connections add to, once per turn.
type counters struct {
	accepted, acceptErrors atomic.Uint64
	turns, wakeups         atomic.Uint64
	reads, emptyReads      atomic.Uint64
	writes                 atomic.Uint64
	bytesIn, bytesOut      atomic.Uint64
	pdusIn, pdusOut        atomic.Uint64
	collapsed, blocked     atomic.Uint64
	discarded              atomic.Uint64
	digestErrors           atomic.Uint64
	bufferWaits            atomic.Uint64
}

// tally is what a connection counted since it last added to the counters. Guarded by the turn.
type tally struct {
	turns, wakeups, reads, emptyReads, writes, bytesIn, bytesOut, pdusIn, pdusOut uint64
	collapsed, blocked, discarded, digestErrors                                   uint64
}

// addTo adds and clears.
func (t *tally) addTo(c *counters) {
	add := func(to *atomic.Uint64, n uint64) {
		if n != 0 {
			to.Add(n)
		}
	}
	add(&c.turns, t.turns)
	add(&c.wakeups, t.wakeups)
	add(&c.reads, t.reads)
	add(&c.emptyReads, t.emptyReads)
	add(&c.writes, t.writes)
	add(&c.bytesIn, t.bytesIn)
	add(&c.bytesOut, t.bytesOut)
	add(&c.pdusIn, t.pdusIn)
	add(&c.pdusOut, t.pdusOut)
	add(&c.collapsed, t.collapsed)
	add(&c.blocked, t.blocked)
	add(&c.discarded, t.discarded)
	add(&c.digestErrors, t.digestErrors)
	*t = tally{}
}

// Stats reads the counters without stopping anything.
func (s *Server) Stats() Stats {
	c := &s.counters
	st := Stats{
		Accepted: c.accepted.Load(), AcceptErrors: c.acceptErrors.Load(),
		Turns: c.turns.Load(), Wakeups: c.wakeups.Load(),
		Reads: c.reads.Load(), EmptyReads: c.emptyReads.Load(), Writes: c.writes.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		PDUsIn: c.pdusIn.Load(), PDUsOut: c.pdusOut.Load(),
		Collapsed: c.collapsed.Load(), Blocked: c.blocked.Load(), Discarded: c.discarded.Load(),
		DigestErrors: c.digestErrors.Load(), BufferWaits: c.bufferWaits.Load(),
	}
	st.BufferBytes, st.BufferMemory = s.buffers.usage()
	s.mu.Lock()
	st.Connections = len(s.conns)
	s.mu.Unlock()
	return st
}
