package iser

import (
	"errors"
	"fmt"
	"time"

	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/rdma"
)

// rnrTimer is the code of the delay that our RNR NAKs ask for: 0.64 ms. The connection manager leaves 0, which means
// 655 ms.
const rnrTimer = 12

// handleEvents is the goroutine that reads the connection manager's events. They may come in any order: whatever an
// event says, a connection only ever moves towards its end, and what it does not fit is ignored.
func (s *Server) handleEvents() {
	for {
		ev, err := s.channel.Next()
		if err != nil {
			if errors.Is(err, rdma.ErrClosed) {
				return
			}
			select {
			case <-s.quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		s.handleEvent(&ev)
	}
}

func (s *Server) handleEvent(ev *rdma.Event) {
	if ev.Type == rdma.EventConnectRequest {
		s.connectRequest(ev)
		return
	}
	if ev.Conn == nil {
		if ev.Listener != nil {
			s.listenerEvent(ev)
		}
		return
	}
	c := s.connOf(ev.Conn)
	if c == nil {
		return // closed meanwhile
	}
	switch ev.Type {
	case rdma.EventEstablished:
		c.s.locked(func() {
			if !c.established && c.phase < phaseDraining {
				c.nowEstablished()
			}
		})
	case rdma.EventDisconnected, rdma.EventTimewaitExit:
		// A timewait exit is normally the end of what has ended already.
		c.s.locked(func() {
			c.disconnected = true
			c.fail(nil)
		})
		s.idDisconnected(ev.Conn)
	case rdma.EventDeviceRemoval:
		s.deviceLost(c.s.dev, errDeviceGone)
	case rdma.EventConnectError, rdma.EventUnreachable, rdma.EventRejected, rdma.EventAddrError, rdma.EventRouteError:
		c.s.locked(func() {
			c.disconnected = true
			c.fail(fmt.Errorf("iser: connection manager: %s (%d)", ev.Type, ev.Status))
		})
		s.idDisconnected(ev.Conn)
	case rdma.EventAddrChange:
		// The address moved to another port. The connection cannot follow; the initiator comes back by itself.
		c.s.locked(func() { c.fail(errAddrChange) })
	}
}

var errAddrChange = errors.New("iser: the address moved to another device or port")

// connectRequest takes a connection in, or refuses it.
func (s *Server) connectRequest(ev *rdma.Event) {
	id := ev.Conn
	if err := s.admit(ev); err != nil {
		_ = id.Reject(nil)
		remote := id.RemoteAddr()
		_ = id.Close()
		if f := s.cfg.Events.Refused; f != nil {
			f(remote, err)
		}
	}
}

// admit places the connection on the shard with the least load that has room.
func (s *Server) admit(ev *rdma.Event) error {
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return rdma.ErrClosed
	}
	d, err := s.find(ev.Conn.Device())
	if err != nil {
		return err
	}
	for _, sh := range d.place() {
		if err = sh.admit(ev); err == nil {
			return nil
		}
		sh.counters.refused.inc()
		if !errors.Is(err, errCQFull) && !errors.Is(err, errPoolEmpty) {
			return err
		}
	}
	return err
}

// admit makes the connection's objects, posts the login receive and accepts. The shard's lock is held throughout: the
// first request may come before accept has returned.
func (s *shard) admit(ev *rdma.Event) error {
	c := &conn{s: s, id: ev.Conn, remote: ev.Conn.RemoteAddr()}
	var err error
	s.locked(func() {
		if s.gone.Load() || s.stopping.Load() {
			err = errDeviceGone
			return
		}
		if err = c.open(ev); err != nil {
			c.undo()
		}
	})
	return err
}

// open does admit's work; what it made is undone by undo if it fails. From the moment that the engine knows of the
// connection there is no error any more, but the end of the connection.
func (c *conn) open(ev *rdma.Event) error {
	s := c.s
	d := s.dev
	if err := s.takeSlot(c); err != nil {
		return err
	}
	c.hasSlot = true
	size := receiveStride + largeSlots*largeSlot
	b, ok := s.getBuffer(size)
	if !ok {
		return fmt.Errorf("%w: %d bytes for a login", errPoolEmpty, size)
	}
	c.blocks = append(c.blocks, b)
	c.addReceives(b, 1)
	c.addSends(b.Bytes()[receiveStride:size], b.LKey(), largeSlots, largeSlot, true)
	if err := c.createQP(); err != nil {
		return err
	}
	c.invalidate = s.cfg.RemoteInvalidation == InvalidateAuto && peerInvalidates(ev.Param.PrivateData)
	// What the initiator answers at a time, seen from our side already. Some report nothing at all.
	depth := int(ev.Param.InitiatorDepth)
	if limit := d.attr.MaxQPInitRDAtom; limit > 0 {
		depth = min(depth, limit)
	}
	if s.cfg.ReadDepth > 0 {
		depth = min(depth, s.cfg.ReadDepth)
	}
	depth = max(depth, 1)
	// Responses and RDMA WRITEs keep at least half of the send queue.
	c.ord = max(min(depth, c.tx.capacity/2), 1)

	d.srv.idsMu.Lock()
	d.srv.ids[c.id] = c
	d.srv.idsMu.Unlock()
	s.load.Add(1)
	s.counters.connections.inc()
	s.counters.accepted.inc()
	info := iscsi.ConnInfo{Transport: login.TransportISER, Local: c.id.LocalAddr(), Remote: c.remote, Device: d.name}
	if ev.Listener != nil {
		info.Portal = ev.Listener.Addr()
	}
	c.eng = d.srv.newEngine(c, info)
	// Exactly one receive during login, posted before the initiator can know that we are there.
	c.repost(0)
	s.flush()
	if c.phase != phaseOpen {
		return nil
	}
	private := replyPrivateData(c.invalidate)
	err := c.id.Accept(rdma.ConnParam{
		PrivateData: private[:], InitiatorDepth: uint8(min(depth, 255)), RetryCount: 7,
		RNRRetryCount: 7, // infinite: it is the initiator's queue pair that this goes into
		FlowControl:   ev.Param.FlowControl,
	})
	if err != nil {
		c.fail(fmt.Errorf("accept: %w", err))
	}
	return nil
}

// undo gives back what open took.
func (c *conn) undo() {
	s := c.s
	if c.qp != nil {
		_ = c.qp.Close()
		s.counters.qps.dec()
	}
	s.releaseCQ(c.cqEntries)
	for _, b := range c.blocks {
		s.putBuffer(b)
	}
	if c.hasSlot {
		s.releaseSlot(c)
	}
	c.phase = phaseGone
}

// createQP makes the queue pair within the limits of the device. Devices may be able to do less than they say when
// requests are long: then it tries with half the send queue.
func (c *conn) createQP() error {
	s := c.s
	d := s.dev
	recv := s.cfg.RecvDepth + 2 // the login receive and the sentinel
	if d.attr.MaxQPWR > 0 {
		recv = min(recv, d.attr.MaxQPWR)
	}
	inline := s.cfg.Inline
	if d.attr.MaxInline > 0 {
		inline = min(inline, d.attr.MaxInline)
	}
	for send := int(d.sendDepth.Load()); ; send /= 2 {
		if err := s.reserveCQ(send + recv); err != nil {
			return err
		}
		qp, err := c.id.CreateQP(d.pd, rdma.QPConfig{
			SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: send, MaxRecvWR: recv, MaxSendSGE: d.writeSGE, MaxRecvSGE: 1, MaxInline: inline,
		})
		if err == nil {
			c.qp, c.cqEntries, c.caps = qp, send+recv, qp.Caps()
			// What was asked for counts, as the completion queue was reserved for it.
			c.caps.MaxSendWR, c.caps.MaxRecvWR = send, recv
			c.tx.setDepth(send)
			s.counters.qps.inc()
			d.sendDepth.Store(int32(send))
			return nil
		}
		s.releaseCQ(send + recv)
		if send/2 < min(minSendDepth, int(d.sendDepth.Load())) {
			return fmt.Errorf("queue pair of %d sends and %d receives: %w", send, recv, err)
		}
	}
}

// nowEstablished is called once the connection stands, by the event or by the first PDU.
func (c *conn) nowEstablished() {
	c.established = true
	if c.qp != nil {
		// A device that cannot change it is slower when an initiator overruns its window, and works.
		_ = c.qp.SetMinRNRTimer(rnrTimer)
	}
	if f := c.s.cfg.Events.Connected; f != nil {
		f(c.remote, c.s.dev.name)
	}
}

func (s *Server) connOf(id rdma.Conn) *conn {
	s.idsMu.Lock()
	defer s.idsMu.Unlock()
	return s.ids[id]
}

// closer is an identifier that waits to be closed.
type closer struct {
	id       rdma.Conn
	deadline time.Time // zero: at once
}

// disconnectWait is how long an identifier is kept for the peer's answer to our disconnect request, which the
// connection manager repeats as long as the identifier lives.
const disconnectWait = 3 * time.Second

// reap has the identifier of a drained connection closed, off the shard: closing may block. With answer set it waits
// for the peer's answer first.
func (s *Server) reap(id rdma.Conn, answer bool) {
	cl := closer{id: id}
	if answer {
		cl.deadline = time.Now().Add(disconnectWait)
	}
	s.idsMu.Lock()
	s.closers = append(s.closers, cl)
	s.idsMu.Unlock()
	s.pokeReaper()
}

func (s *Server) pokeReaper() {
	select {
	case s.reaped <- struct{}{}:
	default:
	}
}

// idDisconnected says that the peer has answered.
func (s *Server) idDisconnected(id rdma.Conn) {
	s.idsMu.Lock()
	for i := range s.closers {
		if s.closers[i].id == id {
			s.closers[i].deadline = time.Time{}
		}
	}
	s.idsMu.Unlock()
	s.pokeReaper()
}

// reaper closes identifiers.
func (s *Server) reaper() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		s.idsMu.Lock()
		now := time.Now()
		next := time.Hour
		var due []rdma.Conn
		kept := s.closers[:0]
		for _, cl := range s.closers {
			if left := cl.deadline.Sub(now); left > 0 {
				next = min(next, left)
				kept = append(kept, cl)
				continue
			}
			due = append(due, cl.id)
			delete(s.ids, cl.id)
		}
		clear(s.closers[len(kept):])
		s.closers = kept
		s.idsMu.Unlock()
		for _, id := range due {
			_ = id.Close()
		}
		if len(due) > 0 {
			s.connGone()
			continue
		}
		t.Reset(next)
		select {
		case <-s.quit:
			return
		case <-s.reaped:
		case <-t.C:
		}
	}
}

// closeIDs closes the identifiers that are left when the server ends.
func (s *Server) closeIDs() {
	s.idsMu.Lock()
	defer s.idsMu.Unlock()
	for _, cl := range s.closers {
		_ = cl.id.Close()
		delete(s.ids, cl.id)
	}
	s.closers = nil
}
