package iser

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"iserd/rdma"
)

// reap takes completions from the queue, once, and lets each connection advance as far as it goes.
func (s *shard) reap() int {
	if s.cq == nil {
		return 0
	}
	s.counters.polls.inc()
	n, err := s.cq.Poll(s.wcs)
	if err != nil {
		// Nothing can be known of any connection here any more.
		go s.dev.srv.deviceLost(s.dev, err)
	}
	if n == 0 {
		s.full = false
		s.counters.idlePolls.inc()
		return 0
	}
	s.full = n == len(s.wcs)
	arrived := 0
	s.counters.completions.add(n)
	s.counters.batch(n)
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if wc.Status != rdma.StatusSuccess && wc.Status != rdma.StatusFlushed {
			s.counters.errors.inc()
		}
		c := s.lookup(wc.ID)
		if c == nil {
			s.counters.stale.inc()
			continue
		}
		if idKindOf(wc.ID) == idRecv {
			arrived++
		}
		c.complete(wc)
	}
	if arrived > 0 { // not what only says that our own sends have left
		s.lastBatch = arrived
	}
	return n
}

// loop is the shard's goroutine.
func (s *shard) loop() {
	defer close(s.stopped)
	if s.cfg.Pin {
		// Never unlocked: the thread's affinity is not for other goroutines, so it ends with this one.
		runtime.LockOSThread()
		if cpu, ok := s.dev.srv.cpuOf(s.index); ok {
			var set unix.CPUSet
			set.Set(cpu)
			_ = unix.SchedSetaffinity(0, &set)
		}
	}
	spin := max(s.cfg.SpinTime, 0)
	shortest := spin / 16
	window := spin
	for {
		s.mu.Lock()
		work := s.turn()
		done := s.done()
		s.mu.Unlock()
		if done {
			return
		}
		if s.full || work > 0 && window == 0 {
			continue
		}
		if window > 0 {
			for s.spin(window) {
				window = min(2*window, spin)
			}
			// Spinning did not pay. It is tried again, but for less.
			window = max(window/2, shortest)
		}
		s.sleep()
		if window < spin && s.justSpun() {
			window = min(2*window, spin)
		}
	}
}

// spin polls for the given time and reports whether work came. After a large batch it expects the next one when the
// last ones came, and polls little until then: a busy peer is served as well by few polls, while one that has a single
// command out is served at once.
func (s *shard) spin(window time.Duration) bool {
	start := time.Now()
	pause, again := time.Duration(0), time.Duration(0)
	if s.lastBatch >= largeBatch && !s.full {
		// A little early: a gap that grew shorter is not seen else.
		pause, again = s.gap*7/8, s.gap/4
	}
	next := start.Add(min(pause, window))
	for {
		// The peer, and the fabric in software, may need this very processor.
		runtime.Gosched()
		now := time.Now()
		over := now.Sub(start) > window
		if now.Before(next) && !over && s.woken.Load() == nil {
			continue
		}
		s.mu.Lock()
		work := s.turn()
		s.mu.Unlock()
		if work > 0 || over {
			s.gap = (s.gap + now.Sub(start)) / 2
			return work > 0
		}
		next = now.Add(again)
	}
}

// largeBatch is how many completions make a batch that is worth waiting for.
const largeBatch = 8

// justSpun tells whether the last sleep was so short that a full spin would have saved it.
func (s *shard) justSpun() bool { return s.lastSleep <= s.cfg.SpinTime }

// sleep arms the queue, polls once more and waits for a completion, a wake-up or a deadline.
func (s *shard) sleep() {
	s.mu.Lock()
	gone := s.cq == nil
	if !gone {
		s.counters.arms.inc()
		if err := s.cq.Arm(); err != nil {
			go s.dev.srv.deviceLost(s.dev, err)
		}
	}
	work := s.turn()
	timeout := s.nextDeadline()
	if s.done() {
		work++
	}
	s.mu.Unlock()
	if work > 0 {
		return
	}
	s.sleeping.Store(true)
	if s.woken.Load() != nil { // pushed before the flag could be seen
		s.sleeping.Store(false)
		return
	}
	if s.stopping.Load() && timeout < 0 {
		timeout = 50 * time.Millisecond
	}
	s.counters.sleeps.inc()
	start := time.Now()
	if gone || s.gone.Load() {
		s.waitKick(timeout)
	} else if n, err := s.channel.Wait(timeout); err != nil {
		if errors.Is(err, rdma.ErrClosed) {
			s.gone.Store(true)
		}
		s.waitKick(10 * time.Millisecond) // no busy loop round a broken channel
	} else {
		s.counters.events.add(n)
	}
	s.lastSleep = time.Since(start)
	s.sleeping.Store(false)
}

func (s *shard) waitKick(timeout time.Duration) {
	if timeout < 0 {
		<-s.kick
		return
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-s.kick:
	case <-t.C:
	}
}
