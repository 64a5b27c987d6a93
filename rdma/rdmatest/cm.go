package rdmatest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"iserd/rdma"
)

// eventChannel implements [rdma.EventChannel].
type eventChannel struct {
	p      *Provider
	cond   *sync.Cond // on the fabric's lock
	queue  []rdma.Event
	closed bool
	ids    int
}

func newEventChannel(p *Provider) *eventChannel {
	ch := &eventChannel{p: p, cond: sync.NewCond(&p.f.mu)}
	p.channels++
	p.f.open[ch] = struct{}{}
	return ch
}

func (ch *eventChannel) describe() string {
	return fmt.Sprintf("event channel with %d identifiers", ch.ids)
}

func (ch *eventChannel) Next() (rdma.Event, error) {
	f := ch.p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if ch.closed {
			return rdma.Event{}, rdma.ErrClosed
		}
		if len(ch.queue) > 0 {
			ev := ch.queue[0]
			ch.queue[0] = rdma.Event{}
			ch.queue = ch.queue[1:]
			if ev.Type == rdma.EventConnectRequest {
				ev.Listener.(*listener).pending--
			}
			return ev, nil
		}
		ch.cond.Wait()
	}
}

func (ch *eventChannel) Close() error {
	f := ch.p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if ch.closed {
		return nil
	}
	ch.closed = true
	ch.dropEvents(func(rdma.Event) bool { return true })
	ch.cond.Broadcast()
	ch.released()
	return nil
}

// released ends the channel's life once it is closed and has no identifiers.
func (ch *eventChannel) released() {
	if ch.closed && ch.ids == 0 {
		if _, ok := ch.p.f.open[ch]; ok {
			delete(ch.p.f.open, ch)
			ch.p.channels--
		}
	}
}

// emit sends an event on its way, past the fault hook.
func (ch *eventChannel) emit(ev rdma.Event, c *Conn) {
	f := ch.p.f
	n := f.events
	f.events++
	if f.faults.Event == nil {
		ch.enqueue(ev)
		return
	}
	info := EventInfo{Type: ev.Type, Listener: c == nil, N: n}
	if c != nil {
		info.Passive = c.passive
		if c.dev != nil {
			info.Device = c.dev.cfg.Name
		}
		if c.qp != nil {
			info.QPNum = c.qp.num
		}
	} else if l, ok := ev.Listener.(*listener); ok && l.dev != nil {
		info.Device = l.dev.cfg.Name
	}
	a := f.faults.Event(info)
	switch {
	case a.Drop:
		if ev.Type == rdma.EventConnectRequest { // nobody will ever know of it
			ev.Listener.(*listener).pending--
			c.forget()
		}
	case a.Delay == Held:
		f.heldEvents = append(f.heldEvents, heldEvent{ch, ev})
	case a.Delay > 0:
		f.after(a.Delay, func() { ch.enqueue(ev) })
	default:
		ch.enqueue(ev)
	}
	if a.Again > 0 {
		f.after(max(a.Delay, 0)+a.Again, func() { ch.enqueue(ev) })
	}
}

// enqueue delivers an event, unless it is for something closed.
func (ch *eventChannel) enqueue(ev rdma.Event) {
	c, _ := ev.Conn.(*Conn)
	l, _ := ev.Listener.(*listener)
	if ch.closed || c != nil && c.closed || l != nil && l.closed {
		if ev.Type == rdma.EventConnectRequest && !c.closed {
			l.pending--
			c.close()
		}
		return
	}
	if ev.Type == rdma.EventEstablished && c != nil {
		if c.toldEstablished && c.notified {
			return // told by NotifyEstablished
		}
		c.established, c.toldEstablished = true, true
	}
	d := ch.p.devices
	if c != nil && c.dev != nil {
		c.dev.stats.events.Add(1)
	} else if len(d) > 0 {
		d[0].stats.events.Add(1)
	}
	ch.queue = append(ch.queue, ev)
	ch.cond.Signal()
}

// dropEvents forgets queued events; connect requests among them are rejected.
func (ch *eventChannel) dropEvents(which func(rdma.Event) bool) {
	var requests []*Conn
	ch.queue = slices.DeleteFunc(ch.queue, func(ev rdma.Event) bool {
		if !which(ev) {
			return false
		}
		if ev.Type == rdma.EventConnectRequest {
			ev.Listener.(*listener).pending--
			requests = append(requests, ev.Conn.(*Conn))
		}
		return true
	})
	for _, c := range requests {
		c.close()
	}
}

// listener implements [rdma.Listener].
type listener struct {
	ch      *eventChannel
	dev     *Device // nil for a wildcard
	addr    netip.AddrPort
	backlog int
	pending int // connect requests that nobody fetched yet
	dead    bool
	closed  bool
}

func (l *listener) describe() string     { return "listener on " + l.addr.String() }
func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Device() rdma.Device {
	if l.dev == nil {
		return nil
	}
	return l.dev
}

func (ch *eventChannel) Listen(addr netip.AddrPort, backlog int) (rdma.Listener, error) {
	f := ch.p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if ch.closed || ch.p.closed {
		return nil, rdma.ErrClosed
	}
	if !addr.Addr().IsValid() {
		return nil, invalid("rdma_bind_addr", "not an address: "+addr.String())
	}
	if backlog <= 0 {
		backlog = 1024
	}
	ip := addr.Addr().Unmap()
	l := &listener{ch: ch, backlog: backlog}
	if !ip.IsUnspecified() {
		if l.dev = ch.p.deviceAt(ip); l.dev == nil {
			if ip.Zone() != "" {
				return nil, invalid("rdma_bind_addr", "no such zone: "+addr.String())
			}
			return nil, &rdma.OpError{Op: "rdma_bind_addr", Errno: syscall.EADDRNOTAVAIL, Hint: ip.String() + " is not an address of this machine"}
		}
	}
	if err := f.verb(l.dev, "Listen"); err != nil {
		return nil, err
	}
	port := addr.Port()
	for port == 0 {
		try := f.nextPort
		if f.nextPort++; f.nextPort == 0 {
			f.nextPort = 49152
		}
		if ch.p.portUser(ip, try) == nil {
			port = try
		}
	}
	if u := ch.p.portUser(ip, port); u != nil {
		return nil, &rdma.OpError{Op: "rdma_bind_addr", Errno: syscall.EADDRINUSE, Hint: "a listener has " + u.addr.String()}
	}
	l.addr = netip.AddrPortFrom(ip, port)
	ch.ids++
	f.listeners[l] = struct{}{}
	f.open[l] = struct{}{}
	return l, nil
}

// portUser is a listener of the machine that an address and port would collide with. The families are apart.
func (p *Provider) portUser(ip netip.Addr, port uint16) *listener {
	for l := range p.f.listeners {
		if a := l.addr.Addr(); l.ch.p == p && l.addr.Port() == port && a.Is4() == ip.Is4() && (a == ip || a.IsUnspecified() || ip.IsUnspecified()) {
			return l
		}
	}
	return nil
}

// listenerAt is the listener that a connect request to an address goes to.
func (p *Provider) listenerAt(at netip.AddrPort) *listener {
	for l := range p.f.listeners {
		a := l.addr.Addr()
		if l.ch.p == p && !l.dead && !l.ch.closed && l.addr.Port() == at.Port() && a.Is4() == at.Addr().Is4() && (a == at.Addr() || a.IsUnspecified()) {
			return l
		}
	}
	return nil
}

func (l *listener) Close() error {
	f := l.ch.p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	delete(f.listeners, l)
	delete(f.open, l)
	l.ch.dropEvents(func(ev rdma.Event) bool { return ev.Listener == rdma.Listener(l) })
	l.ch.ids--
	l.ch.released()
	return nil
}

func (ch *eventChannel) Resolve(ctx context.Context, local, remote netip.AddrPort) (rdma.Conn, error) {
	f := ch.p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if ch.closed || ch.p.closed {
		return nil, rdma.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	const op = "rdma_resolve_addr"
	if !remote.Addr().IsValid() {
		return nil, invalid(op, "not an address: "+remote.String())
	}
	to := netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	var dev *Device
	from := local.Addr().Unmap()
	if local.Addr().IsValid() && !from.IsUnspecified() {
		if dev = ch.p.deviceAt(from); dev == nil {
			return nil, &rdma.OpError{Op: op, Errno: syscall.EADDRNOTAVAIL, Hint: from.String()}
		}
	} else {
		dev, from = ch.p.deviceFor(to.Addr())
		if dev == nil {
			return nil, &rdma.OpError{Op: op, Errno: syscall.ENODEV, Hint: "no device for " + to.String()}
		}
	}
	if f.deviceAt(to.Addr()) == nil || f.down {
		return nil, &rdma.OpError{Op: op, Errno: syscall.EHOSTUNREACH, Hint: to.String()}
	}
	if err := f.verb(dev, "Resolve"); err != nil {
		return nil, err
	}
	port := local.Port()
	if port == 0 {
		port = uint16(32768 + f.nextConn%16384)
	}
	c := f.newConn(ch, dev)
	c.local, c.remote = netip.AddrPortFrom(from, port), to
	return c, nil
}

// deviceFor picks the device and its address to reach another address from: itself, else the first of the family.
func (p *Provider) deviceFor(to netip.Addr) (*Device, netip.Addr) {
	if d := p.deviceAt(to); d != nil {
		return d, to
	}
	for _, d := range p.devices {
		if d.removed.Load() {
			continue
		}
		for _, a := range d.cfg.Addrs {
			if a.Is4() == to.Is4() {
				return d, a
			}
		}
	}
	return nil, netip.Addr{}
}

func (f *Fabric) newConn(ch *eventChannel, d *Device) *Conn {
	c := &Conn{f: f, ch: ch, dev: d, number: f.nextConn}
	f.nextConn++
	ch.ids++
	f.conns[c] = struct{}{}
	f.open[c] = struct{}{}
	return c
}
