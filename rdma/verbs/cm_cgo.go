//go:build linux && cgo && !nordma

package verbs

/*
#include <stdlib.h>
#include "shim_linux.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"iserd/rdma"
)

// eventChannel is an rdma_event_channel. Identifiers carry a token, never a pointer: what belongs to a token that is not
// in the tables any more is dropped.
type eventChannel struct {
	p    *provider
	file *os.File
	conn syscall.RawConn
	done chan struct{} // closed by Close

	// fetchMu keeps fetching an event apart from making and destroying a queue pair, because librdmacm moves the queue pair
	// to RTS or to the error state while it fetches. Destroying an identifier needs it not: that waits by itself until
	// every event that was fetched is acknowledged, which is in the same call as the fetch.
	fetchMu sync.Mutex
	// nextMu is held by Next, so that Close can wait until Next has let go of what it fetched.
	nextMu sync.Mutex

	mu        sync.Mutex
	c         *C.struct_rdma_event_channel // nil when destroyed
	closed    bool
	ids       int
	conns     map[uint64]*conn
	listeners map[uint64]*listener
}

func (p *provider) NewEventChannel() (rdma.EventChannel, error) {
	// Fails early, and in words, on a machine without devices.
	if _, err := p.Devices(); err != nil {
		return nil, err
	}
	ch := &eventChannel{p: p, done: make(chan struct{}), conns: map[uint64]*conn{}, listeners: map[uint64]*listener{}}
	if rc := C.iserd_cm_channel(&ch.c); rc != 0 {
		return nil, &rdma.OpError{Op: "rdma_create_event_channel", Errno: syscall.Errno(-rc),
			Hint: "modprobe rdma_ucm, and read access to /dev/infiniband/rdma_cm"}
	}
	var err error
	if ch.file, err = pollableDup(int(ch.c.fd), "verbs:cm"); err == nil {
		ch.conn, err = ch.file.SyscallConn()
	}
	if err != nil {
		C.rdma_destroy_event_channel(ch.c)
		return nil, err
	}
	p.channels.Add(1)
	return ch, nil
}

func (ch *eventChannel) Next() (rdma.Event, error) {
	ch.nextMu.Lock()
	defer ch.nextMu.Unlock()
	for {
		var raw C.struct_iserd_cm_event
		token := ch.p.tokens.Add(1) // for the identifier that a connect request brings
		var rc C.int
		err := ch.conn.Read(func(uintptr) bool {
			ch.fetchMu.Lock()
			rc = C.iserd_cm_event(ch.c, C.uint64_t(token), &raw)
			ch.fetchMu.Unlock()
			return rc != -C.EAGAIN
		})
		switch {
		case err != nil && (errors.Is(err, os.ErrClosed) || ch.isClosed()):
			return rdma.Event{}, rdma.ErrClosed
		case err != nil:
			return rdma.Event{}, fmt.Errorf("wait for connection events: %w", err)
		case rc == -C.EINTR:
			continue
		case rc == -C.EBADF, rc == -C.EFAULT, rc == -C.EIO:
			return rdma.Event{}, opError("rdma_get_cm_event", rc)
		case rc != 0:
			// librdmacm could not digest one event, for example a connect request on a device that it cannot open. The
			// next one is another matter.
			ch.p.opts.Trace.warn("verbs: connection event lost: %w", opError("rdma_get_cm_event", rc))
			continue
		}
		ch.p.cm.events.Add(1)
		if ev, ok := ch.convert(&raw); ok {
			return ev, nil
		}
	}
}

func (ch *eventChannel) isClosed() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.closed
}

var eventTypes = map[uint32]rdma.EventType{
	C.RDMA_CM_EVENT_ADDR_RESOLVED: rdma.EventAddrResolved, C.RDMA_CM_EVENT_ADDR_ERROR: rdma.EventAddrError,
	C.RDMA_CM_EVENT_ROUTE_RESOLVED: rdma.EventRouteResolved, C.RDMA_CM_EVENT_ROUTE_ERROR: rdma.EventRouteError,
	C.RDMA_CM_EVENT_CONNECT_REQUEST: rdma.EventConnectRequest, C.RDMA_CM_EVENT_CONNECT_RESPONSE: rdma.EventConnectResponse,
	C.RDMA_CM_EVENT_CONNECT_ERROR: rdma.EventConnectError, C.RDMA_CM_EVENT_UNREACHABLE: rdma.EventUnreachable,
	C.RDMA_CM_EVENT_REJECTED: rdma.EventRejected, C.RDMA_CM_EVENT_ESTABLISHED: rdma.EventEstablished,
	C.RDMA_CM_EVENT_DISCONNECTED: rdma.EventDisconnected, C.RDMA_CM_EVENT_DEVICE_REMOVAL: rdma.EventDeviceRemoval,
	C.RDMA_CM_EVENT_ADDR_CHANGE: rdma.EventAddrChange, C.RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma.EventTimewaitExit,
}

// convert is false for events that nobody shall see.
func (ch *eventChannel) convert(raw *C.struct_iserd_cm_event) (rdma.Event, bool) {
	typ := eventTypes[uint32(raw._type)]
	ev := rdma.Event{Type: typ, Status: int(raw.status), Param: rdma.ConnParam{
		ResponderResources: uint8(raw.responder_resources), InitiatorDepth: uint8(raw.initiator_depth),
		RetryCount: uint8(raw.retry_count), RNRRetryCount: uint8(raw.rnr_retry_count),
		FlowControl: raw.flow_control != 0, QPNum: uint32(raw.qp_num),
	}}
	if n := int(raw.private_len); n > 0 {
		ev.Param.PrivateData = C.GoBytes(unsafe.Pointer(&raw.private_data[0]), C.int(n))
	}
	if typ == rdma.EventConnectRequest {
		return ch.connectRequest(raw, ev)
	}
	ch.mu.Lock()
	c, l := ch.conns[uint64(raw.token)], ch.listeners[uint64(raw.token)]
	var dev *device
	if c != nil {
		dev = c.dev
	}
	ch.mu.Unlock()
	switch {
	case c == nil && l == nil, typ == rdma.EventNone:
		ch.p.cm.dropped.Add(1)
		return ev, false
	case l != nil:
		ev.Listener = l
		if d, ok := l.Device().(*device); ok && typ == rdma.EventDeviceRemoval {
			d.markRemoved()
		}
		return ev, true
	}
	ev.Conn = c
	switch typ {
	case rdma.EventAddrResolved, rdma.EventAddrError, rdma.EventRouteResolved, rdma.EventRouteError:
		if !c.resolved(typ, ev.Status) {
			ch.p.cm.dropped.Add(1)
		}
		return ev, false
	case rdma.EventEstablished:
		c.ready.Store(true)
	case rdma.EventDeviceRemoval:
		if dev != nil {
			dev.markRemoved()
		}
		c.resolved(typ, ev.Status)
	}
	return ev, true
}

func (ch *eventChannel) connectRequest(raw *C.struct_iserd_cm_event, ev rdma.Event) (rdma.Event, bool) {
	dev := ch.p.deviceOf(raw.id.verbs)
	c := &conn{ch: ch, id: raw.id, token: uint64(raw.token), dev: dev}
	c.readAddrs()
	ch.mu.Lock()
	l := ch.listeners[uint64(raw.listen_token)]
	ok := l != nil && dev != nil && !ch.closed
	if ok {
		ch.conns[c.token] = c
		ch.ids++
	}
	ch.mu.Unlock()
	if !ok {
		ch.p.cm.dropped.Add(1)
		// Destroying an identifier that was not accepted rejects it.
		C.iserd_cm_destroy(raw.id)
		return ev, false
	}
	c.addZones(l.Addr().Addr().Zone())
	ev.Conn, ev.Listener = c, l
	return ev, true
}

// newID makes an identifier. The caller puts it into a table before anything can happen to it.
func (ch *eventChannel) newID() (*C.struct_rdma_cm_id, uint64, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return nil, 0, rdma.ErrClosed
	}
	token := ch.p.tokens.Add(1)
	var id *C.struct_rdma_cm_id
	if err := opError("rdma_create_id", C.iserd_cm_id(ch.c, C.uint64_t(token), &id)); err != nil {
		return nil, 0, err
	}
	ch.ids++
	return id, token, nil
}

// destroy ends an identifier, and the channel with the last one if that was closed before.
func (ch *eventChannel) destroy(id *C.struct_rdma_cm_id, token uint64) error {
	ch.mu.Lock()
	delete(ch.conns, token)
	delete(ch.listeners, token)
	ch.mu.Unlock()
	rc := C.iserd_cm_destroy(id)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ids--
	ch.endLocked()
	return opError("rdma_destroy_id", rc)
}

func (ch *eventChannel) endLocked() {
	if ch.closed && ch.ids == 0 && ch.c != nil {
		C.rdma_destroy_event_channel(ch.c)
		ch.c = nil
		ch.p.channels.Add(-1)
	}
}

func (ch *eventChannel) Close() error {
	ch.mu.Lock()
	if ch.closed {
		ch.mu.Unlock()
		return nil
	}
	ch.closed = true
	close(ch.done)
	ch.mu.Unlock()
	_ = ch.file.Close() // Next returns
	ch.nextMu.Lock()
	defer ch.nextMu.Unlock()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.endLocked()
	return nil
}

type listener struct {
	ch    *eventChannel
	token uint64
	dev   *device // nil for a wildcard
	addr  netip.AddrPort
	mu    sync.Mutex
	id    *C.struct_rdma_cm_id // nil when closed
}

func (ch *eventChannel) Listen(addr netip.AddrPort, backlog int) (rdma.Listener, error) {
	sa, ok := encodeSockaddr(addr)
	if !ok {
		return nil, &rdma.OpError{Op: "rdma_bind_addr", Errno: syscall.EINVAL, Hint: "not an address: " + addr.String()}
	}
	if backlog <= 0 {
		backlog = 1024 // the kernel's own ceiling, /proc/sys/net/rdma_ucm/max_backlog
	}
	id, token, err := ch.newID()
	if err != nil {
		return nil, err
	}
	l := &listener{ch: ch, id: id, token: token}
	if err := l.listen(addr, &sa, backlog); err != nil {
		_ = ch.destroy(id, token)
		return nil, err
	}
	return l, nil
}

func (l *listener) listen(addr netip.AddrPort, sa *sockaddr, backlog int) error {
	if ip := addr.Addr(); ip.Is6() && !ip.Is4In6() {
		// Else [::] takes the port of 0.0.0.0 too.
		if err := opError("rdma_set_option(AFONLY)", C.iserd_cm_option(l.id, C.RDMA_OPTION_ID_AFONLY)); err != nil {
			return err
		}
	}
	// A port whose connections are in time wait can be bound again. Two listeners on one port stay refused.
	if err := opError("rdma_set_option(REUSEADDR)", C.iserd_cm_option(l.id, C.RDMA_OPTION_ID_REUSEADDR)); err != nil {
		return err
	}
	// In the table before it listens: its first request may come before the call is back.
	l.ch.mu.Lock()
	l.ch.listeners[l.token] = l
	l.ch.mu.Unlock()
	if err := bindError(opError("rdma_bind_addr", C.iserd_cm_bind(l.id, unsafe.Pointer(sa))), addr); err != nil {
		return err
	}
	// All that Addr and Device say is known now, save by an event that comes first.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dev = l.ch.p.deviceOf(l.id.verbs)
	l.addr = localAddr(l.id)
	return bindError(opError("rdma_listen", C.iserd_cm_listen(l.id, C.int(backlog))), addr)
}

func bindError(err error, addr netip.AddrPort) error {
	var op *rdma.OpError
	if !errors.As(err, &op) {
		return err
	}
	switch op.Errno {
	case syscall.EADDRINUSE:
		op.Hint = fmt.Sprintf("another program, or another listener of this one, has %s", addr)
	case syscall.EADDRNOTAVAIL:
		op.Hint = fmt.Sprintf("%s is not an address of this machine", addr.Addr())
	case syscall.ENODEV:
		op.Hint = fmt.Sprintf("no RDMA device carries %s", addr.Addr())
	}
	return op
}

func (l *listener) Addr() netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

func (l *listener) Device() rdma.Device {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dev == nil {
		return nil
	}
	return l.dev
}

func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == nil {
		return nil
	}
	id := l.id
	l.id = nil
	return l.ch.destroy(id, l.token)
}

// resolveStep is the time that each of the two steps of Resolve gets when the context allows it.
const resolveStep = 5 * time.Second

func (ch *eventChannel) Resolve(ctx context.Context, local, remote netip.AddrPort) (rdma.Conn, error) {
	dst, ok := encodeSockaddr(remote)
	if !ok {
		return nil, &rdma.OpError{Op: "rdma_resolve_addr", Errno: syscall.EINVAL, Hint: "not an address: " + remote.String()}
	}
	var src *sockaddr
	if local.Addr().IsValid() {
		sa, ok := encodeSockaddr(local)
		if !ok {
			return nil, &rdma.OpError{Op: "rdma_resolve_addr", Errno: syscall.EINVAL, Hint: "not an address: " + local.String()}
		}
		src = &sa
	}
	id, token, err := ch.newID()
	if err != nil {
		return nil, err
	}
	c := &conn{ch: ch, id: id, token: token, steps: make(chan resolveResult, 4)}
	ch.mu.Lock()
	ch.conns[token] = c
	ch.mu.Unlock()
	if err := c.resolve(ctx, src, &dst); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("resolve %s: %w", remote, err)
	}
	return c, nil
}
