package softroce

import (
	"net/netip"
	"sync"
	"syscall"
	"time"

	"iserd/rdma"
)

// cm is the connection manager of the device: it finds the connection that a message is for, and has the timers.
//
//	active:   idle -REQ-> asking -(REP) RTU-> up
//	passive:  (REQ) requested -REP-> answered -(RTU or data)-> up
//	end:      up -DREQ-> leaving -(DREP)-> timewait -> done
//	          up -(DREQ)-> left -DREP-> timewait -> done
//	anywhere before up: REJ -> done
type cm struct {
	dev *device

	mu        sync.Mutex
	byID      map[uint32]*conn // by our communication ID
	byPeer    map[peerKey]*conn
	listeners map[*listener]struct{}
	halfOpen  int
	perSource map[netip.Addr]int
	nextPort  uint16
	psn       uint32 // of datagrams
	msg       cmMessage
}

// peerKey finds a passive connection by what its peer calls it.
type peerKey struct {
	addr netip.Addr
	id   uint32
}

// Connections that were asked for and are not established take memory that nobody has paid for yet. Above these numbers
// requests are dropped: the peer repeats them.
const (
	maxHalfOpen          = 2048
	maxHalfOpenPerSource = 512
)

func (c *cm) init(d *device) {
	c.dev = d
	c.byID, c.byPeer = map[uint32]*conn{}, map[peerKey]*conn{}
	c.listeners, c.perSource = map[*listener]struct{}{}, map[netip.Addr]int{}
	c.nextPort = uint16(randomKey())
}

// send sends a message to the management queue pair of a peer. mu is held.
func (c *cm) send(s *socket, to netip.Addr, m *cmMessage) {
	b := s.begin(bthLen + dethLen + madLen + icrcLen)
	c.psn++
	putBTH(b, opUDSendOnly, 0, false, false, gsiQP, c.psn)
	putDETH(b[bthLen:], gsiQKey, gsiQP)
	m.encode(b[bthLen+dethLen:])
	f := flow{src: s.addr, dst: to, srcPort: Port, dstPort: Port}
	s.end(netip.AddrPortFrom(to, Port), &f)
	s.flush()
}

// datagram takes a management datagram.
func (c *cm) datagram(s *socket, from netip.Addr, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.msg
	if !m.decode(b) {
		c.dev.counters.malformed.Add(1)
		return
	}
	if m.attr == cmREQ {
		c.request(s, from, m)
		return
	}
	x := c.byID[m.remComm]
	if x == nil && m.attr == cmREJ { // of a request that has no answer yet: it has no number of ours
		x = c.byPeer[peerKey{from, m.localComm}]
	}
	if x == nil || x.peerAddr != from || x.remoteID != 0 && x.remoteID != m.localComm {
		if m.attr == cmDREQ { // of a connection that we forgot: the peer may forget it too
			c.send(s, from, &cmMessage{attr: cmDREP, tid: m.tid, localComm: m.remComm, remComm: m.localComm})
			return
		}
		c.dev.counters.strangers.Add(1)
		return
	}
	switch m.attr {
	case cmREP:
		x.onREP(m)
	case cmRTU:
		x.onRTU()
	case cmREJ:
		x.onREJ(m)
	case cmMRA:
		x.onMRA(m)
	case cmDREQ:
		x.onDREQ(m)
	case cmDREP:
		if x.state == connLeaving {
			x.end()
		}
	}
}

func (c *cm) reject(s *socket, to netip.Addr, m *cmMessage, reason uint16) {
	c.send(s, to, &cmMessage{attr: cmREJ, tid: m.tid, remComm: m.localComm, reason: reason})
}

// request takes a REQ.
func (c *cm) request(s *socket, from netip.Addr, m *cmMessage) {
	key := peerKey{from, m.localComm}
	if x := c.byPeer[key]; x != nil { // again
		switch x.state {
		case connRequested: // the program takes its time
			c.send(s, from, &cmMessage{attr: cmMRA, tid: m.tid, localComm: x.id, remComm: m.localComm, respTimeout: mraTimeout})
		case connAnswered, connUp:
			x.transmit()
		}
		return
	}
	src, dst, user, ok := m.ipHeader()
	if !ok {
		c.reject(s, from, m, rejInvalidServiceID)
		return
	}
	l := c.listenerAt(netip.AddrPortFrom(s.addr, uint16(m.serviceID)))
	switch {
	case l == nil || dst.Addr() != s.addr || src.Addr() != from:
		c.reject(s, from, m, rejInvalidServiceID)
		return
	case m.mtu > c.dev.prov.mtuOf(s.addr):
		c.reject(s, from, m, rejInvalidMTU)
		return
	case int(l.pending.Load()) >= l.backlog:
		c.reject(s, from, m, rejConsumer)
		return
	case c.halfOpen >= maxHalfOpen || c.perSource[from] >= maxHalfOpenPerSource:
		c.dev.counters.dropped.Add(1)
		return
	}
	x := c.newConn(l.ch, s, from)
	x.passive, x.state = true, connRequested
	x.local, x.remote = netip.AddrPortFrom(s.addr, dst.Port()), src
	x.remoteID, x.tid, x.remoteGUID = m.localComm, m.tid, m.localGUID
	x.mtu, x.remoteQPN, x.remotePSN = uint32(m.mtu), m.qpn, m.psn
	x.retry, x.rnrRetry = m.retryCount, m.rnrRetry
	x.key = key
	c.byPeer[key] = x
	c.halfOpen++
	c.perSource[from]++
	x.counted = true
	l.pending.Add(1)
	p := rdma.ConnParam{PrivateData: append([]byte(nil), user...), ResponderResources: m.initiatorDepth, InitiatorDepth: m.responderResources,
		RetryCount: m.retryCount, RNRRetryCount: m.rnrRetry, FlowControl: m.flowControl, QPNum: m.qpn}
	if !l.ch.emit(rdma.Event{Type: rdma.EventConnectRequest, Listener: l, Conn: x, Param: p}) {
		l.pending.Add(-1)
		c.reject(s, from, m, rejConsumer)
		x.closed = true // the channel never had it
		x.forget()
	}
}

func (c *cm) newConn(ch *eventChannel, s *socket, peer netip.Addr) *conn {
	x := &conn{cm: c, ch: ch, sock: s, peerAddr: peer, psn: randomKey() & psnMask}
	for x.id = randomKey(); c.byID[x.id] != nil; x.id = randomKey() {
	}
	c.byID[x.id] = x
	c.dev.open.conns.Add(1)
	return x
}

// listenerAt is the listener that a request to an address goes to.
func (c *cm) listenerAt(at netip.AddrPort) *listener {
	for l := range c.listeners {
		if a := l.addr.Addr(); l.addr.Port() == at.Port() && a.Is4() == at.Addr().Is4() && (a == at.Addr() || a.IsUnspecified()) {
			return l
		}
	}
	return nil
}

// repeats are the pauses between a message and its repetitions. The last one is the wait for an answer to the last.
var repeats = [...]time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}

// mraTimeout asks for 4.096 µs · 2^24, about 68 s, as rdma_cm does.
const mraTimeout = 24

// start sends the message that the state calls for, and goes on until answered. cm.mu is held.
func (x *conn) start() {
	x.tries = 0
	x.transmit()
	x.arm(repeats[0])
}

func (x *conn) arm(d time.Duration) {
	x.disarm()
	x.gen++
	gen := x.gen
	x.timer = time.AfterFunc(d, func() { x.expired(gen) })
}

func (x *conn) disarm() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.gen++
}

func (x *conn) expired(gen int) {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if x.gen != gen || x.cm.dev.closed.Load() {
		return
	}
	if x.state == connTimewait {
		x.state = connDone
		x.emit(rdma.Event{Type: rdma.EventTimewaitExit, Conn: x})
		x.forgetIfClosed()
		return
	}
	if x.tries++; x.tries < len(repeats) {
		x.transmit()
		x.arm(repeats[x.tries])
		return
	}
	switch x.state {
	case connAsking, connAnswered:
		if x.state == connAsking {
			x.sendREJ(rejTimeout, nil)
		}
		x.finish()
		x.emit(rdma.Event{Type: rdma.EventUnreachable, Conn: x, Status: -int(syscall.ETIMEDOUT)})
	case connLeaving:
		x.end()
	}
	x.forgetIfClosed()
}

// transmit sends, first or again, what the peer has to know in this state. cm.mu is held.
func (x *conn) transmit() {
	m := &cmMessage{localComm: x.id, remComm: x.remoteID, tid: x.tid, localGUID: x.cm.dev.guid}
	p := &x.param
	switch x.state {
	case connAsking:
		m.attr, m.remComm = cmREQ, 0
		m.serviceID = psTCP | uint64(x.remote.Port())
		m.qpn, m.psn, m.mtu = x.qpn, x.psn, int(x.mtu)
		m.responderResources, m.initiatorDepth = p.ResponderResources, p.InitiatorDepth
		m.retryCount, m.rnrRetry, m.flowControl = p.RetryCount, p.RNRRetryCount, p.FlowControl
		m.respTimeout, m.ackTimeout = cmTimeout, ackTimeout
		m.localGID, m.remoteGID = x.sock.addr.As16(), x.peerAddr.As16()
		m.putIPHeader(x.local, x.remote, p.PrivateData)
	case connAnswered:
		m.attr = cmREP
		m.qpn, m.psn = x.qpn, x.psn
		m.responderResources, m.initiatorDepth = p.ResponderResources, p.InitiatorDepth
		m.rnrRetry, m.flowControl = p.RNRRetryCount, p.FlowControl
		m.privateLen = copy(m.private[:], p.PrivateData)
	case connUp:
		if x.passive {
			return
		}
		m.attr = cmRTU
	case connLeaving:
		m.attr, m.tid, m.qpn = cmDREQ, x.dreqTID, x.remoteQPN
	default:
		return
	}
	x.cm.send(x.sock, x.peerAddr, m)
}

const (
	// cmTimeout: 4.096 µs · 2^20, about 4 s, as rdma_cm says.
	cmTimeout = 20
	// ackTimeout: 4.096 µs · 2^14, about 67 ms: what a peer is to wait for an acknowledgement.
	ackTimeout = 14
)

func (x *conn) sendREJ(reason uint16, data []byte) {
	m := &cmMessage{attr: cmREJ, localComm: x.id, remComm: x.remoteID, tid: x.tid, reason: reason, localGUID: x.cm.dev.guid}
	if x.state == connAsking {
		m.rejected = 2
	}
	m.privateLen = copy(m.private[:], data)
	x.cm.send(x.sock, x.peerAddr, m)
}

func (x *conn) onREP(m *cmMessage) {
	switch {
	case x.state == connUp && !x.passive: // the RTU was lost
		x.transmit()
	case x.state == connAsking && x.qp != nil:
		x.disarm()
		x.remoteID, x.remoteQPN, x.remotePSN = m.localComm, m.qpn, m.psn
		x.qp.ready(x.path(int(min(m.responderResources, x.param.InitiatorDepth)), int(min(m.initiatorDepth, x.param.ResponderResources)),
			x.param.RetryCount, m.rnrRetry))
		x.state = connUp
		x.transmit()
		x.emit(rdma.Event{Type: rdma.EventEstablished, Conn: x, Param: rdma.ConnParam{
			PrivateData:        append([]byte(nil), m.private[:m.privateLen]...),
			ResponderResources: m.initiatorDepth, InitiatorDepth: m.responderResources, RNRRetryCount: m.rnrRetry,
			FlowControl: m.flowControl, QPNum: m.qpn}})
	}
}

// path is what the queue pair is to know. ord and ird are numbers of READs. The starting PSN of a REQ or REP is the one
// that its receiver is to begin with.
func (x *conn) path(ord, ird int, retry, rnr uint8) path {
	return path{sock: x.sock, peer: netip.AddrPortFrom(x.peerAddr, Port), flow: flow{src: x.sock.addr, dst: x.peerAddr, srcPort: Port, dstPort: Port},
		destQP: x.remoteQPN, mtu: x.mtu, ird: ird, ord: ord, rnrMax: rnr, retry: retry, sendPSN: x.remotePSN, recvPSN: x.psn}
}

func (x *conn) onRTU() {
	if x.state == connAnswered {
		x.established()
	}
}

// established ends the passive side's wait. cm.mu is held.
func (x *conn) established() {
	x.disarm()
	x.state = connUp
	x.uncount()
	x.emit(rdma.Event{Type: rdma.EventEstablished, Conn: x})
}

func (x *conn) onREJ(m *cmMessage) {
	switch x.state {
	case connAsking, connRequested, connAnswered:
		x.finish()
		x.emit(rdma.Event{Type: rdma.EventRejected, Conn: x, Status: int(m.reason),
			Param: rdma.ConnParam{PrivateData: append([]byte(nil), m.private[:m.privateLen]...)}})
		x.forgetIfClosed()
	}
}

func (x *conn) onMRA(m *cmMessage) {
	if x.state == connAsking || x.state == connAnswered || x.state == connLeaving {
		d := 4096 * time.Nanosecond << min(m.respTimeout, 31)
		x.arm(min(d, 2*time.Minute))
	}
}

func (x *conn) onDREQ(m *cmMessage) {
	if m.qpn != x.qpn {
		x.cm.dev.counters.strangers.Add(1)
		return
	}
	x.dreqTID = m.tid
	switch x.state {
	case connAnswered, connUp:
		x.disarm()
		x.uncount()
		x.state = connLeft
		x.tellDisconnected()
	case connLeaving: // both at once
		x.sendDREP()
		x.end()
	case connTimewait, connDone:
		x.sendDREP()
	}
}

func (x *conn) sendDREP() {
	x.cm.send(x.sock, x.peerAddr, &cmMessage{attr: cmDREP, tid: x.dreqTID, localComm: x.id, remComm: x.remoteID})
}

func (x *conn) tellDisconnected() {
	if !x.disconnected {
		x.disconnected = true
		x.emit(rdma.Event{Type: rdma.EventDisconnected, Conn: x})
	}
}

// end is the end of the connection as this side sees it: late packets may still come for a while.
func (x *conn) end() {
	x.state = connTimewait
	x.tellDisconnected()
	if x.closed {
		x.forget()
		return
	}
	x.arm(x.cm.dev.prov.opt.Timewait)
}

// finish ends a connection that never was one.
func (x *conn) finish() {
	x.disarm()
	x.uncount()
	x.state = connDone
}

func (x *conn) uncount() {
	if !x.counted {
		return
	}
	x.counted = false
	c := x.cm
	c.halfOpen--
	if c.perSource[x.peerAddr]--; c.perSource[x.peerAddr] == 0 {
		delete(c.perSource, x.peerAddr)
	}
}

func (x *conn) emit(ev rdma.Event) {
	if !x.closed {
		x.ch.emit(ev)
	}
}

// forget takes the connection out of the tables. cm.mu is held.
func (x *conn) forget() {
	if x.forgotten {
		return
	}
	x.forgotten = true
	x.disarm()
	x.uncount()
	x.state = connDone
	delete(x.cm.byID, x.id)
	if x.passive && x.cm.byPeer[x.key] == x {
		delete(x.cm.byPeer, x.key)
	}
	if !x.closed {
		x.closed = true
		x.ch.leave()
	}
	x.cm.dev.open.conns.Add(-1)
}

func (x *conn) forgetIfClosed() {
	if x.closed && x.state == connDone {
		x.forget()
	}
}
