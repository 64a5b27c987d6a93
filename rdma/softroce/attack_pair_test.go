package softroce

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/rdma"
)

// The victim's memory: regions lie apart, and what is between them nobody may touch.
const (
	armMem   = 1 << 18
	armRecv  = 0x04000 // receives: armRecvs of armRecvN bytes
	armRW    = 0x10000 // the peer may read and write
	armRO    = 0x18000 // read
	armWO    = 0x1c000 // write
	armAlien = 0x20000 // read and write, of another protection domain
	armGone  = 0x24000 // closed
	armInval = 0x28000 // taken away by a SEND with Invalidate
	armLocal = 0x30000 // no remote rights: of the victim's own requests

	armRegion = 0x1000
	armRecvs  = 8
	armRecvN  = 2048
	armMTU    = 1024
	armFill   = 0xa5 // what attackers send
)

// end is one end of a live connection.
type end struct {
	conn  rdma.Conn
	pd    rdma.PD
	cc    rdma.CompletionChannel
	cq    rdma.CQ
	arena *rdma.Arena
	own   rdma.MR         // the whole arena: of the victim for itself alone, of others for all
	mrs   map[int]rdma.MR // by offset
	qp    *qp
	wcs   [64]rdma.WC
}

// party is one program: a provider at one address.
type party struct {
	p    *Provider
	ch   rdma.EventChannel
	addr netip.Addr
	deaf atomic.Bool // what comes is lost
}

// rig is a victim, its peer, an innocent program that is connected to the victim too, and an attacker who can write any
// source address.
type rig struct {
	t                      testing.TB
	victim, peer, innocent *party
	listener               rdma.Listener
	alienPD                rdma.PD
	good, goodOther        *end // the innocent connection: at the victim, and at the other end
	asPeer, asStranger     *net.UDPConn
	goodRound              byte
	image                  []byte
	mu                     sync.Mutex
	awaited                []byte        // the datagram that is on its way
	seen                   chan struct{} // it was handled, or is next
	sent                   []sentPacket
	fences                 byte
	crc                    icrc
}

// sentPacket is what the victim sent.
type sentPacket struct {
	to  netip.Addr
	op  opcode
	syn uint8
	psn uint32
	qpn uint32
	n   int
}

// Packet implements Trace.
func (r *rig) Packet(sent bool, _, dst netip.AddrPort, _ uint16, b []byte) {
	var p packet
	if sent && p.parse(b) {
		r.mu.Lock()
		r.sent = append(r.sent, sentPacket{dst.Addr(), p.op, p.syndrome, p.psn, p.destQP, len(p.payload)})
		r.mu.Unlock()
	}
}

// fence is a datagram that is only waited for.
func fence(n byte) []byte { return []byte{'f', 'e', 'n', 'c', 'e', n} }

func (r *rig) arrive(b []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited != nil && bytes.Equal(b, r.awaited) {
		r.awaited = nil
		r.seen <- struct{}{}
	}
	if len(b) == len(fence(0)) && bytes.HasPrefix(b, []byte("fence")) {
		return 0
	}
	return 1
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func attackAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
}

func (r *rig) newParty(trace Trace, arrive func(b []byte) int) *party {
	x := &party{addr: attackAddr()}
	x.p = New(Options{Addrs: []netip.Addr{x.addr}, MTU: armMTU, Trace: trace, Timewait: 10 * time.Millisecond})
	SetNetwork(x.p, func(b []byte) int {
		if x.deaf.Load() {
			return 0
		}
		return arrive(b)
	})
	var err error
	x.ch, err = x.p.NewEventChannel()
	r.must(err)
	return x
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, seen: make(chan struct{}, 1), image: make([]byte, armMem)}
	once := func([]byte) int { return 1 }
	r.victim, r.peer, r.innocent = r.newParty(r, r.arrive), r.newParty(nil, once), r.newParty(nil, once)
	var err error
	r.listener, err = r.victim.ch.Listen(netip.AddrPortFrom(r.victim.addr, 7174), 64)
	r.must(err)
	r.alienPD, err = r.victim.p.dev.AllocPD()
	r.must(err)
	r.good, r.goodOther = r.connect(r.innocent)
	udp := func(a netip.Addr) *net.UDPConn {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
		r.must(err)
		return c
	}
	r.asPeer, r.asStranger = udp(r.peer.addr), udp(attackAddr())
	t.Cleanup(func() {
		r.closeEnds(r.good, r.goodOther)
		for _, x := range []interface{ Close() error }{r.alienPD, r.listener, r.asPeer, r.asStranger} {
			r.must(x.Close())
		}
		for _, x := range []*party{r.victim, r.peer, r.innocent} {
			r.must(x.ch.Close())
			r.must(x.p.Close())
			if l := Leaks(x.p); len(l) > 0 {
				t.Errorf("left open: %q", l)
			}
		}
	})
	return r
}

// next waits for an event of a connection, or (nil) of any.
func (r *rig) next(x *party, want rdma.EventType, c rdma.Conn) rdma.Event {
	r.t.Helper()
	for {
		ev, err := x.ch.Next()
		r.must(err)
		if ev.Type == want && (c == nil || ev.Conn == c) {
			return ev
		}
		if ev.Type == rdma.EventUnreachable || ev.Type == rdma.EventRejected {
			r.t.Fatalf("event %s, want %s", ev.Type, want)
		}
	}
}

func (r *rig) newEnd(x *party, c rdma.Conn, victim bool) *end {
	e := &end{conn: c, mrs: map[int]rdma.MR{}}
	d := x.p.dev
	var err error
	e.pd, err = d.AllocPD()
	r.must(err)
	e.cc, err = d.NewCompletionChannel()
	r.must(err)
	e.cq, err = e.cc.CreateCQ(256, 0)
	r.must(err)
	e.arena, err = rdma.MapArena(armMem, false)
	r.must(err)
	pattern(e.arena.Bytes(), victim)
	const full = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite
	access := full
	if victim {
		access = rdma.AccessLocalWrite
		for off, a := range map[int]rdma.Access{armRW: full, armRO: rdma.AccessRemoteRead, armWO: rdma.AccessLocalWrite | rdma.AccessRemoteWrite,
			armAlien: full, armGone: full, armInval: full} {
			p := e.pd
			if off == armAlien {
				p = r.alienPD
			}
			e.mrs[off], err = p.RegMR(e.arena.Bytes()[off:][:armRegion], a)
			r.must(err)
		}
		r.must(e.mrs[armGone].Close())
		if !d.mrs.invalidate(e.pd.(*pd), e.mrs[armInval].RKey()) {
			r.t.Fatal("a key is not invalidated")
		}
	}
	e.own, err = e.pd.RegMR(e.arena.Bytes(), access)
	r.must(err)
	q, err := c.CreateQP(e.pd, rdma.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 16, MaxRecvWR: armRecvs, MaxSendSGE: 1, MaxRecvSGE: 1})
	r.must(err)
	e.qp = q.(*qp)
	for i := range armRecvs {
		r.must(e.recv(i))
	}
	return e
}

// pattern fills memory with what it is recognized by.
func pattern(b []byte, victim bool) {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
		if !victim {
			b[i] ^= 0x55
		}
	}
}

func (e *end) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: e.own.Addr() + uint64(off), Length: uint32(n), LKey: e.own.LKey()}}
}

func (e *end) recv(i int) error {
	posts := []rdma.QPPost{{QP: e.qp, Recvs: []rdma.RecvWR{{ID: uint64(i), SGE: e.sge(armRecv+i*armRecvN, armRecvN)}}}}
	e.qp.dev.Post(posts)
	return posts[0].Err
}

func (e *end) post(wrs ...rdma.SendWR) error {
	for i := range wrs {
		wrs[i].Flags |= rdma.SendSignaled
	}
	posts := []rdma.QPPost{{QP: e.qp, Sends: wrs}}
	e.qp.dev.Post(posts)
	return posts[0].Err
}

// reap waits for n completions.
func (r *rig) reap(e *end, n int) []rdma.WC {
	r.t.Helper()
	var out []rdma.WC
	for deadline := time.Now().Add(30 * time.Second); len(out) < n; {
		k, err := e.cq.Poll(e.wcs[:])
		r.must(err)
		out = append(out, e.wcs[:k]...)
		if len(out) < n && k == 0 {
			if time.Now().After(deadline) {
				r.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
			}
			r.must(e.cq.Arm())
			if k, err = e.cq.Poll(e.wcs[:]); k == 0 {
				_, err = e.cc.Wait(100 * time.Millisecond)
			}
			r.must(err)
			out = append(out, e.wcs[:k]...)
		}
	}
	return out
}

// connect makes a connection of x to the victim, and returns both ends.
func (r *rig) connect(x *party) (tgt, ini *end) {
	r.t.Helper()
	c, err := x.ch.Resolve(context.Background(), netip.AddrPort{}, r.listener.Addr())
	r.must(err)
	ini = r.newEnd(x, c, false)
	param := rdma.ConnParam{ResponderResources: 2, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 7}
	r.must(c.Connect(param))
	req := r.next(r.victim, rdma.EventConnectRequest, nil)
	tgt = r.newEnd(r.victim, req.Conn, true)
	r.must(req.Conn.Accept(param))
	r.next(x, rdma.EventEstablished, c)
	r.next(r.victim, rdma.EventEstablished, req.Conn)
	return tgt, ini
}

func (r *rig) closeEnds(ends ...*end) {
	for _, e := range ends {
		_ = e.conn.Disconnect()
	}
	for _, e := range ends {
		x := []interface{ Close() error }{e.qp, e.conn, e.cq, e.cc, e.own}
		for _, m := range e.mrs {
			x = append(x, m)
		}
		for _, c := range append(x, e.pd, e.arena) {
			if err := c.Close(); err != nil {
				r.t.Errorf("close %T: %v", c, err)
			}
		}
	}
}

// deliver sends a datagram to the victim with the right ICRC, and waits until it has come.
func (r *rig) deliver(from *net.UDPConn, b []byte) {
	r.t.Helper()
	to := netip.AddrPortFrom(r.victim.addr, Port)
	if len(b) >= bthLen+icrcLen {
		src := from.LocalAddr().(*net.UDPAddr).AddrPort()
		r.crc.put(&flow{src: src.Addr(), dst: to.Addr(), srcPort: src.Port(), dstPort: Port}, b, 0)
	}
	r.mu.Lock()
	r.awaited = b
	r.mu.Unlock()
	_, err := from.WriteToUDPAddrPort(b, to)
	r.must(err)
	select {
	case <-r.seen:
	case <-time.After(30 * time.Second):
		r.t.Fatal("a datagram does not arrive")
	}
}

// settle waits until all that was delivered is handled and answered: a second fence is read only after the batch of the
// first is at its end.
func (r *rig) settle() {
	r.t.Helper()
	for range 2 {
		r.fences++
		r.deliver(r.asPeer, fence(r.fences))
	}
}

// answers takes what the victim sent to a queue pair, requests of its own left out, and any datagram of the connection
// manager. Numbers are counted from psn.
func (r *rig) answers(qpn, psn uint32) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := map[uint8]string{0: "ACK", 1: "RNR", 3: "NAK"}
	codes := map[uint8]string{nakSequence: "sequence", nakInvalid: "invalid", nakAccess: "access", nakRemoteOp: "operation"}
	var out []string
	for _, s := range r.sent {
		d := psnDiff(s.psn, psn)
		switch {
		case s.op == opAcknowledge && s.qpn == qpn && s.syn>>5 == 3:
			out = append(out, fmt.Sprintf("NAK %s %+d", codes[s.syn&31], d))
		case s.op == opAcknowledge && s.qpn == qpn:
			out = append(out, fmt.Sprintf("%s %+d", names[s.syn>>5], d))
		case s.op.has(isResponse) && s.qpn == qpn:
			out = append(out, fmt.Sprintf("READ %+d %d", d, s.n))
		case s.op.has(hasDETH) && s.to != r.innocent.addr:
			out = append(out, "management datagram")
		}
	}
	r.sent = r.sent[:0]
	return out
}

// checkMemory compares all of an end's memory with what it should be.
func (r *rig) checkMemory(what string, got, want []byte) {
	r.t.Helper()
	for i := range want {
		if got[i] != want[i] {
			r.t.Errorf("%s: byte %#x is %#x, want %#x", what, i, got[i], want[i])
			return
		}
	}
}

// traffic is an honest message, write and read of the end x to the victim's end v.
func (r *rig) traffic(what string, v, x *end) {
	r.t.Helper()
	r.goodRound++
	fill := bytes.Repeat([]byte{r.goodRound}, 3000)
	copy(x.arena.Bytes()[armLocal:], fill)
	rw := v.mrs[armRW]
	r.must(x.post(rdma.SendWR{ID: 1, Op: rdma.OpRDMAWrite, SGE: x.sge(armLocal, 3000), RemoteAddr: rw.Addr(), RKey: rw.RKey()},
		rdma.SendWR{ID: 2, Op: rdma.OpRDMARead, SGE: x.sge(armLocal+4096, 3000), RemoteAddr: rw.Addr(), RKey: rw.RKey()},
		rdma.SendWR{ID: 3, Op: rdma.OpSend, SGE: x.sge(armLocal, 100)}))
	for _, wc := range append(r.reap(x, 3), r.reap(v, 1)...) {
		if wc.Status != rdma.StatusSuccess {
			r.t.Errorf("%s: %+v", what, wc)
		}
		if wc.Op == rdma.WCRecv {
			if !bytes.Equal(v.arena.Bytes()[armRecv+int(wc.ID)*armRecvN:][:100], fill[:100]) {
				r.t.Errorf("%s: a message with other bytes", what)
			}
			r.must(v.recv(int(wc.ID)))
		}
	}
	if !bytes.Equal(v.arena.Bytes()[armRW:][:3000], fill) || !bytes.Equal(x.arena.Bytes()[armLocal+4096:][:3000], fill) {
		r.t.Errorf("%s: other bytes were written or read", what)
	}
}

// checkInnocent: the other connection works, and its memory is as it was.
func (r *rig) checkInnocent() {
	r.t.Helper()
	mem := r.good.arena.Bytes()
	pattern(r.image, true)
	for _, part := range [][2]int{{armRW, 3000}, {armRecv, armRecvs * armRecvN}} { // of its own traffic
		copy(r.image[part[0]:][:part[1]], mem[part[0]:])
	}
	r.checkMemory("innocent connection", mem, r.image)
	r.traffic("innocent connection", r.good, r.goodOther)
}

func (e *end) state() (s qpState, psn, una uint32) {
	e.qp.mu.Lock()
	defer e.qp.mu.Unlock()
	return e.qp.state, e.qp.resp.psn, e.qp.sq.una
}

func same(got, want []string) bool { return slices.Equal(got, want) }
