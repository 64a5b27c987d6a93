package backstore

import (
	"errors"
	"sync/atomic"
)

// Errors that a store reports by wrapping; the device server maps each to its sense data.
var (
	// ErrNoSpace: the medium cannot take more (thin store full, file system full, quota).
	ErrNoSpace = errors.New("backstore: no space left")
	// ErrIO: the medium failed.
	ErrIO = errors.New("backstore: I/O error")
	// ErrReadOnly: the store was opened read-only.
	ErrReadOnly = errors.New("backstore: read-only")
	// ErrCanceled: the request's Cancel was set before any byte of it moved.
	ErrCanceled = errors.New("backstore: canceled")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("backstore: closed")
	// ErrOutOfRange: offset and length are not within the store.
	ErrOutOfRange = errors.New("backstore: out of range")
)

// Op is what a request asks for.
type Op uint8

const (
	OpRead Op = iota
	OpWrite
	// OpFlush puts everything that was answered before it on the medium.
	OpFlush
)

func (o Op) String() string {
	switch o {
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpFlush:
		return "flush"
	}
	return "unknown"
}

// Request is one piece of work for a store. The caller owns it and keeps it for reuse; between Submit and completion it
// belongs to the store, the memory that Buffers point at included.
type Request struct {
	Op     Op
	FUA    bool   // OpWrite: on the medium before completion
	Offset uint64 // bytes
	Length uint64 // bytes; OpRead and OpWrite: the sum of the lengths of Buffers
	// Buffers are the bytes to write, or the room to read into.
	Buffers [][]byte
	// Err is the result, set by the store.
	Err error
	// Cancel may be set by anyone at any time: a store that has not begun with the request ends it with ErrCanceled.
	Cancel atomic.Bool
	// Done is called once for a request that Submit did not finish itself. It is set by the caller once, before the
	// first Submit, and must not block.
	Done func(*Request)
	// Next links requests while a store queues them; Private is a note that the store makes. Both are the store's own.
	Next    *Request
	Private uint64
}

// Info describes a store.
type Info struct {
	Kind     string // "null", "ram", "file", …
	Path     string // what people call the medium; empty when it has no name
	Size     uint64 // bytes
	ReadOnly bool
	// WriteCache: completed writes may be lost at power failure until OpFlush (or FUA).
	WriteCache bool
	Rotational bool
	// LogicalBlockSize, if not 0, is the smallest unit the medium can do; PhysicalBlockSize the one it likes.
	LogicalBlockSize, PhysicalBlockSize uint32
	// Inline: Submit always finishes requests itself, at once, without blocking.
	Inline bool
}

// Store is bytes at offsets. It knows nothing of blocks, LUNs, initiators or transports. All methods may be called
// from any goroutine at the same time.
type Store interface {
	Info() Info
	// Submit starts r. It returns true when r is already finished: r.Err is set and r.Done is not called. It returns
	// false when r.Done will be called exactly once, on any goroutine, possibly before Submit returns. Submit does not
	// block for the medium. Overlapping requests in flight at the same time have no order.
	Submit(r *Request) (finished bool)
	// Close waits for what was submitted, then releases the medium. Requests after it end with ErrClosed.
	Close() error
}

// Mapper is a store whose bytes lie in memory that a transport may use in place, as the source of a read.
type Mapper interface {
	Store
	// Map appends to dst the pieces of memory that hold length bytes at offset. The range was checked by the caller. The
	// memory is valid until the store is closed; it must not be written through the slices.
	Map(dst [][]byte, offset, length uint64) [][]byte
	// Regions are the pieces of memory, outside the Go heap, that Map hands out slices of, for registration.
	Regions() [][]byte
}
