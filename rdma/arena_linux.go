package rdma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HugePageSize is the size of the huge pages that arenas ask for.
const HugePageSize = 2 << 20

// Arena is memory outside the Go heap: it never moves, and the garbage collector does not see it. It belongs to its
// creator, who must not unmap it while a region over it is registered or a request in flight uses it.
type Arena struct {
	mem  []byte
	huge bool
}

// MapArena maps size bytes, rounded up to whole pages, zeroed. With huge set it asks for huge pages first and falls
// back to normal ones (with transparent huge pages advised); [Arena.Huge] says which it got.
func MapArena(size int, huge bool) (*Arena, error) {
	if size <= 0 {
		return nil, fmt.Errorf("rdma: arena of %d bytes", size)
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if huge {
		n := (size + HugePageSize - 1) &^ (HugePageSize - 1)
		if mem, err := unix.Mmap(-1, 0, n, prot, flags|unix.MAP_HUGETLB); err == nil {
			return &Arena{mem: mem, huge: true}, nil
		}
	}
	page := unix.Getpagesize()
	n := (size + page - 1) &^ (page - 1)
	mem, err := unix.Mmap(-1, 0, n, prot, flags)
	if err != nil {
		return nil, fmt.Errorf("rdma: map %d bytes: %w", n, err)
	}
	if huge {
		// Best effort: a kernel without transparent huge pages says EINVAL.
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return &Arena{mem: mem}, nil
}

// Bytes is the whole mapping; valid until Close.
func (a *Arena) Bytes() []byte { return a.mem }

// Huge is true when the memory really is in huge pages.
func (a *Arena) Huge() bool { return a.huge }

// Close unmaps. Nothing may use the memory afterwards: a later access is a fault, not an error.
func (a *Arena) Close() error {
	if a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem = nil
	return unix.Munmap(mem)
}
