package file

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"iserd/backstore"
)

// slowRequest tells a medium that has to be waited for from one that is memory: below it, more workers than cores only
// wait for each other.
const slowRequest = 100 * time.Microsecond

// maxBlocked bounds the workers of all stores together, beyond one for each: every one may sit in a system call, which
// takes a thread, and the Go runtime ends the process at 10,000 threads.
const maxBlocked = 4096

var blocked atomic.Int64

// pool is a queue with workers. Workers are started when there is work for them and stay.
type pool struct {
	// execute runs a request. It returns false if the request is finished by another worker.
	execute func(*backstore.Request) (finished bool)
	max     int
	fast    int // workers while the medium is fast
	// took is a moving average of the time that a request takes, in nanoseconds.
	took atomic.Int64

	mu         sync.Mutex
	wake       *sync.Cond
	head, tail *backstore.Request
	queued     int
	workers    int
	idle       int
	closed     bool
	stopped    sync.WaitGroup
}

func (p *pool) init(workers int, execute func(*backstore.Request) bool) {
	p.execute, p.max = execute, workers
	p.fast = min(workers, max(1, runtime.GOMAXPROCS(0)))
	p.wake = sync.NewCond(&p.mu)
}

// put queues a request. It returns false when the pool is closed.
func (p *pool) put(r *backstore.Request) bool {
	r.Next = nil
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	if p.tail == nil {
		p.head = r
	} else {
		p.tail.Next = r
	}
	p.tail = r
	p.queued++
	if p.idle > 0 {
		p.idle-- // here, not by the worker: the next request must not count on the same one
		p.wake.Signal()
	} else if p.grow() {
		p.workers++
		p.stopped.Add(1)
		go p.work()
	}
	p.mu.Unlock()
	return true
}

// grow says whether a further worker is worth it; p.mu is held.
func (p *pool) grow() bool {
	switch {
	case p.workers == 0:
		return true
	case p.workers >= p.max:
		return false
	case p.workers >= p.fast && p.took.Load() < int64(slowRequest) && p.queued < 8*p.workers:
		// A queue that long also says that workers hang, which the average, of ended requests, does not.
		return false
	}
	if blocked.Add(1) > maxBlocked {
		blocked.Add(-1)
		return false
	}
	return true
}

// work is a worker.
func (p *pool) work() {
	defer p.stopped.Done()
	for {
		r := p.take()
		if r == nil {
			return
		}
		start := time.Now()
		finished := p.execute(r)
		p.note(int64(time.Since(start)))
		if finished {
			r.Done(r)
		}
	}
}

func (p *pool) note(took int64) {
	old := p.took.Load()
	p.took.Store(old + (took-old)/8) // a lost update is of no matter
}

// take waits for a request. Workers take one at a time: in a batch, one request that hangs would hold up the others.
func (p *pool) take() *backstore.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.head == nil {
		if p.closed {
			p.workers--
			if p.workers > 0 {
				blocked.Add(-1)
			}
			return nil
		}
		p.idle++
		p.wake.Wait()
	}
	r := p.head
	p.head = r.Next
	p.queued--
	if p.head == nil {
		p.tail = nil
	}
	r.Next = nil
	return r
}

// close lets the workers finish the queue and waits for them.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.wake.Broadcast()
	p.mu.Unlock()
	p.stopped.Wait()
}
