package softroce

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"iserd/rdma"
)

// flood sends management datagrams with any source address to the victim of a rig, as if its socket had read them.
type flood struct {
	*rig
	rx   reader
	crc  icrc
	port uint16
}

func newFlood(t *testing.T) *flood {
	f := &flood{rig: newRig(t)}
	var err error
	f.rx.sock, err = f.victim.p.dev.socketAt(f.victim.addr)
	f.must(err)
	f.port = f.listener.Addr().Port()
	return f
}

// sources are addresses where nobody is.
func source(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 255, 254, byte(1 + i)}) }

func (f *flood) datagram(from netip.Addr, pkt []byte) {
	f.crc.put(&flow{src: from, dst: f.victim.addr, srcPort: Port, dstPort: Port}, pkt, 0)
	f.rx.datagram(netip.AddrPortFrom(from, Port), pkt)
	f.rx.endBatch()
}

// mad is the packet that carries a message.
func mad(m *cmMessage) []byte {
	head := make([]byte, dethLen)
	putDETH(head, gsiQKey, gsiQP)
	b := raw(opUDSendOnly, gsiQP, 0, false, head, madLen)
	m.encode(b[bthLen+dethLen:])
	return b
}

func (f *flood) req(from netip.Addr, id uint32) *cmMessage {
	m := &cmMessage{attr: cmREQ, tid: uint64(id), localComm: id, serviceID: psTCP | uint64(f.port), qpn: id & psnMask, mtu: armMTU, retryCount: 7,
		rnrRetry: 7, initiatorDepth: 4, responderResources: 4}
	m.putIPHeader(netip.AddrPortFrom(from, 5000), netip.AddrPortFrom(f.victim.addr, f.port), nil)
	return m
}

func (f *flood) send(from netip.Addr, m *cmMessage) { f.datagram(from, mad(m)) }

// sentMADs is how many packets the victim sent since the last call. Nothing else is on its way here.
func (f *flood) sentMADs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.sent {
		if s.op == opUDSendOnly {
			n++
		}
	}
	f.sent = f.sent[:0]
	return n
}

// wantPending checks how many connections there are beside the innocent one. One that has just been closed is remembered
// for a moment.
func (f *flood) wantPending(what string, conns, halfOpen, sources int) {
	f.t.Helper()
	n, h, s := Pending(f.victim.p)
	for end := time.Now().Add(10 * time.Second); n-1 > conns && time.Now().Before(end); n, h, s = Pending(f.victim.p) {
		time.Sleep(time.Millisecond)
	}
	if n-1 != conns || h != halfOpen || s != sources {
		f.t.Errorf("%s: %d connections, %d half open of %d sources; want %d, %d, %d", what, n-1, h, s, conns, halfOpen, sources)
	}
}

// wantService: the old connection works, and a new one can be made and works.
func (f *flood) wantService() {
	f.t.Helper()
	f.checkInnocent()
	v, p := f.connect(f.peer)
	f.traffic("a good client", v, p)
	f.closeEnds(v, p)
}

// heap is the memory in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// widen replaces the listener by one with another backlog.
func (f *flood) widen(backlog int) {
	f.must(f.listener.Close())
	var err error
	f.listener, err = f.victim.ch.Listen(netip.AddrPortFrom(f.victim.addr, f.port), backlog)
	f.must(err)
}

// TestFloodRequests: requests of many sources that no program fetches. What they take is bounded by source and in all,
// and is given back.
func TestFloodRequests(t *testing.T) {
	f := newFlood(t)
	f.widen(1 << 20)
	goroutines := runtime.NumGoroutine()
	const sources, each = 8, 1000
	f.sentMADs()
	for i := range each {
		for s := range sources {
			f.send(source(s), f.req(source(s), uint32(1+i)))
		}
		if _, half, _ := Pending(f.victim.p); half > maxHalfOpen {
			t.Fatalf("%d half open", half)
		}
	}
	// The first come take all: that is four sources' limit.
	f.wantPending("after the flood", maxHalfOpen, maxHalfOpen, sources)
	if got, want := f.victim.p.Stats().Dropped, uint64(sources*each-maxHalfOpen); got != want {
		t.Errorf("%d requests were dropped, want %d", got, want)
	}
	if n := f.sentMADs(); n != 0 {
		t.Errorf("%d answers to requests that nobody has seen", n)
	}
	used := heap()
	for i := range 10 * each {
		f.send(source(i%sources), f.req(source(i%sources), uint32(1e6+i)))
	}
	f.sentMADs()
	if grown := heap() - used; grown > 256<<10 {
		t.Errorf("requests that were dropped took %d bytes", grown)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	f.wantPending("after more of it", maxHalfOpen, maxHalfOpen, sources)
	// The program wakes up and refuses them all.
	for range maxHalfOpen {
		ev := f.next(f.victim, rdma.EventConnectRequest, nil)
		f.must(ev.Conn.Reject(nil))
		f.must(ev.Conn.Close())
	}
	f.wantPending("after it was refused", 0, 0, 0)
	f.wantService()
}

// TestFloodBySource: one source has its limit, and others are served meanwhile.
func TestFloodBySource(t *testing.T) {
	f := newFlood(t)
	f.widen(1 << 20)
	for i := range 5000 {
		f.send(source(1), f.req(source(1), uint32(1+i)))
	}
	f.wantPending("after the flood", maxHalfOpenPerSource, maxHalfOpenPerSource, 1)
	for range maxHalfOpenPerSource { // fetched, and not answered yet
		f.next(f.victim, rdma.EventConnectRequest, nil)
	}
	f.wantService()
	f.must(f.listener.Close())
	f.victim.p.dev.cm.mu.Lock()
	var left []*conn
	for _, x := range f.victim.p.dev.cm.byID {
		if x.state == connRequested {
			left = append(left, x)
		}
	}
	f.victim.p.dev.cm.mu.Unlock()
	for _, x := range left {
		f.must(x.Close())
	}
	f.wantPending("after they were closed", 0, 0, 0)
}

// TestFloodBacklog: above the backlog a request is refused, also when its sender takes each request back at once.
func TestFloodBacklog(t *testing.T) {
	const backlog = 16
	f := newFlood(t)
	f.widen(backlog)
	f.sentMADs()
	for i := range uint32(3000) {
		f.send(source(0), f.req(source(0), 1+i))
		f.send(source(0), &cmMessage{attr: cmREJ, localComm: 1 + i, reason: rejConsumer})
	}
	f.wantPending("after the flood", backlog, 0, 0)
	if n := f.sentMADs(); n != 3000-backlog {
		t.Errorf("%d answers, want %d refusals", n, 3000-backlog)
	}
	ch := f.victim.ch.(*eventChannel)
	ch.mu.Lock()
	n := len(ch.queue)
	ch.mu.Unlock()
	if n > 2*backlog+4 { // and what is left of the innocent connection
		t.Errorf("%d events are queued", n)
	}
	for range backlog {
		ev := f.next(f.victim, rdma.EventConnectRequest, nil)
		f.must(ev.Conn.Close())
	}
	f.wantPending("after they were closed", 0, 0, 0)
	f.wantService()
}

// accept fetches n requests and accepts them, each with a queue pair.
func (f *flood) accept(n int) (ends []*end) {
	for range n {
		ev := f.next(f.victim, rdma.EventConnectRequest, nil)
		e := f.newEnd(f.victim, ev.Conn, true)
		f.must(ev.Conn.Accept(rdma.ConnParam{ResponderResources: 2, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 7}))
		ends = append(ends, e)
	}
	return ends
}

// expire lets the time pass that the manager waits for answers.
func (f *flood) expire(ends []*end) {
	c := &f.victim.p.dev.cm
	for _, e := range ends {
		x := e.conn.(*conn)
		for {
			c.mu.Lock()
			gen, state := x.gen, x.state
			c.mu.Unlock()
			if state != connAnswered {
				break
			}
			x.expired(gen)
		}
	}
}

// TestFloodAccepted: requests that the program accepts, whose senders say nothing more or repeat themselves. Each message
// is answered by at most one, nothing but the peer's own packet establishes a connection, and time ends all of them.
func TestFloodAccepted(t *testing.T) {
	const n = 64
	f := newFlood(t)
	goroutines := runtime.NumGoroutine()
	from := source(3)
	for i := range uint32(n) {
		f.send(from, f.req(from, 1+i))
	}
	ends := f.accept(n)
	f.wantPending("accepted", n, n, 1)
	f.sentMADs()
	for range 20 {
		for i := range uint32(n) {
			f.send(from, f.req(from, 1+i))
		}
	}
	// The timers too may have repeated an answer by now, each at most a few times.
	if got := f.sentMADs(); got < 20*n || got > (20+len(repeats))*n {
		t.Errorf("%d answers to %d requests that came again", got, 20*n)
	}
	f.wantPending("asked again", n, n, 1)
	// What is no RTU of these, and packets with guessed numbers, establish nothing.
	for i, e := range ends {
		x := e.conn.(*conn)
		f.send(from, &cmMessage{attr: cmRTU, localComm: uint32(1 + i), remComm: x.id ^ 1})
		f.send(from, &cmMessage{attr: cmRTU, localComm: uint32(n + 1 + i), remComm: x.id})
		f.send(source(4), &cmMessage{attr: cmRTU, localComm: uint32(1 + i), remComm: x.id})
		_, psn, una := e.state()
		f.datagram(from, raw(opSendOnly, e.qp.num, psn+1, true, nil, 8))
		f.datagram(from, raw(opSendOnly, e.qp.num, psn-1, true, nil, 8))
		f.datagram(from, raw(opAcknowledge, e.qp.num, una, false, aeth(synACK), 0))
	}
	f.wantPending("guessed at", n, n, 1)
	// The peer of the first two has lost nothing: one sends its RTU, the other a packet.
	_, psn, _ := ends[1].state()
	f.send(from, &cmMessage{attr: cmRTU, localComm: 1, remComm: ends[0].conn.(*conn).id})
	f.datagram(from, raw(opSendOnly, ends[1].qp.num, psn, true, nil, 8))
	f.wantPending("two are established", n, n-2, 1)
	for _, e := range ends[:2] { // their program ends them, and their peer agrees
		f.must(e.conn.Disconnect())
		x := e.conn.(*conn)
		f.send(from, &cmMessage{attr: cmDREP, localComm: x.remoteID, remComm: x.id})
	}
	f.expire(ends)
	f.closeEnds(ends...)
	f.wantPending("after a while", 0, 0, 0)
	if n := runtime.NumGoroutine(); n > goroutines+3 { // timers that are just firing
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	f.wantService()
}

// TestFloodUnknown: messages for connections that are not there, or are another's, change nothing. A DREQ is answered, as
// its sender may have missed the answer to an earlier one; no other is.
func TestFloodUnknown(t *testing.T) {
	f := newFlood(t)
	x := f.good.conn.(*conn)
	id, remote, qpn := x.id, x.remoteID, x.qpn
	others := []struct {
		what   string
		from   netip.Addr
		m      cmMessage
		answer int
	}{
		{"the peer's address, another number", f.innocent.addr, cmMessage{localComm: remote, remComm: id ^ 1, qpn: qpn}, 1},
		{"the peer's address, another number of its own", f.innocent.addr, cmMessage{localComm: remote ^ 1, remComm: id, qpn: qpn}, 1},
		{"another address", source(0), cmMessage{localComm: remote, remComm: id, qpn: qpn}, 1},
		{"another queue pair", f.innocent.addr, cmMessage{localComm: remote, remComm: id, qpn: qpn ^ 1}, 0},
	}
	for _, attr := range []cmAttr{cmREP, cmRTU, cmREJ, cmMRA, cmDREQ, cmDREP} {
		f.settle() // what the connection itself was about is over
		f.sentMADs()
		before := f.victim.p.Stats().Strangers
		const n = 1000
		for i := range uint32(n) {
			f.send(source(int(i%8)), &cmMessage{attr: attr, tid: uint64(i), localComm: i, remComm: randomKey(), qpn: i, psn: i, respTimeout: 31})
		}
		answers, strangers := 0, uint64(n)
		if attr == cmDREQ {
			answers, strangers = n, 0
		}
		if got, s := f.sentMADs(), f.victim.p.Stats().Strangers-before; got != answers || s != strangers {
			t.Errorf("%#x: %d answers, %d strangers counted; want %d, %d", attr, got, s, answers, strangers)
		}
		for _, o := range others {
			m := o.m
			m.attr, m.respTimeout = attr, 31
			f.send(o.from, &m)
			want := 0
			if attr == cmDREQ {
				want = o.answer
			}
			if got := f.sentMADs(); got != want {
				t.Errorf("%#x, %s: %d answers, want %d", attr, o.what, got, want)
			}
		}
		f.wantPending("flooded", 0, 0, 0)
		f.checkInnocent()
	}
	// The request of a connection that is up, again, from its peer: no second connection.
	m := f.req(f.innocent.addr, remote)
	for range 100 {
		f.send(f.innocent.addr, m)
	}
	f.wantPending("asked again", 0, 0, 0)
	f.wantService()
}

// TestFloodMalformed: what is no message of the connection manager, or no request that can be served.
func TestFloodMalformed(t *testing.T) {
	f := newFlood(t)
	from := source(5)
	id := uint32(0)
	good := func() []byte { id++; return mad(f.req(from, id)) }
	at := func(off int, v ...byte) []byte { // a request with bytes of the MAD changed
		b := good()
		copy(b[bthLen+dethLen+off:], v)
		return b
	}
	head := make([]byte, dethLen)
	putDETH(head, gsiQKey, gsiQP)
	malformed := map[string][]byte{"version": at(0, 2), "management class": at(1, 3), "class version": at(2, 1), "method": at(3, 0x81),
		"attribute 0": at(16, 0, 0), "attribute SAP": at(16, 0, 0x18), "attribute ffff": at(16, 0xff, 0xff),
		"unreliable": at(madHeader+43, 2), "datagrams": at(madHeader+43, 6), "MTU 0": at(madHeader+50, 0), "MTU 6": at(madHeader+50, 0x60), "MTU 15": at(madHeader+50, 0xf0)}
	for _, n := range []int{0, 4, 24, 128, 252, 260, 512, 1024, 4096, 60000} {
		b := raw(opUDSendOnly, gsiQP, 0, false, head, n)
		copy(b[bthLen+dethLen:][:min(n, madLen)], good()[bthLen+dethLen:])
		malformed[fmt.Sprint("length ", n)] = b
	}
	f.sentMADs()
	for what, b := range malformed {
		before := f.victim.p.Stats().Malformed
		f.datagram(from, b)
		if n, sent := f.victim.p.Stats().Malformed-before, f.sentMADs(); n != 1 || sent != 0 {
			t.Errorf("%q: counted %d times, %d answers", what, n, sent)
		}
	}
	ip := madHeader + 140 // rdma_cm's header
	for what, b := range map[string][]byte{
		"another port": at(madHeader+8+6, 0xff, 0xff), "another port space": at(madHeader+8+5, 0x11), "no service": at(madHeader+8, 0xff),
		"another destination": at(ip+32, 127, 0, 0, 1), "another source": at(ip+16, 127, 9, 9, 9), "IPv6 header": at(ip+1, 6<<4),
		"no IP version": at(ip+1, 0), "header version": at(ip, 0x10), "larger MTU": at(madHeader+50, 5<<4),
	} {
		f.datagram(from, b)
		if sent := f.sentMADs(); sent != 1 {
			t.Errorf("%s: %d answers, want a refusal", what, sent)
		}
	}
	f.wantPending("flooded", 0, 0, 0)
	f.datagram(from, good())
	f.wantPending("the right request", 1, 1, 1)
	f.must(f.next(f.victim, rdma.EventConnectRequest, nil).Conn.Close())
	f.wantService()
}
