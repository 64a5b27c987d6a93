package softroce

import (
	"fmt"
	"strings"
	"sync/atomic"
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
	// Dropped are connection requests for which there was no room.
	Dropped uint64
}

// Stats reads the counters. It can be called at any time.
func (p *Provider) Stats() Stats {
	c := &p.dev.counters
	return Stats{c.sent.Load(), c.received.Load(), c.sendCalls.Load(), c.sendErrors.Load(), c.malformed.Load(), c.badICRC.Load(),
		c.unknownQP.Load(), c.strangers.Load(), c.timeouts.Load(), c.sequence.Load(), c.recoveries.Load(), c.rnr.Load(), c.congested.Load(),
		c.gaps.Load(), c.duplicates.Load(), c.refused.Load(), c.rnrSent.Load(), c.dropped.Load()}
}

// String names the counters that are not zero.
func (s Stats) String() string {
	var b strings.Builder
	for _, c := range []struct {
		name string
		n    uint64
	}{{"sent", s.Sent}, {"received", s.Received}, {"send_calls", s.SendCalls}, {"send_errors", s.SendErrors}, {"malformed", s.Malformed},
		{"bad_icrc", s.BadICRC}, {"unknown_qp", s.UnknownQP}, {"strangers", s.Strangers}, {"timeouts", s.Timeouts}, {"sequence_naks", s.SequenceNAKs},
		{"recoveries", s.Recoveries}, {"rnr_naks", s.RNRNAKs}, {"congested", s.Congested}, {"gaps", s.Gaps}, {"duplicates", s.Duplicates},
		{"refused", s.Refused}, {"rnr_sent", s.RNRSent}, {"dropped", s.Dropped}} {
		if c.n > 0 {
			fmt.Fprintf(&b, " %s %d", c.name, c.n)
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
	dropped                                      atomic.Uint64
}
