package null

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// zeroRegionSize is the size of the memory that reads are served from: as much as one command of the default transfer
// limit asks for, so that a read is one piece.
const zeroRegionSize = 1 << 20

// zeroRegion is shared by all null stores of the process, because a transport registers (and thereby pins) it: a
// thousand null LUNs must not pin a gigabyte of zeros. It is mapped on first use and stays; nobody writes to it.
var zeroRegion = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, zeroRegionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// Store discards what is written and returns zeros.
type Store struct {
	size   uint64
	zero   []byte
	closed atomic.Bool
}

var _ backstore.Mapper = (*Store)(nil)

// New makes a store that looks size bytes large. It needs no memory for them.
func New(size uint64) (*Store, error) {
	if size == 0 {
		return nil, fmt.Errorf("null store: the size is 0; give one, as in null:1T")
	}
	zero, err := zeroRegion()
	if err != nil {
		return nil, fmt.Errorf("null store: map %d bytes of zeros: %w", zeroRegionSize, err)
	}
	return &Store{size: size, zero: zero}, nil
}

// Info says what the store is.
func (s *Store) Info() backstore.Info {
	return backstore.Info{Kind: "null", Size: s.size, Inline: true}
}

// Submit finishes every request at once.
func (s *Store) Submit(r *backstore.Request) bool {
	r.Err = s.do(r)
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
	if r.Op == backstore.OpRead {
		for _, b := range r.Buffers {
			clear(b)
		}
	}
	return nil
}

// Map returns zeros for any range, in pieces of up to 1 MiB.
func (s *Store) Map(dst [][]byte, _, length uint64) [][]byte {
	for length > 0 {
		n := min(length, zeroRegionSize)
		dst = append(dst, s.zero[:n:n])
		length -= n
	}
	return dst
}

// Regions is the one shared region of zeros.
func (s *Store) Regions() [][]byte { return [][]byte{s.zero} }

// Close makes later requests end with backstore.ErrClosed. The zeros stay mapped.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}
