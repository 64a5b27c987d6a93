package rdma

import "unsafe"

// AddrOf is the address of the first byte of b as work requests state it. It is meaningful only for memory outside
// the Go heap.
func AddrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
