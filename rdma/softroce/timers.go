package softroce

import (
	"sync"
	"time"
)

// timers looks after deadlines: one goroutine, and the queue pairs that have something on its way. The data path does
// not read the clock: the goroutine notes when it saw a queue pair where it is, and counts from there.
type timers struct {
	mu   sync.Mutex
	set  []*qp
	next time.Time // when the goroutine wakes up
	kick chan struct{}
	stop chan struct{}
}

func newTimers() timers {
	return timers{kick: make(chan struct{}, 1), stop: make(chan struct{})}
}

// idlePause is how long the goroutine sleeps at most while it has queue pairs.
const idlePause = 100 * time.Millisecond

// add takes a queue pair in; its tick is called until it says that it needs no more.
func (t *timers) add(q *qp) {
	t.mu.Lock()
	t.set = append(t.set, q)
	first := len(t.set) == 1
	t.mu.Unlock()
	if first {
		t.wake()
	}
}

// wakeAt makes sure that the ticks come by then.
func (t *timers) wakeAt(at time.Time) {
	t.mu.Lock()
	late := at.Before(t.next)
	t.mu.Unlock()
	if late {
		t.wake()
	}
}

func (t *timers) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// tickGrain is the shortest pause between two rounds.
const tickGrain = 100 * time.Microsecond

func (t *timers) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var list, keep []*qp
	var socks []*socket
	for {
		t.mu.Lock()
		list, t.set = t.set, list[:0]
		t.mu.Unlock()
		now := time.Now()
		next := now.Add(idlePause)
		if len(list) == 0 {
			next = now.Add(time.Hour)
		}
		keep = keep[:0]
		for i, q := range list {
			q.mu.Lock()
			at := q.tick(now)
			sock := q.path.sock
			q.mu.Unlock()
			if sock != nil && (len(socks) == 0 || socks[len(socks)-1] != sock) {
				socks = append(socks, sock)
			}
			if !at.IsZero() {
				keep = append(keep, q)
				if at.Before(next) {
					next = at
				}
			}
			list[i] = nil
		}
		for i, s := range socks {
			s.flush()
			socks[i] = nil
		}
		socks = socks[:0]
		t.mu.Lock()
		t.set = append(t.set, keep...)
		t.next = next
		t.mu.Unlock()
		timer.Reset(max(time.Until(next), tickGrain))
		select {
		case <-timer.C:
		case <-t.kick:
		case <-t.stop:
			return
		}
	}
}
