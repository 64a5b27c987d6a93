package rdmatest

import (
	"fmt"
	"net/netip"
	"syscall"

	"iserd/rdma"
)

type connState uint8

const (
	connIdle      connState = iota
	connRequested           // passive: the request waits for an answer
	connAsking              // active: the request is out
	connUp                  // accepted
	connDone                // rejected, disconnected on both sides, or failed
)

// Reasons for a rejection, as librdmacm reports them in the event's status.
const (
	rejTimeout          = 4
	rejInvalidServiceID = 8
	rejConsumer         = 28
)

// Conn is a connection identifier. It implements [rdma.Conn].
type Conn struct {
	f               *Fabric
	ch              *eventChannel
	dev             *Device
	number          int
	local, remote   netip.AddrPort
	state           connState
	passive         bool
	peer            *Conn // while there is one
	qp              *qp
	param           rdma.ConnParam // active: what was asked; passive: what the request said, from its own side
	established     bool           // this side knows
	toldEstablished bool           // its event was delivered
	notified        bool           // by NotifyEstablished
	dreqSent        bool           // we asked for the end
	dreqSeen        bool           // the peer did
	disconnected    bool           // the event was sent
	closed          bool
}

func (c *Conn) describe() string {
	return fmt.Sprintf("connection %d of %s, %s to %s", c.number, c.dev.cfg.Name, c.local, c.remote)
}

// Device implements [rdma.Conn].
func (c *Conn) Device() rdma.Device { return c.dev }

// LocalAddr implements [rdma.Conn].
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr implements [rdma.Conn].
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// check refuses calls on a closed connection.
func (c *Conn) check(op string) error {
	if c.closed {
		return rdma.ErrClosed
	}
	return c.dev.check(op)
}

// CreateQP implements [rdma.Conn].
func (c *Conn) CreateQP(p rdma.PD, cfg rdma.QPConfig) (rdma.QP, error) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.check("CreateQP"); err != nil {
		return nil, err
	}
	if c.qp != nil {
		return nil, &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EEXIST}
	}
	own, ok := p.(*pd)
	if !ok {
		return nil, invalid("rdma_create_qp", "a protection domain of another provider")
	}
	q, err := newQP(c, own, cfg)
	if err != nil {
		return nil, err
	}
	c.qp = q
	return q, nil
}

// private checks private data and pads it as the transport does.
func (c *Conn) private(b []byte, limit int) ([]byte, error) {
	if c.f.cfg.IWARP {
		if len(b) > privateIWARP {
			return nil, tooBig("bytes of private data", len(b), privateIWARP)
		}
		return append([]byte(nil), b...), nil
	}
	if len(b) > limit {
		return nil, tooBig("bytes of private data", len(b), limit)
	}
	out := make([]byte, limit)
	copy(out, b)
	return out, nil
}

// checkParam refuses what the device cannot do.
func (c *Conn) checkParam(p *rdma.ConnParam) error {
	a := c.dev.attr
	for _, l := range []struct {
		what  string
		n     uint8
		limit int
	}{
		{"responder resources", p.ResponderResources, a.MaxQPRDAtom}, {"initiator depth", p.InitiatorDepth, a.MaxQPInitRDAtom},
		{"retry count", p.RetryCount, 7}, {"RNR retry count", p.RNRRetryCount, 7},
	} {
		if int(l.n) > l.limit {
			return tooBig(l.what, int(l.n), l.limit)
		}
	}
	return nil
}

// Connect implements [rdma.Conn].
func (c *Conn) Connect(p rdma.ConnParam) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.check("Connect"); err != nil {
		return err
	}
	if c.qp == nil || c.passive || c.state != connIdle {
		return invalid("rdma_connect", "no queue pair, or not a connection that can be asked for")
	}
	if err := c.checkParam(&p); err != nil {
		return err
	}
	data, err := c.private(p.PrivateData, reqPrivate)
	if err != nil {
		return err
	}
	p.PrivateData = data
	c.param, c.state = p, connAsking
	d := c.f.deviceAt(c.remote.Addr())
	if d == nil || !c.f.linked(c.dev, d) {
		c.giveUpLater()
		return nil
	}
	l := d.p.listenerAt(c.remote)
	switch {
	case l == nil:
		c.rejected(rejInvalidServiceID, nil)
		return nil
	case l.pending >= l.backlog:
		c.rejected(rejConsumer, nil)
		return nil
	}
	r := c.f.newConn(l.ch, d)
	r.local, r.remote = netip.AddrPortFrom(c.remote.Addr(), c.remote.Port()), c.local
	r.passive, r.state, r.peer, c.peer = true, connRequested, c, r
	r.param = rdma.ConnParam{PrivateData: data, ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, FlowControl: p.FlowControl, QPNum: c.qp.num}
	l.pending++
	r.ch.emit(rdma.Event{Type: rdma.EventConnectRequest, Listener: l, Conn: r, Param: r.copyParam()}, r)
	c.giveUpIfUnanswered()
	return nil
}

// copyParam is what an event says; its private data is the receiver's to keep.
func (c *Conn) copyParam() rdma.ConnParam {
	p := c.param
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	return p
}

// giveUpLater is the end of a request that nobody gets.
func (c *Conn) giveUpLater() {
	c.f.after(c.f.cfg.CMTimeout, func() {
		if c.state == connAsking && !c.closed {
			c.state = connDone
			c.ch.emit(rdma.Event{Type: rdma.EventUnreachable, Conn: c, Status: -int(syscall.ETIMEDOUT)}, c)
		}
	})
}

// giveUpIfUnanswered is the end of a request that somebody got and does not answer: far longer, as the connection
// manager repeats it.
func (c *Conn) giveUpIfUnanswered() {
	c.f.after(20*c.f.cfg.CMTimeout, func() {
		if c.state == connAsking && !c.closed {
			c.state = connDone
			if r := c.peer; r != nil && r.state == connRequested {
				r.rejected(rejTimeout, nil)
			}
			c.ch.emit(rdma.Event{Type: rdma.EventUnreachable, Conn: c, Status: -int(syscall.ETIMEDOUT)}, c)
		}
	})
}

// rejected ends a connection that waited for an answer.
func (c *Conn) rejected(reason int, data []byte) {
	c.state = connDone
	if data == nil && !c.f.cfg.IWARP {
		data = make([]byte, rejPrivate)
	}
	c.ch.emit(rdma.Event{Type: rdma.EventRejected, Conn: c, Status: reason, Param: rdma.ConnParam{PrivateData: data}}, c)
}

// Reject implements [rdma.Conn].
func (c *Conn) Reject(data []byte) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.check("Reject"); err != nil {
		return err
	}
	if c.state != connRequested {
		return invalid("rdma_reject", "no request to refuse")
	}
	padded, err := c.private(data, rejPrivate)
	if err != nil {
		return err
	}
	c.state = connDone
	if c.reachable() && c.peer.state == connAsking {
		c.peer.rejected(rejConsumer, padded)
	}
	return nil
}

// reachable tells whether a message to the peer's identifier arrives.
func (c *Conn) reachable() bool {
	return c.peer != nil && !c.peer.closed && c.f.linked(c.dev, c.peer.dev)
}

// Accept implements [rdma.Conn].
func (c *Conn) Accept(p rdma.ConnParam) error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.check("Accept"); err != nil {
		return err
	}
	if c.qp == nil || c.state != connRequested {
		return invalid("rdma_accept", "no queue pair, or no request to accept")
	}
	if err := c.checkParam(&p); err != nil {
		return err
	}
	data, err := c.private(p.PrivateData, repPrivate)
	if err != nil {
		return err
	}
	a := c.peer
	c.state = connUp
	// Retry counts of the passive side are the request's; the answer programs the RNR retries of the active side.
	c.qp.ready(nil, p.InitiatorDepth, p.ResponderResources, c.param.RNRRetryCount)
	if !c.reachable() || a.state != connAsking || a.qp == nil {
		c.f.after(c.f.cfg.CMTimeout, func() {
			if !c.closed && c.state == connUp && !c.established {
				c.state = connDone
				c.ch.emit(rdma.Event{Type: rdma.EventUnreachable, Conn: c, Status: -int(syscall.ETIMEDOUT)}, c)
			}
		})
		return nil
	}
	a.state = connUp
	a.qp.ready(c.qp, p.ResponderResources, p.InitiatorDepth, p.RNRRetryCount)
	c.qp.peer = a.qp
	a.ch.emit(rdma.Event{Type: rdma.EventEstablished, Conn: a, Param: rdma.ConnParam{PrivateData: data,
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources, RNRRetryCount: p.RNRRetryCount,
		FlowControl: p.FlowControl, QPNum: c.qp.num}}, a)
	c.ch.emit(rdma.Event{Type: rdma.EventEstablished, Conn: c}, c)
	return nil
}

// ready moves a queue pair to RTS.
func (q *qp) ready(peer *qp, reads, destReads, rnrRetry uint8) {
	q.maxRD, q.maxDestRD, q.rnrRetry = int(reads), int(destReads), rnrRetry
	q.peer = peer
	if q.state == qpInit {
		q.state = qpReady
	}
}

// Disconnect implements [rdma.Conn].
func (c *Conn) Disconnect() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.closed || c.dev.removed.Load() {
		return nil
	}
	if err := c.f.verb(c.dev, "Disconnect"); err != nil {
		return err
	}
	c.disconnect()
	return nil
}

func (c *Conn) disconnect() {
	if c.qp != nil {
		c.qp.enterError()
	}
	if c.state != connUp || c.dreqSent {
		return
	}
	c.dreqSent = true
	if c.dreqSeen { // this is the answer
		c.end()
		if c.reachable() {
			c.peer.end()
		}
		return
	}
	if p := c.peer; c.reachable() && p.state == connUp {
		p.dreqSeen = true
		if p.dreqSent { // both asked at once
			p.end()
			c.end()
			return
		}
		p.tellDisconnected(0)
		if c.f.cfg.IWARP && p.qp != nil {
			p.qp.enterError()
		}
	}
	// The peer may never answer.
	c.f.after(c.f.cfg.CMTimeout, func() {
		if c.state == connUp {
			c.end()
		}
	})
}

func (c *Conn) tellDisconnected(status int) {
	if c.disconnected {
		return
	}
	c.disconnected = true
	c.ch.emit(rdma.Event{Type: rdma.EventDisconnected, Conn: c, Status: status}, c)
}

// end is the end of the connection as this side's connection manager sees it.
func (c *Conn) end() {
	if c.state != connUp {
		return
	}
	c.state = connDone
	c.tellDisconnected(0)
	c.f.after(c.f.cfg.Timewait, func() {
		if !c.closed {
			c.ch.emit(rdma.Event{Type: rdma.EventTimewaitExit, Conn: c}, c)
		}
	})
}

// NotifyEstablished implements [rdma.Conn].
func (c *Conn) NotifyEstablished() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if err := c.check("NotifyEstablished"); err != nil {
		return err
	}
	if c.state != connUp || c.established {
		return nil
	}
	c.ch.enqueue(rdma.Event{Type: rdma.EventEstablished, Conn: c})
	c.notified = true
	return nil
}

// Close implements [rdma.Conn].
func (c *Conn) Close() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.qp != nil {
		return busy("rdma_destroy_id", "queue pair", 1)
	}
	c.close()
	return nil
}

// close ends an identifier in whatever state it is.
func (c *Conn) close() {
	switch c.state {
	case connRequested:
		if c.reachable() && c.peer.state == connAsking {
			c.peer.rejected(rejConsumer, nil)
		}
	case connAsking:
		if c.reachable() && c.peer.state == connRequested {
			c.peer.rejected(rejTimeout, nil)
		}
	case connUp:
		c.disconnected = true // nobody to tell
		c.disconnect()
	}
	c.forget()
	c.ch.dropEvents(func(ev rdma.Event) bool { return ev.Conn == rdma.Conn(c) && ev.Type != rdma.EventConnectRequest })
}

// forget takes the identifier out of every table.
func (c *Conn) forget() {
	c.state, c.closed = connDone, true
	delete(c.f.conns, c)
	delete(c.f.open, c)
	c.ch.ids--
	c.ch.released()
}
