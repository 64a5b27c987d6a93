//go:build linux && cgo && !nordma

package verbs

/*
#include "shim_linux.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"iserd/rdma"
)

type protectionDomain struct {
	d       *device
	regions atomic.Int32
	pairs   atomic.Int32
	mu      sync.Mutex
	c       *C.struct_ibv_pd // nil when closed
}

func (d *device) AllocPD() (rdma.PD, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	pd := &protectionDomain{d: d}
	if err := opError("ibv_alloc_pd", C.iserd_alloc_pd(d.ctx, &pd.c)); err != nil {
		d.drop()
		return nil, err
	}
	return pd, nil
}

func (pd *protectionDomain) Device() rdma.Device { return pd.d }

func (pd *protectionDomain) RegMR(buf []byte, access rdma.Access) (rdma.MR, error) {
	if len(buf) == 0 {
		return nil, &rdma.OpError{Op: "ibv_reg_mr", Errno: syscall.EINVAL, Hint: "empty region"}
	}
	if uint64(len(buf)) > pd.d.attr.MaxMRSize {
		return nil, tooBig("region of %d bytes, device %s allows %d", len(buf), pd.d.name, pd.d.attr.MaxMRSize)
	}
	var flags C.int
	if access&rdma.AccessLocalWrite != 0 {
		flags |= C.IBV_ACCESS_LOCAL_WRITE
	}
	if access&rdma.AccessRemoteWrite != 0 {
		// The kernel refuses remote write without local write.
		flags |= C.IBV_ACCESS_REMOTE_WRITE | C.IBV_ACCESS_LOCAL_WRITE
	}
	if access&rdma.AccessRemoteRead != 0 {
		flags |= C.IBV_ACCESS_REMOTE_READ
	}
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.c == nil {
		return nil, rdma.ErrClosed
	}
	m := &region{pd: pd, buf: buf}
	rc := C.iserd_reg_mr(pd.c, unsafe.Pointer(unsafe.SliceData(buf)), C.size_t(len(buf)), flags, &m.c)
	if rc != 0 {
		err := &rdma.OpError{Op: "ibv_reg_mr", Errno: syscall.Errno(-rc)}
		if err.Errno == syscall.ENOMEM {
			err.Hint = memlockHint(uint64(len(buf)))
		}
		return nil, err
	}
	m.lkey, m.rkey = uint32(m.c.lkey), uint32(m.c.rkey)
	pd.regions.Add(1)
	return m, nil
}

func (pd *protectionDomain) Close() error {
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if pd.c == nil {
		return nil
	}
	if r, q := pd.regions.Load(), pd.pairs.Load(); r != 0 || q != 0 {
		return busy("ibv_dealloc_pd", "%d memory region(s) and %d queue pair(s) are still open", r, q)
	}
	rc := -C.ibv_dealloc_pd(pd.c)
	if rc == -C.EBUSY {
		return opError("ibv_dealloc_pd", rc)
	}
	// Any other error means that the kernel has dropped it already, with its device.
	pd.c = nil
	pd.d.drop()
	if pd.d.removed.Load() {
		return nil
	}
	return opError("ibv_dealloc_pd", rc)
}

type region struct {
	pd         *protectionDomain
	buf        []byte
	lkey, rkey uint32
	mu         sync.Mutex
	c          *C.struct_ibv_mr // nil when closed
}

func (m *region) Bytes() []byte { return m.buf }
func (m *region) Addr() uint64  { return rdma.AddrOf(m.buf) }
func (m *region) LKey() uint32  { return m.lkey }
func (m *region) RKey() uint32  { return m.rkey }

func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return nil
	}
	rc := C.ibv_dereg_mr(m.c)
	if rc > 0 {
		rc = -rc
	}
	if rc == -C.EBUSY {
		return &rdma.OpError{Op: "ibv_dereg_mr", Errno: syscall.EBUSY, Hint: "a memory window is bound to it"}
	}
	m.c = nil
	m.pd.regions.Add(-1)
	if m.pd.d.removed.Load() {
		return nil
	}
	return opError("ibv_dereg_mr", rc)
}

// cPointer gives the bytes of a C union, which Go sees as an array.
func cPointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }
