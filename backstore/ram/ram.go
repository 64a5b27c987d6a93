package ram

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// hugePage is the size from which huge pages are tried, and their granularity.
const hugePage = 2 << 20

// Store is bytes in memory. Requests run on the caller's goroutine, any number at the same time.
type Store struct {
	size uint64
	mem  []byte // the mapping, at least size bytes
	huge bool

	// running counts the requests in the copy loop, so that Close does not unmap under them.
	running atomic.Int64
	closed  atomic.Bool
	unmap   sync.Once
	err     error // of the unmapping
}

var _ backstore.Mapper = (*Store)(nil)

// New maps size bytes, zeroed. Pages are taken from the system when they are first touched. Huge pages are used where
// the system has some reserved; otherwise transparent huge pages are asked for.
func New(size uint64) (*Store, error) {
	if size == 0 {
		return nil, errors.New("ram store: the size is 0; give one, as in ram:64MiB")
	}
	if size > math.MaxInt-hugePage {
		return nil, fmt.Errorf("ram store: %d bytes are more than a process can address", size)
	}
	mem, huge, err := mapMemory(int(size))
	if err != nil {
		if errors.Is(err, unix.ENOMEM) {
			return nil, fmt.Errorf("ram store: the system refuses %d bytes of memory: make the store smaller, or raise vm.overcommit_memory or the limit of the control group: %w", size, err)
		}
		return nil, fmt.Errorf("ram store: map %d bytes: %w", size, err)
	}
	return &Store{size: size, mem: mem, huge: huge}, nil
}

func mapMemory(size int) (mem []byte, huge bool, err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if size >= hugePage {
		n := (size + hugePage - 1) &^ (hugePage - 1)
		// Without MAP_NORESERVE the kernel sets the pages aside now: no SIGBUS later.
		if mem, err := unix.Mmap(-1, 0, n, prot, flags|unix.MAP_HUGETLB); err == nil {
			return mem, true, nil
		}
	}
	page := unix.Getpagesize()
	mem, err = unix.Mmap(-1, 0, (size+page-1)&^(page-1), prot, flags)
	if err != nil {
		return nil, false, err
	}
	// Best effort: kernels without transparent huge pages say EINVAL.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	// Kept out of core dumps: a crash of the daemon should not write out the users' data.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	return mem, false, nil
}

// Info says what the store is. It has no cache in front of it: a completed write is where it will ever be.
func (s *Store) Info() backstore.Info {
	return backstore.Info{Kind: "ram", Size: s.size, Inline: true}
}

// Huge is true when the memory is in reserved huge pages.
func (s *Store) Huge() bool { return s.huge }

// Submit finishes every request at once.
func (s *Store) Submit(r *backstore.Request) bool {
	// The count goes up before closed is looked at, and Close sets closed before it looks at the count: one of the two
	// sees the other.
	s.running.Add(1)
	r.Err = s.do(r)
	s.running.Add(-1)
	return true
}

func (s *Store) do(r *backstore.Request) error {
	switch {
	case s.closed.Load():
		return backstore.ErrClosed
	case r.Cancel.Load():
		return backstore.ErrCanceled
	case r.Op == backstore.OpFlush:
		return nil
	case r.Offset > s.size || r.Length > s.size-r.Offset:
		return backstore.ErrOutOfRange
	}
	mem := s.mem[r.Offset : r.Offset+r.Length]
	for _, b := range r.Buffers {
		var n int
		if r.Op == backstore.OpWrite {
			n = copy(mem, b)
		} else {
			n = copy(b, mem)
		}
		mem = mem[n:]
	}
	return nil
}

// Map returns the range as one piece. It must not be called after Close.
func (s *Store) Map(dst [][]byte, offset, length uint64) [][]byte {
	if length == 0 {
		return dst
	}
	return append(dst, s.mem[offset:offset+length:offset+length])
}

// Regions is the whole memory.
func (s *Store) Regions() [][]byte { return [][]byte{s.mem} }

// Close waits for requests that are being copied and unmaps. Memory that Map gave out must not be in use any more.
func (s *Store) Close() error {
	s.closed.Store(true)
	for s.running.Load() != 0 {
		runtime.Gosched() // a copy takes microseconds
	}
	s.unmap.Do(func() { s.err = unix.Munmap(s.mem) })
	return s.err
}
