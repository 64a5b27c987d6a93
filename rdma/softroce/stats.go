package softroce

import (
	"fmt"
	"strings"
	"sync/atomic"

	"iserd/rdma"
)

// Stats counts what the device did since it was opened.
type Stats struct {
	// Packets that were sent and that came, system calls that sent them, and messages that the kernel did not take.
	Sent, Received, SendCalls, SendErrors uint64
	// Packets that were dropped: no RoCEv2 packet, a wrong ICRC, for no queue pair here, and not of the queue pair's peer.
	Malformed, BadICRC, UnknownQP, Strangers uint64
	// As requester: times that nothing came in time, that the peer told of a gap, that packets were sent again for any
	// cause, that the peer had no receive, and that the network said it is full.
	Timeouts, SequenceNAKs, Recoveries, RNRNAKs, Congested uint64
	// As responder: gaps, packets that came again, requests refused for good, requests without a receive.
	Gaps, Duplicates, Refused, RNRSent uint64
	// Packets that were kept until their turn came.
	Early uint64
	// Dropped are connection requests for which there was no room.
	Dropped uint64
}

// Stats reads the counters. It can be called at any time.
func (p *Provider) Stats() Stats {
	c := &p.dev.counters
	return Stats{c.sent.Load(), c.received.Load(), c.sendCalls.Load(), c.sendErrors.Load(), c.malformed.Load(), c.badICRC.Load(),
		c.unknownQP.Load(), c.strangers.Load(), c.timeouts.Load(), c.sequence.Load(), c.recoveries.Load(), c.rnr.Load(), c.congested.Load(),
		c.gaps.Load(), c.duplicates.Load(), c.refused.Load(), c.rnrSent.Load(), c.early.Load(), c.dropped.Load()}
}

// Counters implements [rdma.Counted].
func (p *Provider) Counters() []rdma.Counter { return p.Stats().counters() }

func (s Stats) counters() []rdma.Counter {
	return []rdma.Counter{{Name: "sent", Value: s.Sent}, {Name: "received", Value: s.Received}, {Name: "send_calls", Value: s.SendCalls},
		{Name: "send_errors", Value: s.SendErrors}, {Name: "malformed", Value: s.Malformed}, {Name: "bad_icrc", Value: s.BadICRC},
		{Name: "unknown_qp", Value: s.UnknownQP}, {Name: "strangers", Value: s.Strangers}, {Name: "timeouts", Value: s.Timeouts},
		{Name: "sequence_naks", Value: s.SequenceNAKs}, {Name: "recoveries", Value: s.Recoveries}, {Name: "rnr_naks", Value: s.RNRNAKs},
		{Name: "congested", Value: s.Congested}, {Name: "gaps", Value: s.Gaps}, {Name: "duplicates", Value: s.Duplicates},
		{Name: "refused", Value: s.Refused}, {Name: "rnr_sent", Value: s.RNRSent}, {Name: "early", Value: s.Early}, {Name: "dropped", Value: s.Dropped}}
}

// String names the counters that are not zero.
func (s Stats) String() string {
	var b strings.Builder
	for _, c := range s.counters() {
		if c.Value > 0 {
			fmt.Fprintf(&b, " %s %d", c.Name, c.Value)
		}
	}
	return strings.TrimSpace(b.String())
}

// counters are what Stats reads.
type counters struct {
	sent, received, sendCalls, sendErrors        atomic.Uint64
	malformed, badICRC, unknownQP, strangers     atomic.Uint64
	timeouts, sequence, recoveries, rnr, rnrSent atomic.Uint64
	gaps, duplicates, refused, congested         atomic.Uint64
	early, dropped                               atomic.Uint64
}
