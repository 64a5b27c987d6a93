package softroce

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"iserd/rdma"
)

// eventChannel implements [rdma.EventChannel].
type eventChannel struct {
	prov *Provider
	dev  *device

	mu     sync.Mutex
	cond   *sync.Cond
	queue  []rdma.Event
	closed bool
	ids    int // listeners and connections
	gone   bool
}

func newEventChannel(p *Provider) *eventChannel {
	ch := &eventChannel{prov: p, dev: p.dev}
	ch.cond = sync.NewCond(&ch.mu)
	p.dev.open.events.Add(1)
	return ch
}

// emit delivers an event. It is false when the channel is closed.
func (ch *eventChannel) emit(ev rdma.Event) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return false
	}
	if ev.Type == rdma.EventConnectRequest {
		ch.ids++
	}
	ch.queue = append(ch.queue, ev)
	ch.cond.Signal()
	return true
}

// drop forgets the queued events of a connection.
func (ch *eventChannel) drop(x *conn) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.queue = slices.DeleteFunc(ch.queue, func(ev rdma.Event) bool { return ev.Conn == rdma.Conn(x) })
}

// take takes out the connect requests that nobody fetched, of one listener or (nil) of all.
func (ch *eventChannel) take(l *listener) []*conn {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var out []*conn
	ch.queue = slices.DeleteFunc(ch.queue, func(ev rdma.Event) bool {
		if ev.Type != rdma.EventConnectRequest || l != nil && ev.Listener != rdma.Listener(l) {
			return false
		}
		ev.Listener.(*listener).pending.Add(-1)
		out = append(out, ev.Conn.(*conn))
		return true
	})
	return out
}

// enter and leave count what the channel has made.
func (ch *eventChannel) enter() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return false
	}
	ch.ids++
	return true
}

func (ch *eventChannel) leave() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ids--
	ch.released()
}

// released ends the channel's life once it is closed and has no identifiers. mu is held.
func (ch *eventChannel) released() {
	if ch.closed && ch.ids == 0 && !ch.gone {
		ch.gone = true
		ch.dev.open.events.Add(-1)
	}
}

// Next implements [rdma.EventChannel].
func (ch *eventChannel) Next() (rdma.Event, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for {
		if ch.closed {
			return rdma.Event{}, rdma.ErrClosed
		}
		if len(ch.queue) > 0 {
			ev := ch.queue[0]
			ch.queue[0] = rdma.Event{}
			ch.queue = ch.queue[1:]
			if ev.Type == rdma.EventConnectRequest {
				ev.Listener.(*listener).pending.Add(-1)
			}
			return ev, nil
		}
		ch.cond.Wait()
	}
}

// Close implements [rdma.EventChannel]. Requests that nobody fetched are rejected.
func (ch *eventChannel) Close() error {
	ch.mu.Lock()
	was := ch.closed
	ch.closed = true
	ch.cond.Broadcast()
	ch.released()
	ch.mu.Unlock()
	if !was {
		ch.rejectAll(nil)
	}
	return nil
}

func (ch *eventChannel) rejectAll(l *listener) {
	for _, x := range ch.take(l) {
		x.cm.mu.Lock()
		if !x.closed {
			x.close()
		}
		x.cm.mu.Unlock()
	}
}

// listener implements [rdma.Listener].
type listener struct {
	ch      *eventChannel
	addr    netip.AddrPort
	backlog int
	pending atomic.Int32 // connect requests that nobody fetched yet
	closed  bool         // guarded by cm.mu
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Device() rdma.Device {
	if l.addr.Addr().IsUnspecified() {
		return nil
	}
	return l.ch.dev
}

// Listen implements [rdma.EventChannel].
func (ch *eventChannel) Listen(addr netip.AddrPort, backlog int) (rdma.Listener, error) {
	const op = "rdma_bind_addr"
	ip := addr.Addr().Unmap()
	switch {
	case ch.isClosed():
		return nil, rdma.ErrClosed
	case !ip.IsValid():
		return nil, invalid(op, "not an address: "+addr.String())
	case ip.IsLinkLocalUnicast() && ip.Is6():
		return nil, invalid(op, "link-local addresses are not served: "+addr.String())
	}
	if backlog <= 0 {
		backlog = 1024
	}
	l := &listener{ch: ch, backlog: backlog}
	c := &ch.dev.cm
	c.mu.Lock()
	defer c.mu.Unlock()
	port := addr.Port()
	for n := 0; port == 0; n++ {
		if n > 1<<16 {
			return nil, &rdma.OpError{Op: op, Errno: syscall.EADDRINUSE, Hint: "every port is taken"}
		}
		if c.nextPort++; c.nextPort >= 32768 && c.portUser(ip, c.nextPort) == nil {
			port = c.nextPort
		}
	}
	if u := c.portUser(ip, port); u != nil {
		return nil, &rdma.OpError{Op: op, Errno: syscall.EADDRINUSE, Hint: "a listener has " + u.addr.String()}
	}
	l.addr = netip.AddrPortFrom(ip, port)
	if err := l.bind(); err != nil {
		return nil, err
	}
	if !ch.enter() {
		return nil, rdma.ErrClosed
	}
	c.listeners[l] = struct{}{}
	ch.dev.open.listeners.Add(1)
	return l, nil
}

// bind opens the sockets of the listener's address, or of every address of its family. Of those it takes what it gets:
// the others belong to other programs.
func (l *listener) bind() error {
	d, ip := l.ch.dev, l.addr.Addr()
	if !ip.IsUnspecified() {
		if !l.ch.prov.allowed(ip) {
			return &rdma.OpError{Op: "rdma_bind_addr", Errno: syscall.EADDRNOTAVAIL, Hint: ip.String() + " is not an address that softroce may use here"}
		}
		_, err := d.socketAt(ip)
		return err
	}
	var last error
	bound := 0
	for _, a := range l.ch.prov.addrs() {
		if a.addr.Is4() != ip.Is4() {
			continue
		}
		if _, err := d.socketAt(a.addr); err != nil {
			last = err
			d.warn("softroce: not listening on " + a.addr.String() + ": " + err.Error())
			continue
		}
		bound++
	}
	if bound == 0 {
		return last // nil where the family has no address at all
	}
	return nil
}

// portUser is a listener that an address and port would collide with. The families are apart. mu is held.
func (c *cm) portUser(ip netip.Addr, port uint16) *listener {
	for l := range c.listeners {
		if a := l.addr.Addr(); l.addr.Port() == port && a.Is4() == ip.Is4() && (a == ip || a.IsUnspecified() || ip.IsUnspecified()) {
			return l
		}
	}
	return nil
}

func (ch *eventChannel) isClosed() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.closed || ch.dev.closed.Load()
}

// Close implements [rdma.Listener].
func (l *listener) Close() error {
	c := &l.ch.dev.cm
	c.mu.Lock()
	if l.closed {
		c.mu.Unlock()
		return nil
	}
	l.closed = true
	delete(c.listeners, l)
	c.mu.Unlock()
	l.ch.rejectAll(l)
	l.ch.leave()
	l.ch.dev.open.listeners.Add(-1)
	return nil
}

// Resolve implements [rdma.EventChannel].
func (ch *eventChannel) Resolve(ctx context.Context, local, remote netip.AddrPort) (rdma.Conn, error) {
	const op = "rdma_resolve_addr"
	to := netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	switch {
	case ch.isClosed():
		return nil, rdma.ErrClosed
	case !to.Addr().IsValid() || to.Addr().IsUnspecified() || to.Addr().IsMulticast():
		return nil, invalid(op, "not an address: "+remote.String())
	case to.Addr().IsLinkLocalUnicast() && to.Addr().Is6():
		return nil, invalid(op, "link-local addresses are not served: "+remote.String())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, mtu, err := ch.prov.route(local.Addr().Unmap(), to.Addr())
	if err != nil {
		return nil, err
	}
	c := &ch.dev.cm
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ch.enter() {
		return nil, rdma.ErrClosed
	}
	port := local.Port()
	if port == 0 {
		port = 32768 | uint16(randomKey())
	}
	x := c.newConn(ch, s, to.Addr())
	x.local, x.remote, x.mtu = netip.AddrPortFrom(s.addr, port), to, uint32(mtu)
	return x, nil
}
