package rdmatest

import (
	"sync/atomic"

	"iserd/rdma"
)

type statistics struct {
	polls, emptyPolls, posts, sendDoorbells, recvDoorbells       atomic.Uint64
	sends                                                        [4]atomic.Uint64
	recvs, completions, arms, waits, wakes, events, asyncEvents  atomic.Uint64
	rnr, inlineSends, signaled, readsOverDepth, maxReads, errors atomic.Uint64
}

// Stats is what a device did. Polls, Posts and Arms are the calls that would cross into C; a doorbell is one list of
// requests for one queue.
type Stats struct {
	Polls, EmptyPolls                          uint64
	Posts, SendDoorbells, RecvDoorbells        uint64
	Sends, SendsWithInv, RDMAWrites, RDMAReads uint64
	Recvs, Inline, Signaled                    uint64
	Completions, FailedCompletions             uint64 // flushed ones count as failed
	Arms, Waits, Wakes                         uint64
	CMEvents, AsyncEvents                      uint64
	// RNR is how often a message came to this device and found no receive.
	RNR uint64
	// ReadsOverDepth is how many RDMA READs were posted above the depth that the peer had granted; MaxReads how many
	// were out at most on one queue pair, counted until polled.
	ReadsOverDepth, MaxReads uint64
}

// Stats reads the device's counters.
func (d *Device) Stats() Stats {
	s := &d.stats
	return Stats{
		Polls: s.polls.Load(), EmptyPolls: s.emptyPolls.Load(),
		Posts: s.posts.Load(), SendDoorbells: s.sendDoorbells.Load(), RecvDoorbells: s.recvDoorbells.Load(),
		Sends: s.sends[rdma.OpSend].Load(), SendsWithInv: s.sends[rdma.OpSendWithInv].Load(),
		RDMAWrites: s.sends[rdma.OpRDMAWrite].Load(), RDMAReads: s.sends[rdma.OpRDMARead].Load(),
		Recvs: s.recvs.Load(), Inline: s.inlineSends.Load(), Signaled: s.signaled.Load(),
		Completions: s.completions.Load(), FailedCompletions: s.errors.Load(),
		Arms: s.arms.Load(), Waits: s.waits.Load(), Wakes: s.wakes.Load(),
		CMEvents: s.events.Load(), AsyncEvents: s.asyncEvents.Load(),
		RNR: s.rnr.Load(), ReadsOverDepth: s.readsOverDepth.Load(), MaxReads: s.maxReads.Load(),
	}
}
