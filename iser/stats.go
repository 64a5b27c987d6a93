package iser

import (
	"math/bits"
	"sync/atomic"

	"iserd/rdma"
)

// counter is written by whoever holds the shard's lock, so by one at a time, and read by anyone: no locked
// instruction is needed to add.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n int)    { c.v.Store(c.v.Load() + uint64(n)) }
func (c *counter) inc()         { c.v.Store(c.v.Load() + 1) }
func (c *counter) dec()         { c.v.Store(c.v.Load() - 1) }
func (c *counter) load() uint64 { return c.v.Load() }

// batchBuckets is the number of powers of two that batch sizes are counted by: 1, 2, 3–4, 5–8, … 513 and more.
const batchBuckets = 11

// counters are a shard's.
type counters struct {
	polls, idlePolls, completions, errors, stale counter
	arms, events, sleeps                         counter
	wakeups                                      atomic.Uint64 // written by any goroutine
	posts, doorbells, recvDoorbells              counter
	sends, writes, reads, recvs                  counter
	inlineSends, invalidates, signaled           counter
	writeBytes, readBytes, bounced               counter
	rnr                                          counter
	waitSQ, waitORD, waitBuffers, waitReceive    counter
	connections, accepted, refused, qps          counter
	recvPosted, sendOutstanding, buffersInUse    counter
	malformed, hellos, drainTimeouts             counter
	batches                                      [batchBuckets]counter
}

func (c *counters) batch(n int) {
	c.batches[min(bits.Len(uint(n-1)), batchBuckets-1)].inc()
}

// ShardStats are one shard's figures since its start, gauges marked as such.
type ShardStats struct {
	Device string
	Shard  int

	Polls, IdlePolls, Completions uint64
	// CompletionErrors are those with an error status, flushed ones left out; Stale are those of connections gone.
	CompletionErrors, Stale uint64
	Arms, Events, Sleeps    uint64
	// Wakeups are the times that another goroutine had to wake the sleeping shard.
	Wakeups uint64
	// Posts are the calls of Device.Post, each one crossing into C; Doorbells are the send chains in them, one per
	// queue pair and post; RecvDoorbells the receive chains.
	Posts, Doorbells, RecvDoorbells uint64
	// Work requests by kind. Signaled are those that asked for a completion.
	Sends, RDMAWrites, RDMAReads, Recvs       uint64
	InlineSends, Invalidations, Signaled      uint64
	RDMAWriteBytes, RDMAReadBytes             uint64
	Bounced                                   uint64 // bytes of data-in copied because their memory is not registered
	RNR                                       uint64 // connections lost because the peer had no receive posted
	WaitSQ, WaitORD, WaitBuffers, WaitReceive uint64 // times that work had to wait, by reason
	Accepted, Refused, Malformed, Hellos      uint64
	DrainTimeouts                             uint64
	// BatchSizes counts the non-empty polls by their size: BatchSizes[i] those of up to 1<<i completions, and of more
	// than the one before.
	BatchSizes [batchBuckets]uint64

	// Gauges.
	Connections, QPs            uint64
	RecvPosted, SendOutstanding uint64
	BuffersInUse                uint64
	PoolBytes, PoolFree         uint64
	CQDepth, CQReserved         uint64
}

// Crossings are the calls into the provider's C side: polls, arms and posts.
func (s *ShardStats) Crossings() uint64 { return s.Polls + s.Arms + s.Posts }

// Stats are the figures of a server.
type Stats struct {
	Shards []ShardStats
}

// Total sums the shards up.
func (s *Stats) Total() (t ShardStats) {
	for i := range s.Shards {
		x := &s.Shards[i]
		for _, p := range [...]struct{ to, from *uint64 }{
			{&t.Polls, &x.Polls}, {&t.IdlePolls, &x.IdlePolls}, {&t.Completions, &x.Completions},
			{&t.CompletionErrors, &x.CompletionErrors}, {&t.Stale, &x.Stale}, {&t.Arms, &x.Arms}, {&t.Events, &x.Events},
			{&t.Sleeps, &x.Sleeps}, {&t.Wakeups, &x.Wakeups}, {&t.Posts, &x.Posts}, {&t.Doorbells, &x.Doorbells},
			{&t.RecvDoorbells, &x.RecvDoorbells}, {&t.Sends, &x.Sends}, {&t.RDMAWrites, &x.RDMAWrites},
			{&t.RDMAReads, &x.RDMAReads}, {&t.Recvs, &x.Recvs}, {&t.InlineSends, &x.InlineSends},
			{&t.Invalidations, &x.Invalidations}, {&t.Signaled, &x.Signaled}, {&t.RDMAWriteBytes, &x.RDMAWriteBytes},
			{&t.RDMAReadBytes, &x.RDMAReadBytes}, {&t.Bounced, &x.Bounced}, {&t.RNR, &x.RNR}, {&t.WaitSQ, &x.WaitSQ},
			{&t.WaitORD, &x.WaitORD}, {&t.WaitBuffers, &x.WaitBuffers}, {&t.WaitReceive, &x.WaitReceive},
			{&t.Accepted, &x.Accepted}, {&t.Refused, &x.Refused}, {&t.Malformed, &x.Malformed}, {&t.Hellos, &x.Hellos},
			{&t.DrainTimeouts, &x.DrainTimeouts}, {&t.Connections, &x.Connections}, {&t.QPs, &x.QPs},
			{&t.RecvPosted, &x.RecvPosted}, {&t.SendOutstanding, &x.SendOutstanding}, {&t.BuffersInUse, &x.BuffersInUse},
			{&t.PoolBytes, &x.PoolBytes}, {&t.PoolFree, &x.PoolFree}, {&t.CQDepth, &x.CQDepth}, {&t.CQReserved, &x.CQReserved},
		} {
			*p.to += *p.from
		}
		for j := range x.BatchSizes {
			t.BatchSizes[j] += x.BatchSizes[j]
		}
	}
	return t
}

// Stats reads the counters of every shard, without stopping any.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st Stats
	for _, d := range s.devices {
		for _, sh := range d.shards {
			st.Shards = append(st.Shards, sh.stats())
		}
	}
	return st
}

func (s *shard) stats() ShardStats {
	c := &s.counters
	st := ShardStats{
		Device: s.dev.name, Shard: s.index,
		Polls: c.polls.load(), IdlePolls: c.idlePolls.load(), Completions: c.completions.load(),
		CompletionErrors: c.errors.load(), Stale: c.stale.load(), Arms: c.arms.load(), Events: c.events.load(),
		Sleeps: c.sleeps.load(), Wakeups: c.wakeups.Load(), Posts: c.posts.load(), Doorbells: c.doorbells.load(),
		RecvDoorbells: c.recvDoorbells.load(), Sends: c.sends.load(), RDMAWrites: c.writes.load(), RDMAReads: c.reads.load(),
		Recvs: c.recvs.load(), InlineSends: c.inlineSends.load(), Invalidations: c.invalidates.load(), Signaled: c.signaled.load(),
		RDMAWriteBytes: c.writeBytes.load(), RDMAReadBytes: c.readBytes.load(), Bounced: c.bounced.load(), RNR: c.rnr.load(),
		WaitSQ: c.waitSQ.load(), WaitORD: c.waitORD.load(), WaitBuffers: c.waitBuffers.load(), WaitReceive: c.waitReceive.load(),
		Accepted: c.accepted.load(), Refused: c.refused.load(), Malformed: c.malformed.load(), Hellos: c.hellos.load(),
		DrainTimeouts: c.drainTimeouts.load(), Connections: c.connections.load(), QPs: c.qps.load(),
		RecvPosted: c.recvPosted.load(), SendOutstanding: c.sendOutstanding.load(), BuffersInUse: c.buffersInUse.load(),
		PoolBytes: s.poolBytes.Load(), PoolFree: s.poolFree.Load(),
		CQDepth: uint64(s.cqDepth.Load()), CQReserved: uint64(s.cqReserved.Load()),
	}
	for i := range st.BatchSizes {
		st.BatchSizes[i] = c.batches[i].load()
	}
	return st
}

// countWR counts a send work request by kind.
func (c *counters) countWR(wr *rdma.SendWR, n int) {
	switch wr.Op {
	case rdma.OpSendWithInv:
		c.invalidates.inc()
		c.sends.inc()
	case rdma.OpSend:
		c.sends.inc()
	case rdma.OpRDMAWrite:
		c.writes.inc()
		c.writeBytes.add(n)
	case rdma.OpRDMARead:
		c.reads.inc()
		c.readBytes.add(n)
	}
	if wr.Flags&rdma.SendInline != 0 {
		c.inlineSends.inc()
	}
	if wr.Flags&rdma.SendSignaled != 0 {
		c.signaled.inc()
	}
}
