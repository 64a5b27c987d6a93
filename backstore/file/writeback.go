package file

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// writeback keeps the errors of writing back, which the kernel tells once, for all who must hear of them.
type writeback struct {
	// sync is fdatasync.
	sync func(fd int) error
	// generation counts the failures that were found.
	generation atomic.Uint64
	// mu makes flushes one after the other: while one is under way the kernel's answer to another would not say which of
	// the two covers a failure. A waiting flush then has little left to do.
	mu sync.Mutex
	// owed: a FUA write found a failure that may concern other data; the next flush reports it.
	owed bool

	waitMu sync.Mutex
	// waiting are flushes, linked by Next, that the worker which runs flushes has yet to begin.
	waiting *backstore.Request
	running bool
}

// failures is the note that a request takes along when it is submitted.
func (w *writeback) failures() uint64 { return w.generation.Load() }

func (w *writeback) found(owed bool) {
	w.mu.Lock()
	w.generation.Add(1)
	w.owed = w.owed || owed
	w.mu.Unlock()
}

// flush writes back everything. since is the generation when the request was submitted.
func (w *writeback) flush(s *Store, since uint64) error {
	err, owed := w.synchronize(s)
	return w.result(s, err, owed, since)
}

// synchronize is fdatasync, with the kernel's answer to it.
func (w *writeback) synchronize(s *Store) (err error, owed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err = w.sync(s.fd)
	for err == unix.EINTR {
		err = w.sync(s.fd)
	}
	owed = w.owed
	w.owed = false
	if err != nil {
		w.generation.Add(1)
	}
	return err, owed
}

// result is what a flush that was submitted in generation since reports.
func (w *writeback) result(s *Store, err error, owed bool, since uint64) error {
	if err == nil && (owed || w.generation.Load() != since) {
		err = errWriteback
	}
	if err != nil {
		return s.failed("flush", -1, err)
	}
	return nil
}

// join adds a flush to those that wait, and is the one to run them if nobody is. All that wait are done with one
// fdatasync, as they were submitted before it began. So flushes never take more than one worker, however long they last.
func (w *writeback) join(s *Store, r *backstore.Request) {
	w.waitMu.Lock()
	r.Next = w.waiting
	w.waiting = r
	if w.running {
		w.waitMu.Unlock()
		return
	}
	w.running = true
	for w.waiting != nil {
		r := w.waiting
		w.waiting = nil
		w.waitMu.Unlock()
		err, owed := w.synchronize(s)
		for r != nil {
			next := r.Next // r is the caller's again once Done is called
			r.Next = nil
			r.Err = w.result(s, err, owed, r.Private)
			r.Done(r)
			r = next
		}
		w.waitMu.Lock()
	}
	w.running = false
	w.waitMu.Unlock()
}

var errWriteback = errors.New("earlier writes could not be put on the medium")
