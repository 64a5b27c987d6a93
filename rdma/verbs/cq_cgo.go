//go:build linux && cgo && !nordma

package verbs

/*
#include <stdlib.h>
#include "shim_linux.h"
#cgo noescape iserd_poll
#cgo nocallback iserd_poll
#cgo noescape iserd_arm
#cgo nocallback iserd_arm
#cgo noescape iserd_cq_events
#cgo nocallback iserd_cq_events
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"iserd/rdma"
)

// eventsPerCrossing bounds how long one crossing stays in C; what is left is taken by the next Wait.
const eventsPerCrossing = 256

// The ends of time of [os.File.SetReadDeadline].
var (
	never   time.Time
	already = time.Unix(1, 0)
)

type completionChannel struct {
	d    *device
	file *os.File
	conn syscall.RawConn
	cqs  atomic.Int32

	// woken is set by Wake and taken by Wait. waiting is set by Wait before it looks at woken, so that a Wake which
	// Wait does not see sees waiting, and moves the deadline.
	woken, waiting atomic.Bool
	closed         atomic.Bool

	// The two ways to fetch events, made once, so that Wait allocates nothing; rc is what they got.
	read func(uintptr) bool
	look func(uintptr)
	rc   C.int

	waits, events, wakes atomic.Uint64

	mu sync.Mutex // CreateCQ against Close
	c  *C.struct_ibv_comp_channel
}

func (d *device) NewCompletionChannel() (rdma.CompletionChannel, error) {
	if err := d.hold(); err != nil {
		return nil, err
	}
	ch := &completionChannel{d: d}
	if err := opError("ibv_create_comp_channel", C.iserd_create_channel(d.ctx, &ch.c)); err != nil {
		d.drop()
		return nil, err
	}
	f, err := pollableDup(int(ch.c.fd), "verbs:completions:"+d.name)
	if err == nil {
		ch.conn, err = f.SyscallConn()
	}
	if err != nil {
		C.ibv_destroy_comp_channel(ch.c)
		d.drop()
		return nil, err
	}
	ch.file = f
	handle := C.uintptr_t(uintptr(unsafe.Pointer(ch.c)))
	ch.read = func(uintptr) bool {
		ch.waits.Add(1)
		ch.rc = C.iserd_cq_events(handle, eventsPerCrossing)
		return ch.rc != -C.EAGAIN
	}
	ch.look = func(fd uintptr) { ch.read(fd) }
	d.statMu.Lock()
	d.chans[ch] = struct{}{}
	d.statMu.Unlock()
	return ch, nil
}

func (ch *completionChannel) Wait(timeout time.Duration) (int, error) {
	ch.waiting.Store(true)
	n, err := ch.wait(timeout)
	ch.waiting.Store(false)
	return n, err
}

func (ch *completionChannel) wait(timeout time.Duration) (int, error) {
	var end time.Time
	if timeout >= 0 {
		end = time.Now().Add(timeout)
	}
	for {
		deadline := never
		if timeout >= 0 {
			deadline = end
		}
		// First the deadline, then the flag: a Wake after this look moves the deadline that was set here.
		if err := ch.file.SetReadDeadline(deadline); err != nil {
			return 0, ch.readError(err)
		}
		if ch.woken.Swap(false) || timeout == 0 {
			return ch.take()
		}
		ch.rc = 0
		err := ch.conn.Read(ch.read)
		if err == nil && ch.rc == -C.EINTR {
			continue
		}
		if err == nil {
			return ch.result()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, ch.readError(err)
		}
		if ch.woken.Swap(false) || timeout >= 0 && !time.Now().Before(end) {
			return ch.take()
		}
		// A late Wake whose flag an earlier Wait took.
	}
}

// take fetches what is there without waiting, so that a Wake or a timeout hides no event.
func (ch *completionChannel) take() (int, error) {
	ch.rc = 0
	if err := ch.conn.Control(ch.look); err != nil {
		return 0, ch.readError(err)
	}
	if ch.rc == -C.EAGAIN || ch.rc == -C.EINTR {
		return 0, nil
	}
	return ch.result()
}

func (ch *completionChannel) result() (int, error) {
	if ch.rc >= 0 {
		ch.events.Add(uint64(ch.rc))
		return int(ch.rc), nil
	}
	if ch.rc == -C.EIO {
		// The kernel says so when it has cut the device off.
		ch.d.markRemoved()
		return 0, ch.d.gone()
	}
	return 0, opError("ibv_get_cq_event", ch.rc)
}

func (ch *completionChannel) readError(err error) error {
	if ch.closed.Load() || errors.Is(err, os.ErrClosed) {
		return rdma.ErrClosed
	}
	return err
}

func (ch *completionChannel) Wake() {
	// When the flag is up already, whoever raised it wakes the waiter.
	if !ch.woken.Swap(true) && ch.waiting.Load() {
		_ = ch.file.SetReadDeadline(already) // fails only when closed, and then there is nobody to wake
	}
}

func (ch *completionChannel) Close() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.c == nil {
		return nil
	}
	if n := ch.cqs.Load(); n != 0 {
		return busy("ibv_destroy_comp_channel", "%d completion queue(s) are still open", n)
	}
	ch.closed.Store(true)
	_ = ch.file.Close() // returns when no Wait is inside any more
	rc := -C.ibv_destroy_comp_channel(ch.c)
	ch.c = nil
	d := ch.d
	d.statMu.Lock()
	ch.addStats(&d.retired)
	delete(d.chans, ch)
	d.statMu.Unlock()
	d.drop()
	return opError("ibv_destroy_comp_channel", rc)
}

func (ch *completionChannel) addStats(s *Stats) {
	s.Waits += ch.waits.Load()
	s.CQEvents += ch.events.Load()
}

// completionQueue is used by one goroutine at a time, so the counters are atomic for [provider.Stats] only.
type completionQueue struct {
	ch     *completionChannel
	handle C.uintptr_t       // 0 when closed
	wcs    []C.struct_ibv_wc // in C memory
	c      *C.struct_ibv_cq
	pairs  atomic.Int32

	polls, empty, completions, arms atomic.Uint64
}

func (ch *completionChannel) CreateCQ(depth, vector int) (rdma.CQ, error) {
	d := ch.d
	if depth < 1 {
		return nil, &rdma.OpError{Op: "ibv_create_cq", Errno: syscall.EINVAL, Hint: "depth must be at least 1"}
	}
	if depth > d.attr.MaxCQE {
		return nil, tooBig("completion queue of %d entries, device %s allows %d", depth, d.name, d.attr.MaxCQE)
	}
	if d.removed.Load() {
		return nil, d.gone()
	}
	n := d.attr.NumCompVectors
	vector = (vector%n + n) % n
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.c == nil {
		return nil, rdma.ErrClosed
	}
	q := &completionQueue{ch: ch}
	if err := opError("ibv_create_cq", C.iserd_create_cq(ch.c, C.int(depth), C.int(vector), &q.c)); err != nil {
		return nil, err
	}
	// cgo's calloc and malloc cannot fail: they end the program.
	mem := C.calloc(C.ISERD_MAX_POLL, C.sizeof_struct_ibv_wc)
	q.wcs = unsafe.Slice((*C.struct_ibv_wc)(mem), C.ISERD_MAX_POLL)
	q.handle = C.uintptr_t(uintptr(unsafe.Pointer(q.c)))
	ch.cqs.Add(1)
	d.statMu.Lock()
	d.queues[q] = struct{}{}
	d.statMu.Unlock()
	return q, nil
}

// wcOps maps enum ibv_wc_opcode; what is not in it cannot come from our requests.
var wcOps = [256]rdma.WCOp{
	C.IBV_WC_SEND: rdma.WCSend, C.IBV_WC_RDMA_WRITE: rdma.WCRDMAWrite, C.IBV_WC_RDMA_READ: rdma.WCRDMARead,
	C.IBV_WC_RECV: rdma.WCRecv, C.IBV_WC_RECV_RDMA_WITH_IMM: rdma.WCRecv,
}

func (q *completionQueue) Poll(wcs []rdma.WC) (int, error) {
	if q.handle == 0 {
		return 0, rdma.ErrClosed
	}
	if len(wcs) == 0 {
		return 0, nil
	}
	rc := int(C.iserd_poll(q.handle, C.int(min(len(wcs), len(q.wcs))), C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(q.wcs))))))
	q.polls.Add(1)
	if rc <= 0 {
		if rc < 0 {
			return 0, &rdma.OpError{Op: "ibv_poll_cq", Errno: syscall.Errno(-rc), Hint: "the queue is broken, most likely overrun"}
		}
		q.empty.Add(1)
		return 0, nil
	}
	q.completions.Add(uint64(rc))
	in := q.wcs[:rc]
	out := wcs[:rc]
	for i := range in {
		c, w := &in[i], &out[i]
		w.ID = uint64(c.wr_id)
		w.Status = rdma.Status(c.status)
		w.Op = wcOps[uint8(c.opcode)]
		w.ByteLen = uint32(c.byte_len)
		w.QPNum = uint32(c.qp_num)
		w.VendorErr = uint32(c.vendor_err)
		w.WithInv = c.wc_flags&C.IBV_WC_WITH_INV != 0
		w.InvRKey = 0
		if w.WithInv {
			w.InvRKey = binary.NativeEndian.Uint32(c.anon0[:])
		}
	}
	return rc, nil
}

func (q *completionQueue) Arm() error {
	if q.handle == 0 {
		return rdma.ErrClosed
	}
	q.arms.Add(1)
	if rc := C.iserd_arm(q.handle); rc != 0 {
		return opError("ibv_req_notify_cq", rc)
	}
	return nil
}

func (q *completionQueue) Depth() int {
	if q.handle == 0 {
		return 0
	}
	return int(q.c.cqe)
}

func (q *completionQueue) Resize(depth int) error {
	if q.handle == 0 {
		return rdma.ErrClosed
	}
	if depth < 1 {
		return &rdma.OpError{Op: "ibv_resize_cq", Errno: syscall.EINVAL, Hint: "depth must be at least 1"}
	}
	if d := q.ch.d; depth > d.attr.MaxCQE {
		return tooBig("completion queue of %d entries, device %s allows %d", depth, d.name, d.attr.MaxCQE)
	}
	err := opError("ibv_resize_cq", C.iserd_resize_cq(q.c, C.int(depth)))
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP) {
		return errors.Join(rdma.ErrUnsupported, err)
	}
	return err
}

func (q *completionQueue) Close() error {
	if q.handle == 0 {
		return nil
	}
	if n := q.pairs.Load(); n != 0 {
		return busy("ibv_destroy_cq", "used %d time(s) by queue pairs that are still open", n)
	}
	rc := -C.ibv_destroy_cq(q.c)
	if rc == -C.EBUSY {
		return opError("ibv_destroy_cq", rc)
	}
	q.handle, q.c = 0, nil
	C.free(unsafe.Pointer(unsafe.SliceData(q.wcs)))
	q.wcs = nil
	d := q.ch.d
	d.statMu.Lock()
	q.addStats(&d.retired)
	delete(d.queues, q)
	d.statMu.Unlock()
	q.ch.cqs.Add(-1)
	if d.removed.Load() {
		return nil
	}
	return opError("ibv_destroy_cq", rc)
}

func (q *completionQueue) addStats(s *Stats) {
	s.Polls += q.polls.Load()
	s.EmptyPolls += q.empty.Load()
	s.Completions += q.completions.Load()
	s.Arms += q.arms.Load()
}
