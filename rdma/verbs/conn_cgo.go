//go:build linux && cgo && !nordma

package verbs

/*
#include "shim_linux.h"
*/
import "C"

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"iserd/rdma"
)

// Private data that a message of the connection manager can carry, for the TCP port space: of the 92 bytes of a REQ
// 36 hold the IP addresses. iWARP carries up to 512; the length field of librdmacm ends at 255.
const (
	reqPrivateIB = 56
	repPrivateIB = 196
	rejPrivateIB = 148
	privateIWARP = 255
)

// conn is an rdma_cm_id. After the event or call that made it, one goroutine at a time controls it.
type conn struct {
	ch            *eventChannel
	token         uint64
	id            *C.struct_rdma_cm_id // nil when closed
	dev           *device              // written under ch.mu
	qp            *queuePair           // guarded by ch.fetchMu
	ready         atomic.Bool          // the queue pair takes sends: it is, or was, in RTS, or in error
	local, remote netip.AddrPort
	steps         chan resolveResult // active side, until resolved
}

type resolveResult struct {
	typ    rdma.EventType
	status int
}

func localAddr(id *C.struct_rdma_cm_id) netip.AddrPort {
	var src, dst sockaddr
	C.iserd_cm_addrs(id, unsafe.Pointer(&src), unsafe.Pointer(&dst))
	return src.decode()
}

func (c *conn) readAddrs() {
	var src, dst sockaddr
	C.iserd_cm_addrs(c.id, unsafe.Pointer(&src), unsafe.Pointer(&dst))
	c.local, c.remote = src.decode(), dst.decode()
}

// addZones completes link-local addresses: the kernel leaves the scope out of those of a connect request. hint is the
// zone of the listener, if it has one.
func (c *conn) addZones(hint string) {
	ip := c.local.Addr()
	if !needsZone(ip) {
		return
	}
	if hint == "" {
		hint = zoneOf(ip)
	}
	c.local = netip.AddrPortFrom(ip.WithZone(hint), c.local.Port())
	if r := c.remote.Addr(); needsZone(r) {
		c.remote = netip.AddrPortFrom(r.WithZone(hint), c.remote.Port())
	}
}

// resolved hands an event to the goroutine in Resolve. It is called by the one in Next, and does not
// block. False when nobody is interested.
func (c *conn) resolved(typ rdma.EventType, status int) bool {
	if c.steps == nil {
		return false
	}
	select {
	case c.steps <- resolveResult{typ, status}:
		return true
	default:
		return false
	}
}

func (c *conn) resolve(ctx context.Context, src, dst *sockaddr) error {
	ms, err := stepTime(ctx)
	if err != nil {
		return err
	}
	rc := C.iserd_cm_resolve_addr(c.id, unsafe.Pointer(src), unsafe.Pointer(dst), ms)
	if err := opError("rdma_resolve_addr", rc); err != nil {
		return err
	}
	if err := c.await(ctx, "rdma_resolve_addr", rdma.EventAddrResolved); err != nil {
		return err
	}
	dev := c.ch.p.deviceOf(c.id.verbs)
	c.ch.mu.Lock() // Next reads it
	c.dev = dev
	c.ch.mu.Unlock()
	if dev == nil {
		return &rdma.OpError{Op: "rdma_resolve_addr", Errno: syscall.ENODEV}
	}
	if ms, err = stepTime(ctx); err != nil {
		return err
	}
	if err := opError("rdma_resolve_route", C.iserd_cm_resolve_route(c.id, ms)); err != nil {
		return err
	}
	if err := c.await(ctx, "rdma_resolve_route", rdma.EventRouteResolved); err != nil {
		return err
	}
	c.readAddrs()
	return nil
}

func (c *conn) await(ctx context.Context, op string, want rdma.EventType) error {
	select {
	case r := <-c.steps:
		if r.typ == want && r.status == 0 {
			return nil
		}
		errno := syscall.Errno(max(r.status, -r.status))
		if r.typ == rdma.EventDeviceRemoval || errno == 0 {
			errno = syscall.ENODEV
		}
		return &rdma.OpError{Op: op, Errno: errno, Hint: r.typ.String()}
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ch.done:
		return rdma.ErrClosed
	}
}

func stepTime(ctx context.Context) (C.int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d := resolveStep
	if end, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(end), time.Millisecond))
	}
	return C.int(d.Milliseconds()), nil
}

func (c *conn) Device() rdma.Device {
	if c.dev == nil {
		return nil
	}
	return c.dev
}

func (c *conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }

func (c *conn) check(op string, private []byte, limitIB int) error {
	if c.id == nil {
		return rdma.ErrClosed
	}
	limit := limitIB
	if c.dev != nil && c.dev.static.transport == rdma.TransportIWARP {
		limit = privateIWARP
	}
	if len(private) > limit {
		return tooBig("%s with %d bytes of private data, the limit is %d", op, len(private), limit)
	}
	return nil
}

func (c *conn) param(op string, p *rdma.ConnParam, limitIB int) (C.struct_rdma_conn_param, error) {
	var out C.struct_rdma_conn_param
	if err := c.check(op, p.PrivateData, limitIB); err != nil {
		return out, err
	}
	if c.dev == nil {
		return out, &rdma.OpError{Op: op, Errno: syscall.EINVAL, Hint: "the connection has no device yet"}
	}
	// librdmacm says a bare EINVAL to these, and takes 255 for "as much as there is".
	if limit := c.dev.attr.MaxQPRDAtom; int(p.ResponderResources) > limit || p.ResponderResources == C.RDMA_MAX_RESP_RES {
		return out, tooBig("%s with %d responder resources, device %s allows %d", op, p.ResponderResources, c.dev.name, limit)
	}
	if limit := c.dev.attr.MaxQPInitRDAtom; int(p.InitiatorDepth) > limit || p.InitiatorDepth == C.RDMA_MAX_INIT_DEPTH {
		return out, tooBig("%s with initiator depth %d, device %s allows %d", op, p.InitiatorDepth, c.dev.name, limit)
	}
	if p.RetryCount > 7 || p.RNRRetryCount > 7 {
		return out, tooBig("%s with retry counts %d and %d (RNR): they have three bits", op, p.RetryCount, p.RNRRetryCount)
	}
	out.private_data_len = C.uint8_t(len(p.PrivateData))
	out.responder_resources = C.uint8_t(p.ResponderResources)
	out.initiator_depth = C.uint8_t(p.InitiatorDepth)
	out.retry_count = C.uint8_t(p.RetryCount)
	out.rnr_retry_count = C.uint8_t(p.RNRRetryCount)
	out.qp_num = C.uint32_t(p.QPNum)
	if p.FlowControl {
		out.flow_control = 1
	}
	return out, nil
}

func (c *conn) Accept(p rdma.ConnParam) error {
	cp, err := c.param("rdma_accept", &p, repPrivateIB)
	if err != nil {
		return err
	}
	rc := C.iserd_cm_accept(c.id, &cp, unsafe.Pointer(unsafe.SliceData(p.PrivateData)))
	if rc == 0 {
		c.ready.Store(true)
	}
	return opError("rdma_accept", rc)
}

func (c *conn) Connect(p rdma.ConnParam) error {
	cp, err := c.param("rdma_connect", &p, reqPrivateIB)
	if err != nil {
		return err
	}
	return opError("rdma_connect", C.iserd_cm_connect(c.id, &cp, unsafe.Pointer(unsafe.SliceData(p.PrivateData))))
}

func (c *conn) Reject(private []byte) error {
	if err := c.check("rdma_reject", private, rejPrivateIB); err != nil {
		return err
	}
	return opError("rdma_reject", C.iserd_cm_reject(c.id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private))))
}

func (c *conn) Disconnect() error {
	if c.id == nil {
		return nil
	}
	rc := C.iserd_cm_disconnect(c.id)
	switch {
	case rc == -C.EINVAL, rc == -C.ENOTCONN, rc == -C.ECONNRESET, rc == -C.ENOENT:
		return nil // it was over already: the normal case when both sides hang up
	case c.dev != nil && c.dev.removed.Load():
		return nil
	}
	return opError("rdma_disconnect", rc)
}

func (c *conn) NotifyEstablished() error {
	if c.id == nil {
		return rdma.ErrClosed
	}
	rc := C.iserd_cm_notify(c.id)
	if rc == -C.EINVAL || rc == -C.EISCONN {
		return nil // its event came first
	}
	return opError("rdma_notify", rc)
}

func (c *conn) Close() error {
	if c.id == nil {
		return nil
	}
	c.ch.fetchMu.Lock()
	open := c.qp != nil
	c.ch.fetchMu.Unlock()
	if open {
		return busy("rdma_destroy_id", "its queue pair is still open")
	}
	id := c.id
	c.id = nil
	return c.ch.destroy(id, c.token)
}
