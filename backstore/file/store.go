package file

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// Store is a store on a file. See the package's comment.
type Store struct {
	file *os.File
	fd   int
	path string
	info backstore.Info

	onFailure func(error) // may be nil

	// inlining counts requests that run on their caller's goroutine, so that Close does not close the file under them.
	inlining atomic.Int64
	closed   atomic.Bool
	// misses counts reads in a row that were not in the page cache.
	misses atomic.Uint32
	// noNowait, noDsync: the file system refused RWF_NOWAIT, RWF_DSYNC.
	noNowait, noDsync atomic.Bool

	writeback writeback
	pool      pool

	closing  sync.Once
	closeErr error
}

var _ backstore.Store = (*Store)(nil)

func newStore(f *os.File, info backstore.Info, workers int) *Store {
	s := &Store{file: f, fd: int(f.Fd()), path: info.Path, info: info}
	s.writeback.sync = unix.Fdatasync
	s.pool.init(workers, s.work)
	return s
}

// Info says what the store is.
func (s *Store) Info() backstore.Info { return s.info }

// maxInlineRead is the largest read that is tried on the caller's goroutine, which serves other connections too: the
// copy takes about 20 µs.
const maxInlineRead = 128 << 10

// Submit starts r. See [backstore.Store].
func (s *Store) Submit(r *backstore.Request) bool {
	if r.Op != backstore.OpFlush && (r.Offset > s.info.Size || r.Length > s.info.Size-r.Offset) {
		r.Err = backstore.ErrOutOfRange
		return true
	}
	if r.Op == backstore.OpWrite && s.info.ReadOnly {
		r.Err = backstore.ErrReadOnly
		return true
	}
	if s.info.Inline || r.Op == backstore.OpRead && r.Length <= maxInlineRead && s.expectCached() {
		if s.inline(r) {
			return true
		}
	}
	r.Private = s.writeback.failures()
	if !s.pool.put(r) {
		r.Err = backstore.ErrClosed
		return true
	}
	return false
}

// expectCached says whether a read should be tried without waiting. After some misses in a row only every 16th is.
func (s *Store) expectCached() bool {
	if s.noNowait.Load() {
		return false
	}
	m := s.misses.Load()
	if m < 16 {
		return true
	}
	s.misses.Store(m + 1)
	return m%16 == 0
}

// inline runs a request on the caller's goroutine, if it can be done without waiting.
func (s *Store) inline(r *backstore.Request) bool {
	s.inlining.Add(1)
	defer s.inlining.Add(-1)
	if s.closed.Load() {
		r.Err = backstore.ErrClosed
		return true
	}
	if s.info.Inline {
		r.Private = s.writeback.failures()
		s.execute(r)
		return true
	}
	if !s.readCached(r) {
		s.misses.Add(1)
		return false
	}
	s.misses.Store(0)
	r.Err = nil
	return true
}

// work is what a worker does with a request.
func (s *Store) work(r *backstore.Request) (finished bool) {
	if r.Op == backstore.OpFlush && !r.Cancel.Load() {
		s.writeback.join(s, r)
		return false
	}
	s.execute(r)
	return true
}

// execute runs a request to its end. It may block.
func (s *Store) execute(r *backstore.Request) {
	switch {
	case r.Cancel.Load():
		r.Err = backstore.ErrCanceled
	case r.Op == backstore.OpRead:
		r.Err = s.read(r.Buffers, int64(r.Offset))
	case r.Op == backstore.OpWrite:
		r.Err = s.write(r.Buffers, int64(r.Offset), r.FUA)
	default:
		r.Err = s.writeback.flush(s, r.Private)
	}
}

// Close waits for what was submitted, writes back what is cached, and closes the file. It returns the error of that.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		s.pool.close()
		for s.inlining.Load() != 0 {
			runtime.Gosched()
		}
		if !s.info.ReadOnly {
			s.closeErr = s.writeback.flush(s, s.writeback.failures())
		}
		if err := s.file.Close(); s.closeErr == nil {
			s.closeErr = err
		}
	})
	return s.closeErr
}
