package rdmatest

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"iserd/rdma"
)

// completionChannel implements [rdma.CompletionChannel].
type completionChannel struct {
	dev    *Device
	notify chan struct{} // holds one token while there may be something to see
	events atomic.Int32
	woken  atomic.Bool
	closed atomic.Bool
	cqs    int
	timer  *time.Timer // of the one goroutine that waits
}

// NewCompletionChannel implements [rdma.Device].
func (d *Device) NewCompletionChannel() (rdma.CompletionChannel, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.check("NewCompletionChannel"); err != nil {
		return nil, err
	}
	ch := &completionChannel{dev: d, notify: make(chan struct{}, 1)}
	d.channels++
	d.f.open[ch] = struct{}{}
	return ch, nil
}

func (ch *completionChannel) describe() string { return "completion channel of " + ch.dev.cfg.Name }

func (ch *completionChannel) signal() {
	select {
	case ch.notify <- struct{}{}:
	default:
	}
}

// take consumes what there is.
func (ch *completionChannel) take() (int, bool, error) {
	if ch.closed.Load() || ch.dev.removed.Load() {
		return 0, true, rdma.ErrClosed
	}
	n := int(ch.events.Swap(0))
	w := ch.woken.Swap(false)
	return n, n > 0 || w, nil
}

func (ch *completionChannel) Wait(timeout time.Duration) (int, error) {
	ch.dev.stats.waits.Add(1)
	if n, ok, err := ch.take(); ok || timeout == 0 {
		return n, err
	}
	var expired <-chan time.Time
	if timeout > 0 {
		if ch.timer == nil {
			ch.timer = time.NewTimer(timeout)
		} else {
			ch.timer.Reset(timeout)
		}
		defer ch.timer.Stop()
		expired = ch.timer.C
	}
	for {
		select {
		case <-ch.notify:
			if n, ok, err := ch.take(); ok {
				return n, err
			}
		case <-expired:
			n, _, err := ch.take()
			return n, err
		}
	}
}

func (ch *completionChannel) Wake() {
	ch.dev.stats.wakes.Add(1)
	ch.woken.Store(true)
	ch.signal()
}

func (ch *completionChannel) Close() error {
	ch.dev.f.mu.Lock()
	defer ch.dev.f.mu.Unlock()
	if ch.closed.Load() {
		return nil
	}
	if ch.cqs > 0 {
		return busy("ibv_destroy_comp_channel", "completion queues", ch.cqs)
	}
	ch.closed.Store(true)
	ch.dev.channels--
	delete(ch.dev.f.open, ch)
	ch.signal()
	return nil
}

// cqe is a completion with what polling it gives back.
type cqe struct {
	wc  rdma.WC
	q   *qp
	seq uint64
	rcv bool
}

// lateCQE is a completion that is held back.
type lateCQE struct {
	cqe
	ready time.Time
	held  bool
}

// cq implements [rdma.CQ].
type cq struct {
	dev   *Device
	ch    *completionChannel
	depth int
	ring  []cqe // len is a power of two, or depth
	head  int
	count int
	n     atomic.Int32 // count, readable without the lock
	late  []lateCQE
	armed bool
	dead  bool // overrun
	// shut says without the lock that Poll has more to say than that there is nothing.
	shut atomic.Bool
	qps  int
}

func (ch *completionChannel) CreateCQ(depth, vector int) (rdma.CQ, error) {
	d := ch.dev
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if ch.closed.Load() {
		return nil, rdma.ErrClosed
	}
	if err := d.check("CreateCQ"); err != nil {
		return nil, err
	}
	if depth <= 0 {
		return nil, invalid("ibv_create_cq", fmt.Sprintf("depth %d", depth))
	}
	if depth > d.attr.MaxCQE {
		return nil, tooBig("completion queue entries", depth, d.attr.MaxCQE)
	}
	if depth > 1<<24 {
		// What a device that boasts of 2^31-1 entries says when asked for them.
		return nil, &rdma.OpError{Op: "ibv_create_cq", Errno: syscall.ENOMEM}
	}
	c := &cq{dev: d, ch: ch, depth: depth, ring: make([]cqe, depth)}
	ch.cqs++
	d.f.open[c] = struct{}{}
	return c, nil
}

func (c *cq) describe() string { return fmt.Sprintf("CQ of %s, %d entries", c.dev.cfg.Name, c.depth) }

func (c *cq) Depth() int {
	c.dev.f.mu.Lock()
	defer c.dev.f.mu.Unlock()
	return c.depth
}

func (c *cq) Resize(depth int) error {
	c.dev.f.mu.Lock()
	defer c.dev.f.mu.Unlock()
	if c.ch == nil {
		return rdma.ErrClosed
	}
	if err := c.dev.check("Resize"); err != nil {
		return err
	}
	if c.dev.f.cfg.IWARP {
		return rdma.ErrUnsupported
	}
	if depth > c.dev.attr.MaxCQE {
		return tooBig("completion queue entries", depth, c.dev.attr.MaxCQE)
	}
	if depth <= 0 || depth < c.count {
		return invalid("ibv_resize_cq", fmt.Sprintf("depth %d, %d entries in use", depth, c.count))
	}
	ring := make([]cqe, depth)
	for i := range c.count {
		ring[i] = c.ring[(c.head+i)%c.depth]
	}
	c.ring, c.depth, c.head = ring, depth, 0
	return nil
}

func (c *cq) Arm() error {
	f := c.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.ch == nil {
		return rdma.ErrClosed
	}
	if err := c.dev.check("Arm"); err != nil {
		return err
	}
	c.dev.stats.arms.Add(1)
	c.armed = true
	return nil
}

func (c *cq) Poll(wcs []rdma.WC) (int, error) {
	d := c.dev
	d.stats.polls.Add(1)
	if c.n.Load() == 0 && !c.shut.Load() && !d.removed.Load() {
		d.stats.emptyPolls.Add(1)
		return 0, nil
	}
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if c.ch == nil {
		return 0, rdma.ErrClosed
	}
	if err := d.check("Poll"); err != nil {
		return 0, err
	}
	n := min(len(wcs), c.count)
	for i := range n {
		e := &c.ring[c.head]
		if c.head++; c.head == c.depth {
			c.head = 0
		}
		wcs[i] = e.wc
		if e.rcv {
			e.q.rqFreed++
		} else {
			e.q.freeTo(e.seq + 1)
		}
		e.q = nil
	}
	c.count -= n
	c.n.Store(int32(c.count))
	d.stats.completions.Add(uint64(n))
	return n, nil
}

func (c *cq) Close() error {
	f := c.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.ch == nil {
		return nil
	}
	if c.qps > 0 {
		return busy("ibv_destroy_cq", "queue pairs", c.qps)
	}
	c.ch.cqs--
	c.ch = nil
	c.shut.Store(true)
	delete(f.open, c)
	return nil
}

// push enters a completion, unless a fault holds it back or one before it of the same queue is held back.
func (c *cq) push(e cqe, delay time.Duration) {
	if delay == 0 && len(c.late) > 0 {
		for i := range c.late {
			if c.late[i].q == e.q && c.late[i].rcv == e.rcv {
				delay = 1
				break
			}
		}
	}
	if delay == 0 {
		c.enter(e)
		return
	}
	l := lateCQE{cqe: e, held: delay == Held}
	if !l.held {
		l.ready = time.Now().Add(delay)
		c.dev.f.after(delay, c.releaseLate)
	}
	c.late = append(c.late, l)
}

// releaseLate enters what is due.
func (c *cq) releaseLate() {
	type queue struct {
		q   *qp
		rcv bool
	}
	now := time.Now()
	blocked := map[queue]bool{}
	var keep []lateCQE
	for _, l := range c.late {
		k := queue{l.q, l.rcv}
		if blocked[k] || l.held || l.ready.After(now) {
			blocked[k] = true
			keep = append(keep, l)
			continue
		}
		c.enter(l.cqe)
	}
	c.late = keep
}

func (c *cq) enter(e cqe) {
	if c.ch == nil || c.dead || c.dev.removed.Load() {
		return
	}
	if c.count == c.depth {
		c.overrun()
		return
	}
	at := c.head + c.count
	if at >= c.depth {
		at -= c.depth
	}
	c.ring[at] = e
	c.count++
	c.n.Store(int32(c.count))
	if c.armed {
		c.armed = false
		c.ch.events.Add(1)
		c.ch.signal()
	}
}

// overrun kills the queue and every queue pair on it.
func (c *cq) overrun() {
	c.dead = true
	f := c.dev.f
	f.misuse(MisuseOverrun, "completion queue of %d entries", c.depth)
	c.dev.raise(rdma.AsyncEvent{Type: rdma.AsyncCQErr})
	for _, q := range f.sortedQPs() {
		if q.scq == c || q.rcq == c {
			q.enterError()
			c.dev.raise(rdma.AsyncEvent{Type: rdma.AsyncQPFatal, QPNum: q.num})
		}
	}
}
