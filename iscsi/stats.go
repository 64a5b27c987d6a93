package iscsi

import "sync/atomic"

// counters are the node's.
type counters struct {
	connections, probes, logins, logouts, refusals, lost, removed, reinstatements, reinstatementTimeouts atomic.Uint64
	ignored, rejects, malformed, pings, deadPeers, busy, bufferWaits                                     atomic.Uint64
	tmfs, tmfTimeouts, lateWrites, aborted                                                               atomic.Uint64
}

// Stats counts what happened on a node since it was made.
type Stats struct {
	Targets, Sessions, Connections int // now
	InLogin                        int // now, of the connections
	Accepted                       uint64
	Probes, Logins, Logouts        uint64
	Refusals, Reinstatements       uint64
	// Lost are sessions that ended by themselves without a logout, Removed those that we ended.
	Lost, Removed uint64
	// ReinstatementTimeouts are logins that went on although an older session still had requests in a store.
	ReinstatementTimeouts uint64
	// Ignored are commands outside the window and duplicates.
	Ignored, Rejects, Malformed uint64
	Pings, DeadPeers            uint64
	// Busy are commands that found no task slot, BufferWaits those that had to wait for memory.
	Busy, BufferWaits uint64
	// TaskManagement counts functions, Aborted the tasks that they or the ends of sessions aborted. TMFTimeouts are
	// functions answered before the stores gave everything back, LateWrites the writes that could still land then.
	TaskManagement, Aborted, TMFTimeouts, LateWrites uint64
}

// Stats are the node's counters.
func (n *Node) Stats() Stats {
	c := &n.count
	s := Stats{
		Accepted: c.connections.Load(), Probes: c.probes.Load(), Logins: c.logins.Load(), Logouts: c.logouts.Load(),
		Refusals: c.refusals.Load(), Lost: c.lost.Load(), Removed: c.removed.Load(), Reinstatements: c.reinstatements.Load(),
		ReinstatementTimeouts: c.reinstatementTimeouts.Load(), Ignored: c.ignored.Load(), Rejects: c.rejects.Load(),
		Malformed: c.malformed.Load(), Pings: c.pings.Load(), DeadPeers: c.deadPeers.Load(), Busy: c.busy.Load(),
		BufferWaits: c.bufferWaits.Load(), TaskManagement: c.tmfs.Load(), Aborted: c.aborted.Load(),
		TMFTimeouts: c.tmfTimeouts.Load(), LateWrites: c.lateWrites.Load(),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Targets, s.Sessions, s.Connections, s.InLogin = len(n.targets), len(n.sessions), len(n.conns), n.inLogin
	return s
}
