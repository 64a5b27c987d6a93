package softroce

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"iserd/rdma"
)

// bench is a queue pair that is connected to nobody: its packets are made by the test.
type bench struct {
	t       testing.TB
	p       *Provider
	ch      rdma.EventChannel
	rx      reader
	peer    netip.AddrPort
	pd      rdma.PD
	cc      rdma.CompletionChannel
	cq      rdma.CQ
	arena   *rdma.Arena
	own     rdma.MR // the whole arena, for us alone
	granted rdma.MR // for the peer, the page at benchGranted
	conn    *conn
	qp      *qp
	wcs     [64]rdma.WC
}

const (
	benchMem     = 1 << 20
	benchRecv    = 1 << 16 // receives lie here: 16 of 1024 bytes
	benchGranted = 1 << 18
	benchPage    = 1 << 14
)

func newBench(t testing.TB) *bench {
	addr := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
	b := &bench{t: t, p: New(Options{Addrs: []netip.Addr{addr}})}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := b.p.dev
	var err error
	b.ch, err = b.p.NewEventChannel()
	must(err)
	b.pd, err = d.AllocPD()
	must(err)
	b.cc, err = d.NewCompletionChannel()
	must(err)
	b.cq, err = b.cc.CreateCQ(1024, 0)
	must(err)
	b.arena, err = rdma.MapArena(benchMem, false)
	must(err)
	b.own, err = b.pd.RegMR(b.arena.Bytes(), rdma.AccessLocalWrite)
	must(err)
	b.granted, err = b.pd.RegMR(b.arena.Bytes()[benchGranted:][:benchPage], rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	must(err)
	c, err := b.ch.Resolve(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(addr, 9))
	must(err)
	b.conn = c.(*conn)
	// The peer is an address of the loopback network where nobody is.
	b.peer = netip.AddrPortFrom(netip.MustParseAddr("127.255.255.254"), Port)
	b.connect()
	b.rx.sock = b.conn.sock
	t.Cleanup(func() {
		for _, x := range []interface{ Close() error }{b.qp, b.conn, b.cq, b.cc, b.own, b.granted, b.pd, b.ch, b.p, b.arena} {
			if err := x.Close(); err != nil {
				t.Errorf("close %T: %v", x, err)
			}
		}
	})
	return b
}

// connect makes a queue pair in a new connection's place.
func (b *bench) connect() {
	if b.qp != nil {
		_ = b.qp.Close()
		b.drain()
	}
	q, err := b.conn.CreateQP(b.pd, rdma.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.qp = q.(*qp)
	b.qp.ready(path{sock: b.conn.sock, peer: b.peer, flow: flow{src: b.conn.sock.addr, dst: b.peer.Addr(), srcPort: Port, dstPort: Port},
		destQP: 77, mtu: 1024, ird: 4, ord: 4, rnrMax: 7, retry: 7, sendPSN: psnMask - 2, recvPSN: psnMask - 1})
	b.recvs()
}

// recvs posts receives as long as there is room.
func (b *bench) recvs() {
	for i := range 16 {
		posts := []rdma.QPPost{{QP: b.qp, Recvs: []rdma.RecvWR{{ID: uint64(i), SGE: []rdma.SGE{{Addr: b.own.Addr() + benchRecv + uint64(i)*1024, Length: 1024, LKey: b.own.LKey()}}}}}}
		if b.p.dev.Post(posts); posts[0].Err != nil {
			return
		}
	}
}

func (b *bench) drain() int {
	total := 0
	for {
		n, err := b.cq.Poll(b.wcs[:])
		if err != nil {
			b.t.Fatal(err)
		}
		if n == 0 {
			return total
		}
		total += n
	}
}

// arrive handles a packet as if the peer had sent it. Its ICRC is made right.
func (b *bench) arrive(pkt []byte) {
	if len(pkt) >= bthLen+icrcLen {
		var c icrc
		f := flow{src: b.peer.Addr(), dst: b.rx.sock.addr, srcPort: b.peer.Port(), dstPort: Port}
		c.put(&f, pkt, 0)
	}
	b.rx.datagram(b.peer, pkt)
}

// FuzzDatagram sends packets of every kind, near to what is right, to a queue pair. None of them may move a byte that
// was not granted, or lose a receive.
func FuzzDatagram(f *testing.F) {
	f.Add([]byte{0x04, 0, 0, 0, 0, 0, 0, 4, 0})
	f.Add([]byte{0x0a, 1, 0, 0, 0, 0, 0, 64, 0, 0x0c, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{0x06, 1, 0, 0, 0, 0, 8, 0, 4, 0x07, 1, 0, 0, 0, 0, 0, 0, 4, 0x08, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0x0c, 1, 0, 0x3f, 0xff, 0, 0, 2, 0, 0x0c, 1, 0, 0xff, 0xff, 0xff, 0, 2, 0})
	f.Add([]byte{0x17, 1, 0, 0, 0, 0, 0, 8, 0, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0xfe, 3, 0, 0, 0, 0, 0})
	f.Add([]byte{0x0d, 0, 0xff, 0, 0, 0, 0, 0, 4, 0x0f, 0, 0, 0, 0, 0, 0, 0, 4})
	b := newBench(f)
	shadow := make([]byte, benchMem)
	f.Fuzz(func(t *testing.T, in []byte) {
		b.t = t
		if b.qp.state != qpReady || b.p.dev.mrs.find(b.granted.RKey()).noRemote.Load() {
			b.granted.(*mr).noRemote.Store(false)
			b.connect()
		}
		mem := b.arena.Bytes()
		for i := range mem {
			mem[i] = byte(i * 31)
		}
		copy(shadow, mem)
		// A READ and a message are on their way, so that responses find something.
		posts := []rdma.QPPost{{QP: b.qp, Sends: []rdma.SendWR{
			{ID: 100, Op: rdma.OpRDMARead, Flags: rdma.SendSignaled, SGE: []rdma.SGE{{Addr: b.own.Addr() + benchGranted, Length: 3000, LKey: b.own.LKey()}}},
			{ID: 101, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: []rdma.SGE{{Addr: b.own.Addr(), Length: 100, LKey: b.own.LKey()}}},
		}}}
		b.p.dev.Post(posts)
		for ; len(in) >= 9; in = in[9:] {
			pkt := make([]byte, bthLen+atomicLen+int(in[7])*4+int(in[8])*256+icrcLen)
			op := opcode(in[0])
			b.rx.release() // which keeps the queue pair locked
			b.qp.mu.Lock()
			psn := b.qp.resp.psn
			if op.has(isResponse) {
				psn = b.qp.sq.una
			}
			b.qp.mu.Unlock()
			putBTH(pkt, op, int(in[1]>>4), false, in[1]&4 != 0, b.qp.num, psn+uint32(int32(int8(in[2]))))
			h := pkt[bthLen:]
			key := b.granted.RKey()
			if in[1]&1 == 0 {
				key = b.own.RKey() // not for the peer
			}
			at := uint64(in[3])<<8 | uint64(in[4])
			n := 0
			switch {
			case op.has(hasRETH):
				putRETH(h, b.granted.Addr()+at-uint64(in[1]&2)*1024, key, uint32(in[5])<<16|uint32(in[6])<<8|uint32(in[7]))
				n = rethLen
			case op.has(hasAETH):
				putAETH(h, in[3], uint32(in[4]))
				n = aethLen
			case op.has(hasIETH):
				binary.BigEndian.PutUint32(h, key)
				n = iethLen
			case op.has(hasAtomic):
				n = atomicLen
			}
			n += int(in[7])*4 + int(in[8]&15)*256
			b.arrive(pkt[:bthLen+n+icrcLen])
			if in[1]&8 != 0 {
				b.rx.endBatch()
			}
		}
		for b.rx.endBatch() {
		}
		clear(mem[benchGranted:][:benchPage])
		clear(shadow[benchGranted:][:benchPage])
		clear(mem[benchRecv:][:16*1024])
		clear(shadow[benchRecv:][:16*1024])
		if !bytes.Equal(mem, shadow) {
			t.Fatal("memory changed that was not granted")
		}
		b.drain()
		b.recvs()
		if b.qp.state == qpReady && b.qp.recvHeld.Load() != 16 {
			t.Fatalf("%d receives, 16 were posted", b.qp.recvHeld.Load())
		}
		if s := &b.qp.sq; b.qp.sendHeld.Load() > 12 && b.qp.state == qpReady || s.done > s.cur || s.cur > s.tail {
			_ = b.qp.SetError() // nobody acknowledges: start anew
		}
	})
}

// FuzzRaw handles arbitrary datagrams, with their ICRC made right, the connection manager's among them.
func FuzzRaw(f *testing.F) {
	for _, ip := range rxePackets(f) {
		_, _, b := apart(ip)
		f.Add(b)
	}
	b := newBench(f)
	l, err := b.ch.Listen(netip.AddrPortFrom(b.rx.sock.addr, 7174), 4)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		pkt := append([]byte(nil), in...)
		if len(pkt) >= bthLen+dethLen+madLen+icrcLen && pkt[0] == byte(opUDSendOnly) { // to and from here
			d := pkt[bthLen+dethLen+madHeader:]
			src, dst := b.peer.Addr().As4(), b.rx.sock.addr.As4()
			copy(d[140+16:], src[:])
			copy(d[140+32:], dst[:])
		}
		b.arrive(pkt)
		for b.rx.endBatch() {
		}
		c := &b.p.dev.cm
		c.mu.Lock()
		n, half, per := len(c.byID), c.halfOpen, c.perSource[b.peer.Addr()]
		c.mu.Unlock()
		if n > 1+4 || half > 4 || per != half {
			t.Fatalf("%d connections, %d half open, for a backlog of 4", n, half)
		}
		if n > 3 { // fetch and refuse them
			ch := b.ch.(*eventChannel)
			ch.rejectAll(nil)
		}
	})
}

// TestStrangers: packets from elsewhere, for nobody, or of the wrong partition are dropped without an answer.
func TestStrangers(t *testing.T) {
	b := newBench(t)
	send := func(change func(pkt []byte)) {
		pkt := make([]byte, bthLen+4+icrcLen)
		putBTH(pkt, opSendOnly, 0, false, true, b.qp.num, b.qp.resp.psn)
		change(pkt)
		b.arrive(pkt)
		b.rx.endBatch()
	}
	good := b.peer
	for what, change := range map[string]func(pkt []byte){
		"another source":   func([]byte) { b.peer = netip.MustParseAddrPort("127.255.255.1:4791") },
		"unknown QP":       func(p []byte) { p[7] ^= 0x11 },
		"QP of the slot":   func(p []byte) { p[5] ^= 0x80 },
		"partition":        func(p []byte) { p[2] = 0x7f; p[3] = 1 },
		"management QP":    func(p []byte) { p[5], p[6], p[7] = 0, 0, 1 },
		"reserved opcode":  func(p []byte) { p[0] = 0x1f },
		"unreliable class": func(p []byte) { p[0] = 0x24 },
	} {
		sent := b.p.dev.counters.sent.Load()
		send(change)
		b.peer = good
		if n := b.drain(); n != 0 || b.qp.state != qpReady || b.p.dev.counters.sent.Load() != sent {
			t.Errorf("%s: %d completions, state %d, %d packets sent", what, n, b.qp.state, b.p.dev.counters.sent.Load()-sent)
		}
	}
	send(func([]byte) {})
	if n := b.drain(); n != 1 {
		t.Errorf("the right packet: %d completions", n)
	}
	// A wrong ICRC.
	pkt := make([]byte, bthLen+4+icrcLen)
	putBTH(pkt, opSendOnly, 0, false, true, b.qp.num, b.qp.resp.psn)
	b.rx.datagram(b.peer, pkt)
	b.rx.endBatch()
	if n := b.drain(); n != 0 || b.p.dev.counters.badICRC.Load() != 1 {
		t.Errorf("a wrong ICRC: %d completions", n)
	}
}

// TestHalfOpen: requests of one source take a bounded number of connections, and none above the listener's backlog.
func TestHalfOpen(t *testing.T) {
	b := newBench(t)
	l, err := b.ch.Listen(netip.AddrPortFrom(b.rx.sock.addr, 7174), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxHalfOpenPerSource + 100 {
		m := cmMessage{attr: cmREQ, tid: uint64(i), localComm: uint32(1000 + i), serviceID: psTCP | 7174, qpn: uint32(100 + i), mtu: 1024}
		m.putIPHeader(b.peer, netip.AddrPortFrom(b.rx.sock.addr, 7174), nil)
		pkt := make([]byte, bthLen+dethLen+madLen+icrcLen)
		putBTH(pkt, opUDSendOnly, 0, false, false, gsiQP, 1)
		putDETH(pkt[bthLen:], gsiQKey, gsiQP)
		m.encode(pkt[bthLen+dethLen:])
		b.arrive(pkt)
		b.arrive(pkt) // again: no second one
	}
	if n := b.p.dev.cm.halfOpen; n != maxHalfOpenPerSource || b.p.dev.counters.dropped.Load() < 100 {
		t.Errorf("%d half open, %d dropped", n, b.p.dev.counters.dropped.Load())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if b.p.dev.cm.halfOpen != 0 || len(b.p.dev.cm.perSource) != 0 || len(b.p.dev.cm.byPeer) != 0 {
		t.Errorf("left: %d half open", b.p.dev.cm.halfOpen)
	}
}

// TestZeroAlloc: a message that comes and one that goes allocate nothing.
func TestZeroAlloc(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b := newBench(t)
	pkt := make([]byte, bthLen+64+icrcLen)
	recvs := []rdma.RecvWR{{SGE: []rdma.SGE{{Addr: b.own.Addr() + benchRecv, Length: 1024, LKey: b.own.LKey()}}}}
	sends := []rdma.SendWR{{Op: rdma.OpSend, SGE: []rdma.SGE{{Addr: b.own.Addr(), Length: 64, LKey: b.own.LKey()}}}}
	posts := []rdma.QPPost{{}}
	ack := make([]byte, bthLen+aethLen+icrcLen)
	var c icrc
	f := flow{src: b.peer.Addr(), dst: b.rx.sock.addr, srcPort: b.peer.Port(), dstPort: Port}
	turn := func() {
		putBTH(pkt, opSendOnly, 0, false, true, b.qp.num, b.qp.resp.psn)
		c.put(&f, pkt, 0)
		b.rx.datagram(b.peer, pkt)
		posts[0] = rdma.QPPost{QP: b.qp, Sends: sends}
		sends[0].Flags = rdma.SendSignaled
		b.rx.endBatch()
		b.p.dev.Post(posts)
		putBTH(ack, opAcknowledge, 0, false, false, b.qp.num, b.qp.sq.next-1)
		putAETH(ack[bthLen:], synACK, 1)
		c.put(&f, ack, 0)
		b.rx.datagram(b.peer, ack)
		b.rx.endBatch()
		if n := b.drain(); n != 2 {
			t.Fatalf("%d completions, want 2", n)
		}
		posts[0] = rdma.QPPost{QP: b.qp, Recvs: recvs}
		b.p.dev.Post(posts)
	}
	turn()
	time.Sleep(10 * time.Millisecond)
	if n := testing.AllocsPerRun(500, turn); n > 0.1 {
		t.Errorf("%.2f allocations for a message each way", n)
	}
}
