package iser

import (
	"errors"
	"fmt"
	"time"

	"iserd/rdma"
)

var errEnded = errors.New("iser: the connection is ending")

// end begins the end of a connection, or hurries it. The rest happens when the turn settles.
func (c *conn) end(p phase, cause error) {
	if c.phase >= p {
		return
	}
	if c.cause == nil {
		c.cause = cause
	}
	c.phase = p
	if p == phaseGraceful {
		c.deadline = time.Now().Add(c.s.cfg.GracefulTimeout)
	} else {
		c.deadline = time.Time{}
	}
	if !c.ending {
		c.ending = true
		c.s.ending = append(c.s.ending, c)
	}
	c.markDirty() // so that the turn settles once more
}

// linger is how long the initiator has to close the connection itself, where that is its part.
const linger = 300 * time.Millisecond

// fail ends the connection at once because of an error.
func (c *conn) fail(err error) {
	if c.phase < phaseDraining {
		c.end(phaseAbort, err)
	}
}

// stepEnd moves an ending connection on; true when it has ended and is to leave the list.
func (c *conn) stepEnd(now time.Time) bool {
	switch c.phase {
	case phaseGraceful:
		if c.tx.idle() && c.peerCloses && !c.lingering {
			c.lingering = true
			if by := now.Add(linger); by.Before(c.deadline) {
				c.deadline = by
			}
		}
		if (!c.tx.idle() || c.lingering) && now.Before(c.deadline) && !c.disconnected {
			return false
		}
		c.phase = phaseAbort
		fallthrough
	case phaseAbort:
		c.startDrain(now)
		if c.sentinels > 0 {
			return false
		}
	case phaseDraining:
		if c.sentinels > 0 && now.Before(c.deadline) && !c.s.gone.Load() {
			return false
		}
		if c.sentinels > 0 {
			c.s.counters.drainTimeouts.inc()
		}
	}
	c.ending = false
	c.finishDrain(now)
	return true
}

// startDrain puts the queue pair into the error state between two sentinels: when both are back, nothing that was
// posted before is out any more. The peer's disconnect alone does not flush our queues. The receive sentinel goes
// before the change of state, since soft-RoCE looks at its receive queue only then; a receive does nothing by itself.
// The send sentinel goes after it, since before it would be a message. Nothing is posted later.
func (c *conn) startDrain(now time.Time) {
	c.phase = phaseDraining
	c.deadline = now.Add(c.s.cfg.DrainTimeout)
	c.dropQueues()
	if c.qp == nil || c.s.gone.Load() {
		return
	}
	c.sentinels = 2
	recv := [1]rdma.RecvWR{{ID: c.idBase | wrID(idRecvSentinel, 0, 0, 0)}}
	send := [1]rdma.SendWR{{ID: c.idBase | wrID(idSendSentinel, 0, 0, 0), Op: rdma.OpSend, Flags: rdma.SendSignaled}}
	if err := c.s.postOne(rdma.QPPost{QP: c.qp, Recvs: recv[:]}); err != nil {
		c.sentinels = 0 // closing the queue pair will have to do
	}
	_ = c.qp.SetError()
	if c.sentinels == 0 {
		_ = c.id.Disconnect()
		return
	}
	if err := c.s.postOne(rdma.QPPost{QP: c.qp, Sends: send[:]}); err != nil {
		c.sentinels = 0
	}
	// It answers the peer's request as well, and is a no-op on a connection that never was.
	_ = c.id.Disconnect()
}

// finishDrain closes the queue pair, which nothing is outstanding on, and tells the engine.
func (c *conn) finishDrain(now time.Time) {
	s := c.s
	if c.qp != nil {
		// Without both sentinels, destroying the queue pair is what keeps the device off the memory.
		if err := c.qp.Close(); err != nil {
			c.cause = errors.Join(c.cause, fmt.Errorf("close queue pair: %w", err))
		}
		c.qp = nil
		s.counters.qps.dec()
	}
	c.dropQueues()
	s.counters.recvPosted.add(-c.rx.posted)
	s.counters.sendOutstanding.add(-c.tx.outstanding())
	c.rx.posted, c.tx.done = 0, c.tx.posted
	s.releaseCQ(c.cqEntries)
	c.cqEntries = 0
	if c.waiting {
		s.dropWaiter(c)
	}
	if c.id != nil {
		s.dev.srv.reap(c.id, c.established && !c.disconnected && !s.gone.Load())
		c.id = nil
	}
	c.phase = phaseDrained
	if f := s.cfg.Events.Disconnected; f != nil {
		f(c.remote, c.cause)
	}
	c.eng.ConnectionTerminateNotify(c.cause)
}

// dropQueues forgets what was queued and not posted. The engine takes its tasks back with the notification.
func (c *conn) dropQueues() {
	c.rx.toPost = c.rx.toPost[:0]
	c.rx.held.clear()
	c.tx.queue.clear()
	c.reads.clear()
}
