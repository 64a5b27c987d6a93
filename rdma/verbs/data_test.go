//go:build linux && cgo && !nordma

package verbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/verbs"
)

func recvs(s *side, n int) []rdma.RecvWR {
	out := make([]rdma.RecvWR, n)
	for i := range out {
		out[i] = rdma.RecvWR{ID: uint64(1000 + i), SGE: s.sge(i*64%(sideMem/2), 64)}
	}
	return out
}

func sends(s *side, n int, flags rdma.SendFlags) []rdma.SendWR {
	out := make([]rdma.SendWR, n)
	for i := range out {
		out[i] = rdma.SendWR{ID: uint64(2000 + i), SGE: s.sge(sideMem/2+i*64%(sideMem/2), 64), Flags: flags}
	}
	return out
}

func TestBatchIsOneCrossing(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, nil)
	before, _ := verbs.StatsOf(p)
	tgt.post(recvs(tgt, 32), nil)
	mid, _ := verbs.StatsOf(p)
	if d := mid.Sub(before); d.Posts != 1 || d.Doorbells != 1 || d.Recvs != 32 {
		t.Fatalf("32 receives: %+v", d)
	}
	// Receives and sends of one queue pair go in one crossing, with two doorbells.
	list := sends(ini, 32, 0)
	list[31].Flags = rdma.SendSignaled
	ini.post(recvs(ini, 8), list)
	after, _ := verbs.StatsOf(p)
	if d := after.Sub(mid); d.Posts != 1 || d.Doorbells != 2 || d.Recvs != 8 || d.Sends != 32 {
		t.Fatalf("32 sends: %+v", d)
	}
	if wc := ini.reapOK(1)[0]; wc.ID != 2031 {
		t.Fatalf("only the last send is signaled: %+v", wc)
	}
	for i, wc := range tgt.reapOK(32) {
		if wc.ID != uint64(1000+i) || wc.ByteLen != 64 {
			t.Fatalf("receive %d: %+v", i, wc)
		}
	}
	tgt.close()
	ini.close()
}

// Both ends are on one device here, so one Post can serve both.
func TestPostSeveralQPs(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, nil)
	posts := []rdma.QPPost{
		{QP: tgt.qp, Recvs: recvs(tgt, 4)},
		{QP: nil},
		{QP: ini.qp, Sends: sends(ini, 4, rdma.SendSignaled)},
		{QP: tgt.qp}, // nothing to do is no error
	}
	before, _ := verbs.StatsOf(p)
	tgt.dev.Post(posts)
	after, _ := verbs.StatsOf(p)
	if d := after.Sub(before); d.Posts != 1 || d.Doorbells != 2 {
		t.Fatalf("%+v", d)
	}
	if posts[0].RecvsPosted != 4 || posts[2].SendsPosted != 4 || posts[0].Err != nil || posts[2].Err != nil || posts[3].Err != nil {
		t.Fatalf("%+v", posts)
	}
	if !errors.Is(posts[1].Err, syscall.EINVAL) {
		t.Fatalf("post without a queue pair: %v", posts[1].Err)
	}
	ini.reapOK(4)
	tgt.reapOK(4)
	tgt.close()
	ini.close()
}

func TestPostLargerThanOneBatch(t *testing.T) {
	p := newProvider(t)
	cfg := stdQP
	cfg.MaxRecvWR, cfg.MaxSendWR = 3000, 3000
	tn, in := newNode(t, p), newNode(t, p)
	l := listen(t, tn, addrPort(t, 0))
	ini := newSide(t, in, resolve(t, in, l.Addr()), cfg)
	must(t, ini.conn.Connect(stdParam))
	tgt := newSide(t, tn, tn.expect(rdma.EventConnectRequest).Conn, cfg)
	before, _ := verbs.StatsOf(p)
	tgt.post(recvs(tgt, 2500), nil)
	after, _ := verbs.StatsOf(p)
	if d := after.Sub(before); d.Posts != 3 || d.Recvs != 2500 {
		t.Fatalf("2500 receives: %+v", d)
	}
	must(t, tgt.conn.Accept(stdParam))
	in.expect(rdma.EventEstablished)
	tn.expect(rdma.EventEstablished)
	// 400 at a time, since the completion queue of the test holds 512; but with 300 posts of one queue pair each.
	for range 3 {
		posts := make([]rdma.QPPost, 300)
		list := sends(ini, 300, 0)
		list[299].Flags = rdma.SendSignaled
		for i := range posts {
			posts[i] = rdma.QPPost{QP: ini.qp, Sends: list[i : i+1]}
		}
		ini.dev.Post(posts)
		for i := range posts {
			if posts[i].Err != nil || posts[i].SendsPosted != 1 {
				t.Fatalf("post %d: %+v", i, posts[i])
			}
		}
		ini.reapOK(1)
		tgt.reapOK(300)
	}
	tgt.close()
	ini.close()
}

func TestPostRefuses(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) { s.post(recvs(s, 64), nil) })
	good := sends(ini, 3, rdma.SendSignaled)
	many := make([]rdma.SGE, ini.qp.Caps().MaxSendSGE+1)
	manyRecv := make([]rdma.SGE, ini.qp.Caps().MaxRecvSGE+1)
	for name, c := range map[string]struct {
		recv []rdma.RecvWR
		bad  rdma.SendWR
		want error
		text string
	}{
		"operation": {nil, rdma.SendWR{Op: 9}, syscall.EINVAL, "OP(9)"},
		"pieces":    {nil, rdma.SendWR{SGE: many}, rdma.ErrTooBig, "allows"},
		"inline":    {nil, rdma.SendWR{SGE: ini.sge(0, ini.qp.Caps().MaxInline+1), Flags: rdma.SendInline}, rdma.ErrTooBig, "inline"},
	} {
		t.Run(name, func(t *testing.T) {
			posts := []rdma.QPPost{{QP: ini.qp, Sends: []rdma.SendWR{good[0], good[1], c.bad, good[2]}}}
			ini.dev.Post(posts)
			if got := posts[0]; got.SendsPosted != 2 || !errors.Is(got.Err, c.want) || !strings.Contains(got.Err.Error(), c.text) {
				t.Fatalf("%d posted, %v", got.SendsPosted, got.Err)
			}
			ini.reapOK(2) // what came before the bad one was really posted
			tgt.reapOK(2)
		})
	}
	t.Run("receive", func(t *testing.T) {
		posts := []rdma.QPPost{{QP: ini.qp, Recvs: []rdma.RecvWR{recvs(ini, 1)[0], {SGE: manyRecv}}, Sends: good}}
		ini.dev.Post(posts)
		if got := posts[0]; got.RecvsPosted != 1 || got.SendsPosted != 0 || !errors.Is(got.Err, rdma.ErrTooBig) {
			t.Fatalf("%+v", got)
		}
	})
	// B123: a full send queue is an OpError with ENOMEM, and says how many were taken.
	t.Run("B123 full send queue", func(t *testing.T) {
		if iWARP(ini.dev) {
			t.Skip("the kernel empties the queue of soft-iWARP while it is filled")
		}
		n := ini.qp.Caps().MaxSendWR + 10
		posts := []rdma.QPPost{{QP: tgt.qp, Recvs: nil}, {QP: ini.qp, Sends: sends(ini, n, 0)}}
		for i := range posts[1].Sends {
			posts[1].Sends[i] = rdma.SendWR{Op: rdma.OpRDMAWrite, SGE: ini.sge(0, 8), RemoteAddr: tgt.mr.Addr(), RKey: tgt.mr.RKey()}
		}
		ini.dev.Post(posts)
		var op *rdma.OpError
		if !errors.As(posts[1].Err, &op) || op.Errno != syscall.ENOMEM || posts[1].SendsPosted >= n {
			t.Fatalf("%d of %d posted, %v", posts[1].SendsPosted, n, posts[1].Err)
		}
		t.Logf("%d of %d posted", posts[1].SendsPosted, n)
	})
	tgt.close()
	must(t, ini.qp.Close())
	posts := []rdma.QPPost{{QP: ini.qp, Sends: good}}
	ini.dev.Post(posts)
	if !errors.Is(posts[0].Err, rdma.ErrClosed) {
		t.Fatalf("post on a closed queue pair: %v", posts[0].Err)
	}
	ini.close()
}

func TestSendWithInvalidate(t *testing.T) {
	labAddr(t)
	if onRealDevice() {
		t.Skip("a real device invalidates keys of fast registration and memory windows only, which user space cannot make here")
	}
	p := newProvider(t)
	tgt, ini := connect(t, p, nil)
	mr, err := ini.pd.RegMR(ini.arena.Bytes()[:4096], rdma.AccessRemoteWrite)
	must(t, err)
	ini.post(recvs(ini, 2), nil)
	tgt.post(nil, []rdma.SendWR{
		{ID: 1, Op: rdma.OpRDMAWrite, SGE: tgt.sge(0, 16), RemoteAddr: mr.Addr(), RKey: mr.RKey()},
		{ID: 2, Op: rdma.OpSendWithInv, InvRKey: mr.RKey(), SGE: tgt.sge(0, 60), Flags: rdma.SendSignaled | rdma.SendSolicited}})
	if tgt.reapOK(1)[0].ID != 2 {
		t.Fatal("wrong completion")
	}
	if wc := ini.reapOK(1)[0]; !wc.WithInv || wc.InvRKey != mr.RKey() {
		t.Fatalf("%+v", wc)
	}
	tgt.post(nil, []rdma.SendWR{{ID: 3, Op: rdma.OpRDMAWrite, SGE: tgt.sge(0, 16), RemoteAddr: mr.Addr(), RKey: mr.RKey()}})
	if wc := tgt.reap(1)[0]; wc.Status != rdma.StatusRemAccessErr || wc.ID != 3 {
		t.Fatalf("write after the key was invalidated: %+v", wc)
	}
	must(t, mr.Close())
	tgt.close()
	ini.close()
}

// An access violation: the requester hears REM_ACCESS_ERR, everything behind it is flushed, both ends are in error. The
// responder's device tells by an asynchronous event, which rxe does not send.
func TestAccessError(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) { s.post(recvs(s, 2), nil) })
	if iWARP(tgt.dev) {
		tgt.close()
		ini.close()
		t.Skip("iWARP does not tell the requester of a write")
	}
	ini.post(nil, []rdma.SendWR{
		{ID: 1, Op: rdma.OpRDMAWrite, SGE: ini.sge(0, 16), RemoteAddr: tgt.mr.Addr() + sideMem, RKey: tgt.mr.RKey(), Flags: rdma.SendSignaled},
		{ID: 2, SGE: ini.sge(0, 16)}})
	wcs := ini.reap(2)
	if wcs[0].Status != rdma.StatusRemAccessErr || wcs[0].ID != 1 || wcs[1].Status != rdma.StatusFlushed || wcs[1].ID != 2 {
		t.Fatalf("%+v", wcs)
	}
	if !onRealDevice() {
		select {
		case ev := <-tgt.dev.Events():
			if ev.Type != rdma.AsyncQPAccessErr || ev.QPNum != tgt.qp.Num() {
				t.Fatalf("%+v", ev)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no asynchronous event")
		}
	}
	must(t, tgt.qp.SetError())
	for _, wc := range tgt.reap(2) {
		if wc.Status != rdma.StatusFlushed {
			t.Fatalf("%+v", wc)
		}
	}
	tgt.close()
	ini.close()
}

func TestHotPathAllocatesNothing(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, nil)
	rposts := []rdma.QPPost{{QP: tgt.qp, Recvs: recvs(tgt, 16)}}
	list := sends(ini, 16, 0)
	list[15].Flags = rdma.SendSignaled
	sposts := []rdma.QPPost{{QP: ini.qp, Sends: list}}
	drain := func(s *side, n int) {
		for n > 0 {
			got, err := s.cq.Poll(s.wcs)
			if err != nil {
				t.Fatal(err)
			}
			n -= got
		}
	}
	if n := testing.AllocsPerRun(200, func() {
		tgt.dev.Post(rposts)
		ini.dev.Post(sposts)
		drain(tgt, 16)
		drain(ini, 1)
	}); n != 0 {
		t.Errorf("post and poll: %v allocations", n)
	}
	if n := testing.AllocsPerRun(200, func() {
		_ = tgt.cq.Arm()
		tgt.chan_.Wake()
		if _, err := tgt.chan_.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
		tgt.dev.Post(rposts)
		ini.dev.Post(sposts)
		if _, err := tgt.chan_.Wait(-1); err != nil {
			t.Fatal(err)
		}
		drain(tgt, 16)
		drain(ini, 1)
	}); n != 0 {
		t.Errorf("arm, wake and wait: %v allocations", n)
	}
	tgt.close()
	ini.close()
}

func BenchmarkEcho(b *testing.B) {
	for _, depth := range []int{1, 8, 32} {
		b.Run("depth="+itoa(depth), func(b *testing.B) { benchEcho(b, depth) })
	}
}

// benchEcho is the pattern of an iSER read, both ends in one thread: a command comes by SEND; the answer is an
// unsignaled RDMA WRITE of 4 KiB and a signaled SEND.
func benchEcho(b *testing.B, depth int) {
	p := newProvider(b)
	tgt, ini := connect(b, p, nil)
	tr := make([]rdma.RecvWR, depth)
	ir := make([]rdma.RecvWR, depth)
	cmd := make([]rdma.SendWR, depth)
	rsp := make([]rdma.SendWR, 2*depth)
	for i := range depth {
		tr[i] = rdma.RecvWR{ID: uint64(i), SGE: tgt.sge(i*128, 128)}
		ir[i] = rdma.RecvWR{ID: uint64(i), SGE: ini.sge(i*128, 128)}
		cmd[i] = rdma.SendWR{ID: uint64(i), SGE: ini.sge(8192+i*128, 76), Flags: rdma.SendSignaled | rdma.SendInline}
		rsp[2*i] = rdma.SendWR{Op: rdma.OpRDMAWrite, SGE: tgt.sge(65536+i*4096, 4096), RemoteAddr: ini.mr.Addr() + 65536 + uint64(i)*4096, RKey: ini.mr.RKey()}
		rsp[2*i+1] = rdma.SendWR{ID: uint64(i), SGE: tgt.sge(8192+i*128, 76), Flags: rdma.SendSignaled | rdma.SendInline}
	}
	tgt.post(tr, nil)
	drain := func(s *side, n int) {
		for n > 0 {
			got, err := s.cq.Poll(s.wcs)
			if err != nil {
				b.Fatal(err)
			}
			for i := range s.wcs[:got] {
				if s.wcs[i].Status != rdma.StatusSuccess {
					b.Fatal(s.wcs[i].Err())
				}
			}
			n -= got
		}
	}
	ipost := []rdma.QPPost{{QP: ini.qp, Recvs: ir, Sends: cmd}}
	tpost := []rdma.QPPost{{QP: tgt.qp, Recvs: tr, Sends: rsp}}
	before, _ := verbs.StatsOf(p)
	b.ReportAllocs()
	b.ResetTimer()
	ops := 0
	for b.Loop() {
		ini.dev.Post(ipost)
		drain(tgt, depth)
		tgt.dev.Post(tpost)
		drain(tgt, depth)
		drain(ini, 2*depth)
		ops += depth
	}
	b.StopTimer()
	after, _ := verbs.StatsOf(p)
	d := after.Sub(before)
	b.ReportMetric(float64(d.Crossings())/float64(ops), "crossings/op")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(ops), "ns/io")
	tgt.close()
	ini.close()
}

// BenchmarkEmptyPoll is the price of one crossing.
func BenchmarkEmptyPoll(b *testing.B) {
	p := newProvider(b)
	ch, err := device(b, p).NewCompletionChannel()
	must(b, err)
	cq, err := ch.CreateCQ(64, 0)
	must(b, err)
	wcs := make([]rdma.WC, 32)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := cq.Poll(wcs); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
	must(b, cq.Close())
	must(b, ch.Close())
}

// BenchmarkPost posts RDMA WRITEs of nothing: what marshalling and the crossing cost, beside what the device does.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 32} {
		b.Run("requests="+itoa(n), func(b *testing.B) {
			p := newProvider(b)
			tgt, ini := connect(b, p, nil)
			list := make([]rdma.SendWR, n)
			for i := range list {
				list[i] = rdma.SendWR{Op: rdma.OpRDMAWrite, RemoteAddr: tgt.mr.Addr(), RKey: tgt.mr.RKey()}
			}
			list[n-1].Flags = rdma.SendSignaled
			posts := []rdma.QPPost{{QP: ini.qp, Sends: list}}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				ini.dev.Post(posts)
				for got := 0; got == 0; {
					got, _ = ini.cq.Poll(ini.wcs)
				}
			}
			b.StopTimer()
			tgt.close()
			ini.close()
		})
	}
}
