package rdmatest

import "unsafe"

// memoryAt is n bytes at an address that a request with inline data names: it needs no registration, so nothing but the
// address says where it is.
func memoryAt(addr uint64, n uint32) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
