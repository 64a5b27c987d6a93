package tcp

import "sync"

const (
	// chunkSize takes a data segment of 256 KiB, the length that the target declares by default, with its headers and
	// digests, and what came along with it. One read can bring as much.
	chunkSize = 256<<10 + 8<<10
	// blockSize holds about 300 headers.
	blockSize = 16 << 10

	maxIdleChunks = 64
	maxIdleBlocks = 256
)

// chunk is memory that bytes from the peer arrive in. refs counts the control PDUs in it that the engine retained; the
// connection that reads into it is not counted. Guarded by the turn.
type chunk struct {
	buf  []byte
	refs int
}

func newChunk() *chunk { return &chunk{buf: make([]byte, chunkSize)} }

// block is memory for PDU headers and copied data segments on their way out.
type block struct {
	buf [blockSize]byte
}

func newBlock() *block { return new(block) }

// freeList keeps what is not in use, up to a limit, last in first out: what was used last is in the processor's cache.
type freeList[T any] struct {
	limit int
	make  func() *T

	mu   sync.Mutex
	free []*T
}

func (f *freeList[T]) get() *T {
	f.mu.Lock()
	if n := len(f.free); n > 0 {
		v := f.free[n-1]
		f.free[n-1] = nil
		f.free = f.free[:n-1]
		f.mu.Unlock()
		return v
	}
	f.mu.Unlock()
	return f.make()
}

func (f *freeList[T]) put(v *T) {
	f.mu.Lock()
	if len(f.free) < f.limit {
		f.free = append(f.free, v)
	}
	f.mu.Unlock()
}
