package faultstore

import (
	"sync"
	"time"

	"iserd/backstore"
)

// Store wraps a store. Without instructions it passes everything through. It is not a backstore.Mapper, whatever the
// store below is.
type Store struct {
	inner backstore.Store

	mu     sync.Mutex
	rules  [3]rule // by backstore.Op
	held   []*backstore.Request
	async  bool
	space  uint64 // bytes from the start that can be written; 0 is no limit
	seen   [3]int
	closed bool
	wg     sync.WaitGroup // requests that were not finished by Submit
}

// rule is what happens to the requests of one kind.
type rule struct {
	fail  int // how many more fail; -1 is all
	err   error
	delay time.Duration
	hang  bool
}

var _ backstore.Store = (*Store)(nil)

// New wraps inner, which Close closes too.
func New(inner backstore.Store) *Store { return &Store{inner: inner} }

// Fail makes the next n requests of a kind end with err; n -1 is all from now on.
func (s *Store) Fail(op backstore.Op, n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[op].fail, s.rules[op].err = n, err
}

// Delay makes requests of a kind take d longer, off the caller's goroutine.
func (s *Store) Delay(op backstore.Op, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[op].delay = d
}

// Async makes every request complete through Done, on another goroutine.
func (s *Store) Async(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.async = on
}

// Hang holds requests of a kind until Release.
func (s *Store) Hang(op backstore.Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[op].hang = true
}

// Held is the number of requests that are held.
func (s *Store) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}

// Release ends holding, and lets what is held go on: cancelled where Cancel was set meanwhile.
func (s *Store) Release() {
	s.mu.Lock()
	held := s.held
	s.held = nil
	for i := range s.rules {
		s.rules[i].hang = false
	}
	s.mu.Unlock()
	for _, r := range held {
		go s.later(r, 0, nil)
	}
}

// LimitSpace makes writes beyond the first n bytes fail with backstore.ErrNoSpace; 0 takes the limit away.
func (s *Store) LimitSpace(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space = n
}

// Seen is the number of requests of a kind so far.
func (s *Store) Seen(op backstore.Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[op]
}

// Info is that of the store below, with a write cache, and never inline.
func (s *Store) Info() backstore.Info {
	info := s.inner.Info()
	info.Inline = false
	info.WriteCache = true
	return info
}

// Submit starts r as the instructions say.
func (s *Store) Submit(r *backstore.Request) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		r.Err = backstore.ErrClosed
		return true
	}
	s.seen[r.Op]++
	rule := &s.rules[r.Op]
	var err error
	if rule.fail != 0 {
		err = rule.err
		if rule.fail > 0 {
			rule.fail--
		}
	} else if r.Op == backstore.OpWrite && s.space != 0 && r.Offset+r.Length > s.space {
		err = backstore.ErrNoSpace
	}
	switch {
	case rule.hang:
		s.wg.Add(1)
		s.held = append(s.held, r)
		s.mu.Unlock()
		return false
	case rule.delay > 0 || s.async:
		s.wg.Add(1)
		delay := rule.delay
		s.mu.Unlock()
		go s.later(r, delay, err)
		return false
	}
	s.mu.Unlock()
	if err != nil {
		r.Err = err
		return true
	}
	return s.inner.Submit(r)
}

// later finishes a request that Submit did not.
func (s *Store) later(r *backstore.Request, delay time.Duration, err error) {
	defer s.wg.Done()
	if delay > 0 {
		time.Sleep(delay)
	}
	switch {
	case r.Cancel.Load():
		r.Err = backstore.ErrCanceled
	case err != nil:
		r.Err = err
	default:
		// The request's own Done may be called by the store below instead.
		if !s.inner.Submit(r) {
			return
		}
	}
	r.Done(r)
}

// Close waits for everything under way, held requests included, and closes the store below.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
	return s.inner.Close()
}
