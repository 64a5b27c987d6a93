package rdmaconform

import (
	"net/netip"
	"syscall"
	"testing"

	"iserd/rdma"
)

// testQueueFull: a full queue says ENOMEM and takes what fits; polling makes room.
func testQueueFull(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 32, 0, 64) }})
	depth := ini.qp.Caps().MaxSendWR
	if env.ExactDepths && depth != stdQP.MaxSendWR {
		t.Fatalf("depth %d", depth)
	}
	if !env.ExactDepths {
		t.Skip("how deep a queue really is cannot be known here")
	}
	var wrs []rdma.SendWR
	for i := range depth + 3 {
		w := ini.to(rdma.OpRDMAWrite, uint64(i), 0, 8, tgt, 4096)
		if i != depth-1 {
			w.Flags = 0
		}
		wrs = append(wrs, w)
	}
	p := ini.try(nil, wrs)
	wantErr(t, "too many sends", p.Err, syscall.ENOMEM)
	if p.SendsPosted != depth {
		t.Fatalf("%d of %d", p.SendsPosted, depth)
	}
	if p := ini.try(nil, wrs[:1]); p.Err == nil {
		t.Error("a place is free before its completion was polled")
	}
	ini.reapOK(1)
	ini.send(wrs[:depth]...)
	ini.reapOK(1)
	// Receives.
	p = tgt.try([]rdma.RecvWR{{ID: 99, SGE: tgt.sges(0, 64)}}, nil)
	wantErr(t, "too many receives", p.Err, syscall.ENOMEM)
	if p.RecvsPosted != 0 {
		t.Error("posted all the same")
	}
	ini.send(ini.message(1, 0, 8))
	ini.reapOK(1)
	tgt.reapOK(1)
	tgt.recv(99, 1, 0, 64)
}

func testBadPosts(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{})
	caps := ini.qp.Caps()
	many := make([]rdma.SGE, max(caps.MaxSendSGE, caps.MaxRecvSGE)+1)
	for i := range many {
		many[i] = ini.sge(i, 1)
	}
	if p := ini.try(nil, []rdma.SendWR{{Op: rdma.OpSend, SGE: many}}); p.Err == nil || p.SendsPosted != 0 {
		t.Errorf("send of %d pieces: %v", len(many), p.Err)
	}
	if p := ini.try([]rdma.RecvWR{{SGE: many}}, nil); p.Err == nil || p.RecvsPosted != 0 {
		t.Errorf("receive of %d pieces: %v", len(many), p.Err)
	}
	if p := ini.try(nil, []rdma.SendWR{{Op: rdma.OpRDMARead + 1, SGE: ini.sges(0, 1)}}); p.Err == nil || p.SendsPosted != 0 {
		t.Errorf("no such operation: %v", p.Err)
	}
	exchange(t, tgt, ini) // no harm was done
}

func testShortReceive(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(7, 2, 0, 64) }})
	ini.recv(9, 1, 0, 64)
	ini.send(ini.message(1, 0, 65))
	env.wantFault(t, "sender", ini.reap(2)[0], rdma.StatusRemInvReqErr, rdma.StatusRemOpErr, rdma.StatusRetryExcErr)
	wcs := tgt.reap(2)
	if wcs[0].ID != 7 || wcs[1].ID != 8 {
		t.Errorf("%+v", wcs)
	}
	env.wantFault(t, "receiver", wcs[0], rdma.StatusLocLenErr, rdma.StatusRemInvReqErr)
	wantStatus(t, "receiver's next", wcs[1], rdma.StatusFlushed)
}

// afterLocalError demands the failed request's status and the flush of what was posted behind it.
func afterLocalError(t *testing.T, s *side, want ...rdma.Status) {
	t.Helper()
	wcs := s.reap(3) // the request, one behind it, one receive
	seen := map[uint64]rdma.WC{}
	for _, wc := range wcs {
		seen[wc.ID] = wc
	}
	s.env.wantFault(t, "the request", seen[1], want...)
	wantStatus(t, "the one behind it", seen[2], rdma.StatusFlushed)
	wantStatus(t, "the receive", seen[50], rdma.StatusFlushed)
}

func testBadLocalKey(t *testing.T, env Env) {
	for what, change := range map[string]func(*side, *rdma.SendWR){
		"unknown key":      func(_ *side, w *rdma.SendWR) { w.SGE[0].LKey ^= 0x5500 },
		"before the start": func(_ *side, w *rdma.SendWR) { w.SGE[0].Addr -= 4097 },
		"past the end":     func(s *side, w *rdma.SendWR) { w.SGE[0].Addr = s.at(sideMem - 9) },
		"far away":         func(_ *side, w *rdma.SendWR) { w.SGE[0].Addr = 1 << 60 },
		"closed region": func(s *side, w *rdma.SendWR) {
			m, err := s.pd.RegMR(s.mem(0, 4096), 0)
			must(t, err)
			w.SGE[0] = rdma.SGE{Addr: m.Addr(), Length: 10, LKey: m.LKey()}
			must(t, m.Close())
		},
		"READ into memory not writable": func(s *side, w *rdma.SendWR) {
			m, err := s.pd.RegMR(s.mem(0, 4096), 0)
			must(t, err)
			s.t.Cleanup(func() { _ = m.Close() }) // before the protection domain's
			w.Op, w.SGE[0] = rdma.OpRDMARead, rdma.SGE{Addr: m.Addr(), Length: 10, LKey: m.LKey()}
		},
	} {
		t.Run(what, func(t *testing.T) {
			tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 4, 0, 64) }})
			ini.recv(50, 1, 0, 64)
			w := ini.message(1, 0, 10)
			w.RemoteAddr, w.RKey = tgt.at(0), tgt.mr.RKey()
			change(ini, &w)
			ini.send(w, ini.message(2, 0, 10))
			afterLocalError(t, ini, rdma.StatusLocProtErr, rdma.StatusLocLenErr, rdma.StatusLocAccessErr)
		})
	}
}

func testBadRemote(t *testing.T, env Env) {
	if env.NoAccessChecks {
		t.Skip("remote accesses are not checked here")
	}
	for what, c := range map[string]struct {
		op     rdma.SendOp
		access rdma.Access // of a region of 4096 bytes
		change func(w *rdma.SendWR, mr rdma.MR)
	}{
		"write, unknown key":   {rdma.OpRDMAWrite, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RKey ^= 0x5500 }},
		"read, unknown key":    {rdma.OpRDMARead, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RKey ^= 0x5500 }},
		"write, key 0":         {rdma.OpRDMAWrite, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RKey = 0 }},
		"write before start":   {rdma.OpRDMAWrite, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RemoteAddr-- }},
		"write past end":       {rdma.OpRDMAWrite, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RemoteAddr += 4087 }},
		"read past end":        {rdma.OpRDMARead, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RemoteAddr += 4087 }},
		"write, address wraps": {rdma.OpRDMAWrite, fullAccess, func(w *rdma.SendWR, _ rdma.MR) { w.RemoteAddr = ^uint64(0) - 4 }},
		"write not allowed":    {rdma.OpRDMAWrite, rdma.AccessLocalWrite | rdma.AccessRemoteRead, func(*rdma.SendWR, rdma.MR) {}},
		"read not allowed":     {rdma.OpRDMARead, rdma.AccessLocalWrite | rdma.AccessRemoteWrite, func(*rdma.SendWR, rdma.MR) {}},
		"write, region closed": {rdma.OpRDMAWrite, fullAccess, func(_ *rdma.SendWR, mr rdma.MR) { _ = mr.Close() }},
		"read, region closed":  {rdma.OpRDMARead, fullAccess, func(_ *rdma.SendWR, mr rdma.MR) { _ = mr.Close() }},
	} {
		t.Run(what, func(t *testing.T) {
			tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 1, 0, 64) }})
			tgt.recv(50, 1, 64, 64)
			mr, err := ini.pd.RegMR(ini.mem(8192, 4096), c.access)
			must(t, err)
			t.Cleanup(func() { _ = mr.Close() }) // before the protection domain's
			fill(ini.mem(0, 65536), 3)
			fill(tgt.mem(0, 65536), 4)
			w := rdma.SendWR{ID: 1, Op: c.op, Flags: rdma.SendSignaled, SGE: tgt.sges(4096, 10), RemoteAddr: mr.Addr(), RKey: mr.RKey()}
			c.change(&w, mr)
			tgt.send(w, tgt.message(2, 0, 10))
			wcs := tgt.reap(4)
			seen := map[uint64]rdma.WC{}
			for _, wc := range wcs {
				seen[wc.ID] = wc
			}
			wantStatus(t, "the request", seen[1], rdma.StatusRemAccessErr, rdma.StatusRemInvReqErr, rdma.StatusRemOpErr)
			wantStatus(t, "the one behind it", seen[2], rdma.StatusFlushed)
			wantStatus(t, "a receive", seen[50], rdma.StatusFlushed)
			check(t, "the peer's memory", ini.mem(0, 65536), 3)
			check(t, "our memory", tgt.mem(0, 65536), 4)
		})
	}
}

// testWrongInvalidate: a key that the peer does not know kills its queue pair.
func testWrongInvalidate(t *testing.T, env Env) {
	if env.NoInvalidate {
		t.Skip("no SEND_WITH_INV here")
	}
	tgt, ini := connect(t, &env, options{})
	ini.recv(5, 2, 0, 64)
	m := tgt.message(1, 0, 10)
	m.Op, m.InvRKey = rdma.OpSendWithInv, ini.mr.RKey()^0x5500
	tgt.send(m)
	wcs := ini.reap(2)
	if wcs[0].Status == rdma.StatusSuccess {
		t.Errorf("%+v", wcs[0])
	}
	wantStatus(t, "the next receive", wcs[1], rdma.StatusFlushed)
}

// testRNRWaits: without a receive the message waits, with RNR retries without end.
func testRNRWaits(t *testing.T, env Env) {
	if env.NoRNR {
		t.Skip("no RNR here")
	}
	tgt, ini := connect(t, &env, options{})
	must(t, tgt.qp.SetMinRNRTimer(1))
	fill(ini.mem(0, 100), 1)
	ini.send(ini.message(1, 0, 50), ini.message(2, 50, 50))
	ini.quiet()
	tgt.recv(10, 2, 0, 50)
	ini.reapOK(2)
	tgt.reapOK(2)
	check(t, "messages", tgt.mem(0, 100), 1)
}

// testRNRFails: the number of retries is what the accepting side said.
func testRNRFails(t *testing.T, env Env) {
	if env.NoRNR {
		t.Skip("no RNR here")
	}
	p := stdParam
	p.RNRRetryCount = 1
	tgt, ini := connect(t, &env, options{accept: p})
	must(t, tgt.qp.SetMinRNRTimer(1))
	ini.send(ini.message(1, 0, 50), ini.message(2, 0, 50))
	wcs := ini.reap(2)
	if wcs[0].ID != 1 || wcs[1].ID != 2 {
		t.Errorf("%+v", wcs)
	}
	wantStatus(t, "the message", wcs[0], rdma.StatusRNRRetryExcErr)
	wantStatus(t, "the next", wcs[1], rdma.StatusFlushed)
	tgt.quiet()
}

// testFlushInOrder: everything posted comes back, each queue in its order.
func testFlushInOrder(t *testing.T, env Env) {
	tgt, _ := connect(t, &env, options{prepare: func(s *side) { s.recv(100, 32, 0, 64) }})
	must(t, tgt.qp.SetError())
	for i, wc := range tgt.reap(32) {
		if wc.ID != uint64(100+i) || wc.Status != rdma.StatusFlushed || wc.QPNum != tgt.qp.Num() {
			t.Errorf("receive %d: %+v", i, wc)
		}
	}
	must(t, tgt.qp.SetError()) // again does nothing
	tgt.quiet()
	// Sends posted afterwards are flushed too, unsignaled ones as well.
	w := tgt.message(1, 0, 10)
	w.Flags = 0
	tgt.send(w, tgt.message(2, 0, 10))
	for i, wc := range tgt.reap(2) {
		if wc.ID != uint64(1+i) || wc.Status != rdma.StatusFlushed {
			t.Errorf("send %d: %+v", i, wc)
		}
	}
}

func testPostAfterError(t *testing.T, env Env) {
	if env.NoFlushAfterError {
		t.Skip("receives posted after an error may never complete here")
	}
	tgt, _ := connect(t, &env, options{})
	must(t, tgt.qp.SetError())
	tgt.recv(1, 2, 0, 64)
	for i, wc := range tgt.reap(2) {
		if wc.ID != uint64(1+i) || wc.Status != rdma.StatusFlushed {
			t.Errorf("receive %d: %+v", i, wc)
		}
	}
}

// testPeerGone: a peer whose queue pair is in error does not answer.
func testPeerGone(t *testing.T, env Env) {
	if env.NoRetry {
		t.Skip("a peer's silence is not noticed here")
	}
	p := stdParam
	p.RetryCount = 1 // so that it is noticed soon
	tgt, ini := connect(t, &env, options{connect: p, prepare: func(s *side) { s.recv(1, 1, 0, 64) }})
	must(t, tgt.qp.SetError())
	ini.send(ini.message(1, 0, 10), ini.message(2, 0, 10))
	wcs := ini.reap(2)
	wantStatus(t, "the message", wcs[0], rdma.StatusRetryExcErr, rdma.StatusRemOpErr, rdma.StatusFlushed)
	wantStatus(t, "the next", wcs[1], rdma.StatusFlushed)
}

// testPostNotConnected: receives may be posted before the accept, sends not.
func testPostNotConnected(t *testing.T, env Env) {
	tn, in := newNode(t, &env, env.Target), newNode(t, &env, env.Initiator)
	l := tn.listen(netip.AddrPortFrom(env.addr(), 0))
	ini := newSide(in, in.resolve(l.Addr()), stdQP)
	ini.recv(1, 4, 0, 64)
	if p := ini.try(nil, []rdma.SendWR{ini.message(1, 0, 10)}); p.Err == nil || p.SendsPosted != 0 {
		t.Errorf("send: %v", p.Err)
	}
	must(t, ini.qp.SetError())
	for _, wc := range ini.reap(4) {
		wantStatus(t, "receive", wc, rdma.StatusFlushed)
	}
}
