package rdmaconform

import (
	"testing"

	"iserd/rdma"
)

func testSend(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(10, 8, 0, 1024) }})
	for i, n := range []int{1, 2, 75, 76, 77, 204, 1023, 1024} {
		fill(ini.mem(0, n), i)
		ini.send(ini.message(uint64(20+i), 0, n))
		if wc := ini.reapOK(1)[0]; wc.ID != uint64(20+i) || wc.Op != rdma.WCSend {
			t.Errorf("%+v", wc)
		}
		if wc := tgt.reapOK(1)[0]; wc.ID != uint64(10+i) || wc.Op != rdma.WCRecv || wc.ByteLen != uint32(n) || wc.WithInv {
			t.Errorf("%+v", wc)
		}
		check(t, "message", tgt.mem(i*1024, n), i)
	}
}

// testSendPieces: pieces on either side need not match.
func testSendPieces(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	for i, c := range []struct{ a, b, x, y int }{{28, 48, 76, 100}, {1, 1, 1, 5}, {5000, 3000, 4000, 4000}, {10, 0, 3, 20}, {0, 10, 20, 3}, {4096, 4096, 8191, 1}} {
		n := c.a + c.b
		want := make([]byte, n)
		fill(want, i)
		copy(ini.mem(0, c.a), want)
		copy(ini.mem(100000, c.b), want[c.a:])
		tgt.send() // nothing at all is legal too
		if p := tgt.try([]rdma.RecvWR{{ID: 1, SGE: []rdma.SGE{tgt.sge(0, c.x), tgt.sge(100000, c.y)}}}, nil); p.Err != nil {
			t.Fatal(p.Err)
		}
		ini.send(rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: []rdma.SGE{ini.sge(0, c.a), ini.sge(100000, c.b)}})
		ini.reapOK(1)
		if wc := tgt.reapOK(1)[0]; wc.ByteLen != uint32(n) {
			t.Errorf("%+v", wc)
		}
		got := append(append([]byte{}, tgt.mem(0, min(n, c.x))...), tgt.mem(100000, max(0, n-c.x))...)
		check(t, "message", got, i)
	}
}

func testSendOrder(t *testing.T, env Env) {
	const n = 32
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, n, 0, 64) }})
	var wrs []rdma.SendWR
	for i := range n {
		ini.mem(i*64, 1)[0] = byte(i)
		wrs = append(wrs, ini.message(uint64(1000+i), i*64, i+1))
	}
	ini.send(wrs...)
	for i, wc := range ini.reapOK(n) {
		if wc.ID != uint64(1000+i) {
			t.Errorf("send %d completed as number %d", wc.ID-1000, i)
		}
	}
	for i, wc := range tgt.reapOK(n) {
		if wc.ID != uint64(i) || wc.ByteLen != uint32(i+1) || tgt.mem(i*64, 1)[0] != byte(i) {
			t.Errorf("receive %d: %+v", i, wc)
		}
	}
}

func testZeroLength(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	if p := tgt.try([]rdma.RecvWR{{ID: 1}, {ID: 2, SGE: tgt.sges(0, 64)}}, nil); p.Err != nil {
		t.Fatal(p.Err)
	}
	ini.send(rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.SendSignaled}, rdma.SendWR{ID: 4, Op: rdma.OpSend, Flags: rdma.SendSignaled})
	ini.reapOK(2)
	for _, wc := range tgt.reapOK(2) {
		if wc.ByteLen != 0 {
			t.Errorf("%+v", wc)
		}
	}
	ini.send(rdma.SendWR{ID: 5, Op: rdma.OpRDMAWrite, Flags: rdma.SendSignaled, RemoteAddr: tgt.at(0), RKey: tgt.mr.RKey()})
	ini.reapOK(1)
}

// testInline: the memory is free as soon as the post is back, and needs no key.
func testInline(t *testing.T, env Env) {
	if env.NoInline {
		t.Skip("no inline data here")
	}
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 8, 0, 128) }})
	if got := ini.qp.Caps().MaxInline; got < stdQP.MaxInline {
		t.Fatalf("inline of %d bytes, %d were asked for", got, stdQP.MaxInline)
	}
	for i, n := range []int{1, 76, 96} {
		fill(ini.mem(0, n), i)
		half := n / 2
		ini.send(rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.SendSignaled | rdma.SendInline,
			SGE: []rdma.SGE{{Addr: ini.at(0), Length: uint32(half), LKey: 0xBADBAD}, {Addr: ini.at(half), Length: uint32(n - half)}}})
		clear(ini.mem(0, n))
		ini.reapOK(1)
		if wc := tgt.reapOK(1)[0]; wc.ByteLen != uint32(n) {
			t.Errorf("%+v", wc)
		}
		check(t, "inline message", tgt.mem(i*128, n), i)
	}
	fill(ini.mem(0, 50), 9)
	wr := ini.to(rdma.OpRDMAWrite, 1, 0, 50, tgt, 70000)
	wr.Flags |= rdma.SendInline
	ini.send(wr)
	clear(ini.mem(0, 50))
	ini.reapOK(1)
	check(t, "inline write", tgt.mem(70000, 50), 9)
	if p := ini.try(nil, []rdma.SendWR{{Op: rdma.OpSend, Flags: rdma.SendInline, SGE: ini.sges(0, ini.qp.Caps().MaxInline+1)}}); p.Err == nil || p.SendsPosted != 0 {
		t.Errorf("inline data above the limit is taken: %v", p.Err)
	}
}

func testRDMAWrite(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	for i, n := range []int{1, 511, 4096, 65536, 65537} {
		fill(tgt.mem(0, n), i)
		clear(ini.mem(0, n+8192))
		tgt.send(tgt.to(rdma.OpRDMAWrite, uint64(i), 0, n, ini, 4096))
		if wc := tgt.reapOK(1)[0]; wc.ID != uint64(i) || wc.Op != rdma.WCRDMAWrite {
			t.Errorf("%+v", wc)
		}
		check(t, "written", ini.mem(4096, n), i)
		if ini.mem(4095, 1)[0] != 0 || ini.mem(4096+n, 1)[0] != 0 {
			t.Errorf("%d bytes: wrote beside", n)
		}
	}
	ini.quiet() // the peer learns nothing
}

func testRDMAWritePieces(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	want := make([]byte, 10000)
	fill(want, 5)
	copy(tgt.mem(0, 3333), want)
	copy(tgt.mem(50000, 6667), want[3333:])
	wr := tgt.to(rdma.OpRDMAWrite, 1, 0, 3333, ini, 123)
	wr.SGE = append(wr.SGE, tgt.sge(50000, 6667))
	tgt.send(wr)
	tgt.reapOK(1)
	check(t, "written", ini.mem(123, 10000), 5)
}

func testRDMARead(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	for i, n := range []int{1, 511, 4096, 65536, 65537} {
		fill(ini.mem(777, n), i)
		clear(tgt.mem(0, n+8192))
		tgt.send(tgt.to(rdma.OpRDMARead, uint64(i), 4096, n, ini, 777))
		if wc := tgt.reapOK(1)[0]; wc.ID != uint64(i) || wc.Op != rdma.WCRDMARead {
			t.Errorf("%+v", wc)
		}
		check(t, "read", tgt.mem(4096, n), i)
		if tgt.mem(4095, 1)[0] != 0 || tgt.mem(4096+n, 1)[0] != 0 {
			t.Errorf("%d bytes: read beside", n)
		}
	}
	ini.quiet()
}

func testRDMAReadPieces(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	if tgt.dev.Attr().MaxSGERead < 2 {
		t.Skip("the device reads into one piece only")
	}
	fill(ini.mem(0, 10000), 6)
	wr := tgt.to(rdma.OpRDMARead, 1, 0, 3333, ini, 0)
	wr.SGE = append(wr.SGE, tgt.sge(50000, 6667))
	tgt.send(wr)
	tgt.reapOK(1)
	check(t, "read", append(append([]byte{}, tgt.mem(0, 3333)...), tgt.mem(50000, 6667)...), 6)
}

func testLongMessages(t *testing.T, env Env) {
	const n = 1<<20 + 1234
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(1, 1, 0, n) }})
	fill(ini.mem(0, n), 1)
	ini.send(ini.message(1, 0, n))
	ini.reapOK(1)
	tgt.reapOK(1)
	check(t, "sent", tgt.mem(0, n), 1)
	fill(tgt.mem(0, n), 2)
	tgt.send(tgt.to(rdma.OpRDMAWrite, 1, 0, n, ini, 2<<20))
	tgt.reapOK(1)
	check(t, "written", ini.mem(2<<20, n), 2)
	clear(tgt.mem(0, n))
	tgt.send(tgt.to(rdma.OpRDMARead, 1, 0, n, ini, 2<<20))
	tgt.reapOK(1)
	check(t, "read", tgt.mem(0, n), 2)
}

// testWriteThenSend: when the message is there, so is what was written before it. That is how a target answers a READ.
func testWriteThenSend(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	for i := range 50 {
		ini.recv(1, 1, 0, 128)
		n := 1000 + i*777
		fill(tgt.mem(4096, n), i)
		w := tgt.to(rdma.OpRDMAWrite, 1, 4096, n, ini, 4096)
		w.Flags = 0
		tgt.send(w, tgt.message(2, 0, 76))
		ini.reapOK(1)
		check(t, "data", ini.mem(4096, n), i)
		if wc := tgt.reapOK(1)[0]; wc.ID != 2 {
			t.Errorf("%+v", wc)
		}
	}
}

// testFence: a fenced message waits for the READs before it, so that what it says about them is true.
func testFence(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	ini.recv(1, 1, 0, 128)
	fill(ini.mem(4096, 300000), 1)
	r := tgt.to(rdma.OpRDMARead, 1, 4096, 300000, ini, 4096)
	m := tgt.message(2, 0, 76)
	m.Flags |= rdma.SendFence
	tgt.send(r, m)
	if wcs := tgt.reapOK(2); wcs[0].ID != 1 || wcs[1].ID != 2 {
		t.Errorf("%+v", wcs)
	}
	check(t, "read", tgt.mem(4096, 300000), 1)
	ini.reapOK(1)
}

// testReadDepth: more READs than the peer answers at a time are posted at once; the queue pair must hold them back.
func testReadDepth(t *testing.T, env Env) {
	p := stdParam
	p.ResponderResources, p.InitiatorDepth = 2, 2
	tgt, ini := connect(t, &env, options{connect: p, accept: p})
	const n, count = 10000, 16
	var wrs []rdma.SendWR
	for i := range count {
		fill(ini.mem(i*n, n), i)
		wrs = append(wrs, tgt.to(rdma.OpRDMARead, uint64(i), i*n, n, ini, i*n))
	}
	tgt.send(wrs...)
	for i, wc := range tgt.reapOK(count) {
		if wc.ID != uint64(i) {
			t.Errorf("READ %d completed as number %d", wc.ID, i)
		}
		check(t, "read", tgt.mem(i*n, n), i)
	}
}

// testUnsignaled: only the signaled requests complete, and their completions free the places of all before them.
func testUnsignaled(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	for round := range 10 {
		tgt.recv(uint64(round*100), 16, 0, 64)
		var wrs []rdma.SendWR
		for i := range 16 {
			w := ini.message(uint64(i), 0, 10+i)
			if i%8 != 7 {
				w.Flags = 0
			}
			wrs = append(wrs, w)
		}
		ini.send(wrs...)
		if wcs := ini.reapOK(2); wcs[0].ID != 7 || wcs[1].ID != 15 {
			t.Errorf("%+v", wcs)
		}
		tgt.reapOK(16)
	}
	ini.quiet()
}

func testSignalAll(t *testing.T, env Env) {
	q := stdQP
	q.SignalAll = true
	tgt, ini := connect(t, &env, options{qp: q, prepare: func(s *side) { s.recv(0, 4, 0, 64) }})
	for i := range 4 {
		ini.send(rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGE: ini.sges(0, 10)})
	}
	if wcs := ini.reapOK(4); wcs[3].ID != 3 {
		t.Errorf("%+v", wcs)
	}
	tgt.reapOK(4)
}

// testBatch: one post for several queue pairs, receives and sends; an error of one does not stop the others.
func testBatch(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	const conns = 5
	var tgts, inis []*side
	for range conns {
		tgt, ini := connect(t, &env, options{tgtNode: tn, iNode: in})
		tgts, inis = append(tgts, tgt), append(inis, ini)
	}
	for round := range 4 {
		posts := make([]rdma.QPPost, conns)
		for i, s := range tgts {
			posts[i] = rdma.QPPost{QP: s.qp, Recvs: []rdma.RecvWR{{ID: 1, SGE: s.sges(0, 64)}, {ID: 2, SGE: s.sges(64, 64)}}}
		}
		tgts[0].dev.Post(posts)
		for i := range posts {
			if posts[i].Err != nil || posts[i].RecvsPosted != 2 || posts[i].SendsPosted != 0 {
				t.Fatalf("round %d, receives %d: %+v", round, i, posts[i])
			}
		}
		for i, s := range inis {
			fill(s.mem(0, 20), i)
			posts[i] = rdma.QPPost{QP: s.qp, Sends: []rdma.SendWR{s.message(1, 0, 20), s.message(2, 0, 20)}}
		}
		const bad = 2 // too many pieces in its second request
		one := inis[bad].sge(0, 1)
		many := []rdma.SGE{}
		for range inis[bad].qp.Caps().MaxSendSGE + 1 {
			many = append(many, one)
		}
		posts[bad].Sends[1].SGE = many
		inis[0].dev.Post(posts)
		for i := range posts {
			want := 2
			if i == bad {
				want = 1
			}
			if posts[i].SendsPosted != want || (posts[i].Err != nil) != (i == bad) {
				t.Fatalf("round %d, sends %d: %+v", round, i, posts[i])
			}
		}
		for i := range conns {
			n := 2
			if i == bad {
				n = 1
			}
			inis[i].reapOK(n)
			tgts[i].reapOK(n)
			check(t, "message", tgts[i].mem(0, 20), i)
			if i == bad { // use the receive up
				inis[i].send(inis[i].message(3, 0, 20))
				inis[i].reapOK(1)
				tgts[i].reapOK(1)
			}
		}
	}
}

func testSendWithInv(t *testing.T, env Env) {
	if env.NoInvalidate {
		t.Skip("no SEND_WITH_INV here")
	}
	if !env.Invalidates {
		t.Skip("regions cannot be invalidated by the peer here")
	}
	tgt, ini := connect(t, &env, options{})
	ini.recv(1, 2, 0, 64)
	extra, err := ini.pd.RegMR(ini.mem(1<<20, 4096), fullAccess)
	must(t, err)
	defer extra.Close()
	w := rdma.SendWR{ID: 1, Op: rdma.OpRDMAWrite, SGE: tgt.sges(0, 100), RemoteAddr: extra.Addr(), RKey: extra.RKey()}
	m := tgt.message(2, 0, 20)
	m.Op, m.InvRKey = rdma.OpSendWithInv, extra.RKey()
	tgt.send(w, m)
	tgt.reapOK(1)
	if wc := ini.reapOK(1)[0]; !wc.WithInv || wc.InvRKey != extra.RKey() || wc.ByteLen != 20 {
		t.Errorf("%+v", wc)
	}
	// The key is dead now.
	w.Flags = rdma.SendSignaled
	tgt.send(w)
	wantStatus(t, "write with an invalidated key", tgt.reap(1)[0], rdma.StatusRemAccessErr)
}

// testBothWays: both ends send and write at the same time.
func testBothWays(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 16, 0, 256) }})
	ini.recv(0, 16, 0, 256)
	for i := range 8 {
		fill(tgt.mem(100000+i*256, 256), i)
		fill(ini.mem(100000+i*256, 256), 100+i)
		tgt.send(tgt.message(1, 100000+i*256, 256), tgt.to(rdma.OpRDMAWrite, 2, 100000+i*256, 256, ini, 200000+i*256))
		ini.send(ini.message(1, 100000+i*256, 256), ini.to(rdma.OpRDMARead, 2, 300000+i*256, 256, tgt, 100000+i*256))
	}
	tgt.reapOK(24)
	ini.reapOK(24)
	for i := range 8 {
		check(t, "to the target", tgt.mem(i*256, 256), 100+i)
		check(t, "to the initiator", ini.mem(i*256, 256), i)
		check(t, "written", ini.mem(200000+i*256, 256), i)
		check(t, "read", ini.mem(300000+i*256, 256), i)
	}
}
