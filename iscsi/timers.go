package iscsi

import (
	"math"
	"time"
)

// never is a deadline that does not come.
const never = math.MaxInt64

// startTicker runs the one goroutine of the node while there are connections. n.mu is held.
func (n *Node) startTickerLocked() {
	if n.ticking {
		return
	}
	n.ticking = true
	n.clock.Store(n.monotonic())
	go n.tick()
}

func (n *Node) monotonic() int64 { return int64(time.Since(n.started)) + 1 }

// tick moves the node's clock and wakes the connections that have something due. It ends with the last connection.
func (n *Node) tick() {
	t := time.NewTicker(n.cfg.tick())
	defer t.Stop()
	for range t.C {
		now := n.monotonic()
		n.clock.Store(now)
		n.mu.Lock()
		if len(n.conns) == 0 {
			n.ticking = false
			n.mu.Unlock()
			return
		}
		for c := range n.conns {
			if c.due.Load() <= now {
				c.dm.Wake()
			}
		}
		n.mu.Unlock()
	}
}

// rearm computes when the connection next has something due.
func (c *Connection) rearm() {
	due := int64(never)
	cfg := &c.node.cfg
	switch c.phase {
	case phaseLogin:
		due = c.loginBy
	case phaseAdmission:
		due = min(c.loginBy, c.admitBy)
	case phaseFull:
		if c.probes() {
			if c.pinging {
				due = max(c.pingSent, c.lastHeard) + int64(cfg.NopTimeout)
			} else {
				due = c.lastHeard + int64(cfg.NopInterval)
			}
		}
		if c.logoutAsked {
			due = min(due, c.logoutBy)
		}
		for _, f := range c.tmfs {
			due = min(due, f.deadline)
		}
	}
	c.due.Store(due)
}

// probes: never in a discovery session, which is short, and whose initiators do not expect it.
func (c *Connection) probes() bool { return c.node.cfg.NopInterval > 0 && c.session.target != nil }

// timers does what is due.
func (c *Connection) timers() {
	now := c.node.clock.Load()
	if now < c.due.Load() {
		return
	}
	switch c.phase {
	case phaseLogin:
		if now >= c.loginBy {
			c.loginTimeout()
		}
	case phaseAdmission:
		if now >= c.loginBy {
			c.loginTimeout()
		} else if now >= c.admitBy {
			c.enterFullFeature()
		}
	case phaseFull:
		c.fullFeatureTimers(now)
	}
	c.rearm()
}

func (c *Connection) fullFeatureTimers(now int64) {
	for i := 0; i < len(c.tmfs); {
		if f := c.tmfs[i]; now >= f.deadline {
			c.answerTMF(f) // takes it off the list
			continue
		}
		i++
	}
	if c.phase != phaseFull {
		return
	}
	if c.logoutAsked && now >= c.logoutBy {
		c.logoutOverdue()
		return
	}
	if !c.probes() {
		return
	}
	switch cfg := &c.node.cfg; {
	case c.pinging && now >= max(c.pingSent, c.lastHeard)+int64(cfg.NopTimeout):
		c.node.count.deadPeers.Add(1)
		c.end(endDead, "no answer to a NOP-In for "+cfg.NopTimeout.String())
	case !c.pinging && now >= c.lastHeard+int64(cfg.NopInterval):
		c.ping(now)
	}
}
