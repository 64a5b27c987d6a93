package tcp

// Wake implements [iscsi.Datamover]. While a turn is under way its end takes care; otherwise the waker does.
func (c *conn) Wake() {
	if c.woken.Swap(true) {
		return
	}
	if c.mu.TryLock() {
		c.mu.Unlock()
		c.kick()
	}
}

func (c *conn) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) buffersCame() {
	c.buffersFree.Store(true)
	c.Wake()
}

// unlock ends a turn, unless one was asked for meanwhile. Wake sets the flag before it tries the lock, and the flag is
// looked at after the lock is free: one of the two sees the other.
func (c *conn) unlock() {
	c.mu.Unlock()
	for c.woken.Load() && c.mu.TryLock() {
		c.endTurn()
		c.mu.Unlock()
	}
}

// runWoken is the waker.
func (c *conn) runWoken() {
	defer c.leave()
	for range c.wake {
		c.mu.Lock()
		c.n.wakeups++
		c.endTurn()
		gone := c.phase == phaseGone
		c.unlock()
		if gone {
			return
		}
	}
}

// endTurn does what was asked for meanwhile, sends what is queued, and takes the consequences.
func (c *conn) endTurn() {
	c.n.turns++
	for {
		if c.woken.Load() {
			c.woken.Store(false)
			c.workWoken()
		}
		if c.phase >= phaseEnded {
			break
		}
		c.pump()
		c.flush()
		c.releaseTasks()
		c.settle()
		if !c.woken.Load() && len(c.completions) == 0 && (c.blocked || c.out.empty()) {
			break
		}
	}
	c.n.addTo(&c.srv.counters)
}

func (c *conn) workWoken() {
	if c.phase == phaseGone {
		return
	}
	if c.buffersFree.Load() {
		c.buffersFree.Store(false)
		if c.phase < phaseEnded {
			c.eng.BuffersNotify()
		}
		c.srv.buffers.passOn(c, false)
	}
	c.eng.Turn()
}
