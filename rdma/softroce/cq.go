package softroce

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"iserd/rdma"
)

// channel is a completion channel: one goroutine sleeps on it.
type channel struct {
	dev    *device
	notify chan struct{} // one token while there may be something to see
	events atomic.Int32
	woken  atomic.Bool
	closed atomic.Bool
	cqs    atomic.Int32
	timer  *time.Timer // of the one goroutine that waits
}

// NewCompletionChannel implements [rdma.Device].
func (d *device) NewCompletionChannel() (rdma.CompletionChannel, error) {
	if d.closed.Load() {
		return nil, rdma.ErrClosed
	}
	d.open.channels.Add(1)
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &channel{dev: d, notify: make(chan struct{}, 1), timer: t}, nil
}

func (c *channel) signal() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// take consumes what there is.
func (c *channel) take() (int, bool, error) {
	if c.closed.Load() || c.dev.closed.Load() {
		return 0, true, rdma.ErrClosed
	}
	n := int(c.events.Swap(0))
	w := c.woken.Swap(false)
	return n, n > 0 || w, nil
}

func (c *channel) Wait(timeout time.Duration) (int, error) {
	if n, ok, err := c.take(); ok || timeout == 0 {
		return n, err
	}
	var expired <-chan time.Time
	if timeout > 0 {
		c.timer.Reset(timeout)
		defer c.timer.Stop()
		expired = c.timer.C
	}
	for {
		select {
		case <-c.notify:
			if n, ok, err := c.take(); ok {
				return n, err
			}
		case <-expired:
			n, _, err := c.take()
			return n, err
		}
	}
}

func (c *channel) Wake() {
	c.woken.Store(true)
	c.signal()
}

func (c *channel) Close() error {
	if c.closed.Load() {
		return nil
	}
	if n := c.cqs.Load(); n > 0 {
		return busy("destroy_comp_channel", "completion queues", int(n))
	}
	if c.closed.CompareAndSwap(false, true) {
		c.dev.open.channels.Add(-1)
		c.signal()
	}
	return nil
}

// cqe is a completion, with the places in its queue that polling it gives back.
type cqe struct {
	wc   rdma.WC
	held *atomic.Int32
	free int32
}

// cq is a completion queue: a ring under a lock that is held for a few instructions only.
type cq struct {
	ch  *channel
	qps atomic.Int32
	n   atomic.Int32 // entries, readable without the lock

	mu     sync.Mutex
	ring   []cqe
	head   int
	armed  bool
	dead   bool // overrun
	closed bool
}

func (c *channel) CreateCQ(depth, vector int) (rdma.CQ, error) {
	if c.closed.Load() || c.dev.closed.Load() {
		return nil, rdma.ErrClosed
	}
	if depth < 1 {
		return nil, invalid("create_cq", "depth below 1")
	}
	if depth > maxCQE {
		return nil, tooBig("completion queue entries", depth, maxCQE)
	}
	c.cqs.Add(1)
	c.dev.open.cqs.Add(1)
	return &cq{ch: c, ring: make([]cqe, depth)}, nil
}

func (q *cq) Poll(wcs []rdma.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.ch.dev.closed.Load() {
		return 0, rdma.ErrClosed
	}
	have := int(q.n.Load())
	n := min(len(wcs), have)
	for i := range n {
		e := &q.ring[q.head]
		wcs[i] = e.wc
		e.held.Add(-e.free)
		e.held = nil
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	q.n.Store(int32(have - n))
	return n, nil
}

// push enters a completion.
func (q *cq) push(e cqe) {
	q.mu.Lock()
	n := int(q.n.Load())
	if n == len(q.ring) || q.closed {
		overrun := !q.dead && !q.closed
		q.dead = true
		q.mu.Unlock()
		if overrun {
			q.ch.dev.overrun(q)
		}
		return
	}
	i := q.head + n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = e
	q.n.Store(int32(n + 1))
	wake := q.armed
	q.armed = false
	q.mu.Unlock()
	if wake {
		q.ch.events.Add(1)
		q.ch.signal()
	}
}

func (q *cq) Arm() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.ch.dev.closed.Load() {
		return rdma.ErrClosed
	}
	q.armed = true
	return nil
}

func (q *cq) Depth() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring)
}

func (q *cq) Resize(depth int) error {
	if depth > maxCQE {
		return tooBig("completion queue entries", depth, maxCQE)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return rdma.ErrClosed
	}
	n := int(q.n.Load())
	if depth < 1 || depth < n {
		return &rdma.OpError{Op: "resize_cq", Errno: syscall.EINVAL, Hint: "more completions wait than would fit"}
	}
	ring := make([]cqe, depth)
	for i := range n {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
	return nil
}

func (q *cq) Close() error {
	if n := q.qps.Load(); n > 0 {
		return busy("destroy_cq", "queue pairs", int(n))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.ring, q.head = nil, 0
	q.n.Store(0)
	q.ch.cqs.Add(-1)
	q.ch.dev.open.cqs.Add(-1)
	return nil
}
