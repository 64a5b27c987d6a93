package iser

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"iserd/iscsi"
	"iserd/rdma"
)

// shard is one core's part of one device: a completion queue with everything that completes there. All of it belongs
// to whoever holds mu, except what says otherwise. The loop goroutine holds mu during its turns, the connection
// manager's goroutine for the events of a connection.
type shard struct {
	dev     *device
	index   int
	cfg     *Config
	channel rdma.CompletionChannel
	kick    chan struct{} // wakes the loop once the device is gone
	stopped chan struct{} // closed when the loop has ended

	// Any goroutine.
	woken     atomic.Pointer[conn] // connections that asked for a turn, newest first
	sleeping  atomic.Bool
	gone      atomic.Bool // the device is gone, or the shard is being shut down by force: kick instead of channel
	stopping  atomic.Bool
	abandoned atomic.Bool  // stop although connections are left
	load      atomic.Int64 // connections placed here
	counters  counters

	poolBytes, poolFree atomic.Uint64
	cqDepth, cqReserved atomic.Int64
	mu                  sync.Mutex
	cq                  rdma.CQ // nil once the device is gone
	pool                *rdma.Pool
	slots               []connSlot
	freeSlots           []uint32
	live                int // used slots
	wcs                 []rdma.WC
	dirty, dirtySpare   []*conn // connections with work to post
	ending              []*conn // connections on their way out, with deadlines
	notes, notesSpare   []note
	waiters             []*conn // connections that wait for buffers, oldest first
	served              *conn   // the waiter that may allocate just now
	freed               bool    // buffers came back since the waiters were last asked
	posts               []rdma.QPPost
	owners              []*conn
	sends               []rdma.SendWR
	recvs               []rdma.RecvWR
	sges                []rdma.SGE
	control             iscsi.Control
	single              [1]rdma.QPPost

	huge      bool          // the pool is in huge pages
	lastSleep time.Duration // the loop's own
	full      bool          // the last poll brought as much as it could; the loop's own
	lastBatch int           // messages that the last poll with any brought; the loop's own
	gap       time.Duration // from going idle to the next batch, about; the loop's own
}

// connSlot is a place in the table that completions find their connection by. gen changes with each tenant.
type connSlot struct {
	c   *conn
	gen uint16
}

// note is a call of the engine that had to wait for the datamover's own method to return.
type note struct {
	c    *conn
	kind noteKind
	t    *iscsi.Task
	err  error
}

type noteKind uint8

const (
	noteData noteKind = iota // DataCompletionNotify
	noteHeld                 // receives that were held back may be dispatched
)

// maxSlots is what the field in a work request's ID can tell apart.
const maxSlots = 1 << idSlotBits

// newShard makes the shard's objects: completion channel and queue, pool.
func newShard(d *device, index int) (*shard, error) {
	s := &shard{dev: d, index: index, cfg: &d.srv.cfg, kick: make(chan struct{}, 1), stopped: make(chan struct{})}
	var err error
	if s.channel, err = d.dev.NewCompletionChannel(); err != nil {
		return nil, fmt.Errorf("completion channel: %w", err)
	}
	// What is needed, never what the device boasts of: some report enormous limits that cannot be had.
	depth := s.cfg.CQDepth
	if d.attr.MaxCQE > 0 {
		depth = min(depth, d.attr.MaxCQE)
	}
	if s.cq, err = s.channel.CreateCQ(depth, index); err != nil {
		_ = s.channel.Close()
		return nil, fmt.Errorf("completion queue of %d entries: %w", depth, err)
	}
	s.cqDepth.Store(int64(s.cq.Depth()))
	if err = s.openPool(); err != nil {
		_ = s.cq.Close()
		_ = s.channel.Close()
		return nil, fmt.Errorf("pool of %d bytes: %w", s.cfg.PoolBytes, err)
	}
	s.wcs = make([]rdma.WC, s.cfg.PollBatch)
	return s, nil
}

// reserveCQ makes sure that n more completions fit, growing the queue where it can. An overrun would end every
// connection on it.
func (s *shard) reserveCQ(n int) error {
	if s.cq == nil {
		return errDeviceGone
	}
	need := int(s.cqReserved.Load()) + n
	if depth := s.cq.Depth(); need > depth {
		want := max(2*depth, need)
		if limit := s.dev.attr.MaxCQE; limit > 0 {
			want = min(want, limit)
		}
		if want < need {
			return fmt.Errorf("%w: %d entries of %d are taken, the device has no larger one", errCQFull, s.cqReserved.Load(), depth)
		}
		if err := s.cq.Resize(want); err != nil {
			return fmt.Errorf("%w: %d entries of %d are taken: %w", errCQFull, s.cqReserved.Load(), depth, err)
		}
		s.cqDepth.Store(int64(s.cq.Depth()))
	}
	s.cqReserved.Store(int64(need))
	return nil
}

func (s *shard) releaseCQ(n int) { s.cqReserved.Add(-int64(n)) }

// takeSlot gives c a place in the table.
func (s *shard) takeSlot(c *conn) error {
	var i uint32
	if n := len(s.freeSlots); n > 0 {
		i, s.freeSlots = s.freeSlots[n-1], s.freeSlots[:n-1]
	} else {
		if len(s.slots) >= maxSlots {
			return fmt.Errorf("iser: %d connections on one shard", maxSlots)
		}
		i = uint32(len(s.slots))
		s.slots = append(s.slots, connSlot{})
	}
	slot := &s.slots[i]
	slot.c = c
	c.slot, c.idBase = i, wrID(0, slot.gen, i, 0)
	s.live++
	return nil
}

func (s *shard) releaseSlot(c *conn) {
	slot := &s.slots[c.slot]
	slot.c = nil
	slot.gen++
	s.freeSlots = append(s.freeSlots, c.slot)
	s.live--
}

// lookup finds the connection of a completion; nil when it is gone.
func (s *shard) lookup(id uint64) *conn {
	i, gen := idSlot(id), idGen(id)
	if int(i) >= len(s.slots) || s.slots[i].gen != gen {
		return nil
	}
	return s.slots[i].c
}

// wake asks the loop for a turn of c. Any goroutine, any time.
func (s *shard) wake(c *conn) {
	if c.wokenFlag.Swap(true) {
		return
	}
	for {
		head := s.woken.Load()
		c.wokenNext = head
		if s.woken.CompareAndSwap(head, c) {
			break
		}
	}
	s.wakeLoop()
}

// wakeLoop ends the loop's sleep, if it sleeps.
func (s *shard) wakeLoop() {
	if !s.sleeping.Load() || !s.sleeping.CompareAndSwap(true, false) {
		return
	}
	s.counters.wakeups.Add(1)
	if s.gone.Load() {
		select {
		case s.kick <- struct{}{}:
		default:
		}
		return
	}
	s.channel.Wake()
}

// drainWoken gives a turn to every connection that asked for one, in the order of asking.
func (s *shard) drainWoken() (n int) {
	if s.woken.Load() == nil {
		return 0
	}
	var first *conn
	for c := s.woken.Swap(nil); c != nil; {
		next := c.wokenNext
		c.wokenNext = first
		first, c = c, next
	}
	for c := first; c != nil; n++ {
		next := c.wokenNext
		c.wokenNext = nil
		// Cleared before the turn: a wake-up during the turn asks for another.
		c.wokenFlag.Store(false)
		if c.phase != phaseGone {
			c.eng.Turn()
		}
		c = next
	}
	return n
}

// done tells whether the loop has nothing left to live for.
func (s *shard) done() bool { return s.stopping.Load() && (s.live == 0 || s.abandoned.Load()) }

// turn does what there is to do. The caller holds mu.
func (s *shard) turn() (work int) {
	work = s.reap()
	work += s.drainWoken()
	s.finish()
	return work
}

// locked runs f as a turn that did not come from the loop.
func (s *shard) locked(f func()) {
	s.mu.Lock()
	f()
	s.finish()
	later := len(s.ending) > 0
	s.mu.Unlock()
	if later {
		s.wakeLoop() // its sleep must end at the new deadline
	}
}

// finish settles what the turn left behind and posts what it queued, until nothing is left.
func (s *shard) finish() {
	for {
		s.settle()
		if !s.flush() && len(s.notes) == 0 && !s.canServe() {
			return
		}
	}
}

// settle makes the calls that had to wait and moves ending connections on.
func (s *shard) settle() {
	for len(s.notes) > 0 {
		notes := s.notes
		s.notes, s.notesSpare = s.notesSpare[:0], nil
		for i := range notes {
			n := &notes[i]
			if n.c.phase <= phaseGraceful {
				switch n.kind {
				case noteData:
					n.c.eng.DataCompletionNotify(n.t, n.err)
				case noteHeld:
					n.c.dispatchHeld()
				}
			}
			*n = note{}
		}
		s.notesSpare = notes[:0]
	}
	if len(s.ending) > 0 {
		s.stepEnding()
	}
	s.serveWaiters()
}

// stepEnding moves ending connections on and takes those off the list that have ended.
func (s *shard) stepEnding() {
	now := time.Now()
	for i := 0; i < len(s.ending); {
		c := s.ending[i]
		if c.stepEnd(now) {
			last := len(s.ending) - 1
			s.ending[i], s.ending[last] = s.ending[last], nil
			s.ending = s.ending[:last]
			continue
		}
		i++
	}
}

// nextDeadline is how long the loop may sleep; negative for ever.
func (s *shard) nextDeadline() time.Duration {
	if len(s.ending) == 0 {
		return -1
	}
	now := time.Now()
	wait := time.Hour
	for _, c := range s.ending {
		wait = min(wait, c.deadline.Sub(now))
	}
	return max(wait, 0)
}

// canServe tells whether serveWaiters has something to do.
func (s *shard) canServe() bool { return s.freed && len(s.waiters) > 0 }

// serveWaiters tells connections that wait for buffers that some came back, oldest first, until one of them finds too
// few. Nobody overtakes: a large request would never get its turn.
func (s *shard) serveWaiters() {
	for s.canServe() {
		c := s.waiters[0]
		s.freed = false
		c.waiting = false
		s.served = c
		c.buffersBack()
		s.served = nil
		if c.waiting {
			continue // still short: it keeps its place; freed tells whether trying again can help
		}
		s.dropWaiter(c)
		s.freed = true // there may be enough for the next one
	}
}

// wait puts c at the end of those who wait for buffers, or leaves it where it is.
func (s *shard) wait(c *conn) {
	s.counters.waitBuffers.inc()
	if c.waiting {
		return
	}
	c.waiting = true
	if s.served != c {
		s.waiters = append(s.waiters, c)
	}
}

func (s *shard) dropWaiter(c *conn) {
	for i, w := range s.waiters {
		if w == c {
			copy(s.waiters[i:], s.waiters[i+1:])
			s.waiters[len(s.waiters)-1] = nil
			s.waiters = s.waiters[:len(s.waiters)-1]
			break
		}
	}
	c.waiting = false
	s.freed = true // the next in line may find enough
}

// mayAllocate tells whether c must let older waiters go first.
func (s *shard) mayAllocate(c *conn) bool { return len(s.waiters) == 0 || s.served == c }

// flush posts what the connections have queued: one call for all of them, the receives of each before its sends. It
// returns true when that left work behind.
func (s *shard) flush() bool {
	if len(s.dirty) == 0 {
		return false
	}
	dirty := s.dirty
	s.dirty = s.dirtySpare[:0]
	s.posts, s.owners = s.posts[:0], s.owners[:0]
	s.sends, s.recvs, s.sges = s.sends[:0], s.recvs[:0], s.sges[:0]
	for i, c := range dirty {
		c.dirty = false
		dirty[i] = nil
		c.build()
	}
	s.dirtySpare = dirty[:0]
	if len(s.posts) > 0 && !s.gone.Load() {
		s.counters.posts.inc()
		s.dev.dev.Post(s.posts)
		for i := range s.posts {
			p := &s.posts[i]
			if len(p.Sends) > 0 {
				s.counters.doorbells.inc()
			}
			if len(p.Recvs) > 0 {
				s.counters.recvDoorbells.inc()
			}
			if p.Err != nil {
				s.owners[i].fail(fmt.Errorf("post %d receives and %d sends: %w", len(p.Recvs), len(p.Sends), p.Err))
			}
			*p = rdma.QPPost{}
			s.owners[i] = nil
		}
	}
	return len(s.dirty) > 0 || len(s.notes) > 0
}

// postOne posts for one queue pair outside the batch: the sentinels.
func (s *shard) postOne(p rdma.QPPost) error {
	s.single[0] = p
	s.counters.posts.inc()
	s.dev.dev.Post(s.single[:])
	err := s.single[0].Err
	s.single[0] = rdma.QPPost{}
	return err
}

var (
	errCQFull     = errors.New("iser: completion queue full")
	errDeviceGone = errors.New("iser: the RDMA device is gone")
)
