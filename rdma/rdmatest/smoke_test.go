package rdmatest

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"iserd/rdma"
)

// end is one end of a connection with everything that it needs.
type end struct {
	t     testing.TB
	p     *Provider
	ch    rdma.EventChannel
	dev   rdma.Device
	conn  rdma.Conn
	pd    rdma.PD
	cc    rdma.CompletionChannel
	cq    rdma.CQ
	qp    rdma.QP
	arena *rdma.Arena
	mr    rdma.MR
	wcs   [16]rdma.WC
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newEnd(t testing.TB, p *Provider) *end {
	e := &end{t: t, p: p}
	var err error
	e.ch, err = p.NewEventChannel()
	must(t, err)
	return e
}

var testQP = rdma.QPConfig{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 64}

// arm gives the end's connection a queue pair.
func (e *end) arm(cfg rdma.QPConfig) {
	e.t.Helper()
	var err error
	e.dev = e.conn.Device()
	e.pd, err = e.dev.AllocPD()
	must(e.t, err)
	e.cc, err = e.dev.NewCompletionChannel()
	must(e.t, err)
	e.cq, err = e.cc.CreateCQ(64, 0)
	must(e.t, err)
	e.arena, err = rdma.MapArena(64<<10, false)
	must(e.t, err)
	e.mr, err = e.pd.RegMR(e.arena.Bytes(), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	must(e.t, err)
	cfg.SendCQ, cfg.RecvCQ = e.cq, e.cq
	e.qp, err = e.conn.CreateQP(e.pd, cfg)
	must(e.t, err)
}

func (e *end) next(want rdma.EventType) rdma.Event {
	e.t.Helper()
	ev, err := e.ch.Next()
	must(e.t, err)
	if ev.Type != want {
		e.t.Fatalf("%s, want %s", ev.Type, want)
	}
	return ev
}

func (e *end) sge(off, n int) rdma.SGE {
	return rdma.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *end) mem(off, n int) []byte { return e.arena.Bytes()[off : off+n] }

func (e *end) recv(id uint64, off, n int) error {
	p := [1]rdma.QPPost{{QP: e.qp, Recvs: []rdma.RecvWR{{ID: id, SGE: []rdma.SGE{e.sge(off, n)}}}}}
	e.dev.Post(p[:])
	return p[0].Err
}

func (e *end) send(wrs ...rdma.SendWR) error {
	p := [1]rdma.QPPost{{QP: e.qp, Sends: wrs}}
	e.dev.Post(p[:])
	return p[0].Err
}

// poll waits for exactly n completions.
func (e *end) poll(n int) []rdma.WC {
	e.t.Helper()
	var out []rdma.WC
	deadline := time.Now().Add(5 * time.Second)
	for len(out) < n {
		k, err := e.cq.Poll(e.wcs[:])
		must(e.t, err)
		out = append(out, e.wcs[:k]...)
		if time.Now().After(deadline) {
			e.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
		}
		if k == 0 {
			time.Sleep(time.Millisecond / 4)
		}
	}
	if len(out) > n {
		e.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
	}
	return out
}

func (e *end) close() {
	e.t.Helper()
	if e.conn != nil {
		must(e.t, e.conn.Disconnect())
	}
	if e.qp != nil {
		must(e.t, e.qp.Close())
		must(e.t, e.cq.Close())
		must(e.t, e.cc.Close())
		must(e.t, e.mr.Close())
		must(e.t, e.pd.Close())
		must(e.t, e.arena.Close())
	}
	if e.conn != nil {
		must(e.t, e.conn.Close())
	}
	must(e.t, e.ch.Close())
}

var testParam = rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}

// connect makes a connection; target and initiator.
func connect(t testing.TB, tp, ip *Provider) (tgt, ini *end) {
	t.Helper()
	tgt, ini = newEnd(t, tp), newEnd(t, ip)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:0"), 8)
	must(t, err)
	ini.conn, err = ini.ch.Resolve(context.Background(), netip.AddrPort{}, l.Addr())
	must(t, err)
	ini.arm(testQP)
	must(t, ini.conn.Connect(testParam))
	tgt.conn = tgt.next(rdma.EventConnectRequest).Conn
	tgt.arm(testQP)
	must(t, tgt.conn.Accept(testParam))
	ini.next(rdma.EventEstablished)
	tgt.next(rdma.EventEstablished)
	must(t, l.Close())
	return tgt, ini
}

func newPair(t testing.TB, cfg Config) (f *Fabric, tgt, ini *end) {
	t.Helper()
	f, tp, ip := Pair(cfg)
	tgt, ini = connect(t, tp, ip)
	t.Cleanup(func() {
		tgt.close()
		ini.close()
		if l := f.Leaks(); len(l) > 0 {
			t.Errorf("left open: %q", l)
		}
		must(t, tp.Close())
		must(t, ip.Close())
	})
	return f, tgt, ini
}

func TestSendWriteRead(t *testing.T) {
	_, tgt, ini := newPair(t, Config{Misuse: FailOnMisuse(t)})
	must(t, tgt.recv(7, 0, 100))
	copy(ini.mem(0, 64), "hello, target")
	copy(ini.mem(1000, 64), "written into it")
	must(t, ini.send(
		rdma.SendWR{ID: 1, Op: rdma.OpRDMAWrite, SGE: []rdma.SGE{ini.sge(1000, 15)}, RemoteAddr: tgt.mr.Addr() + 5000, RKey: tgt.mr.RKey()},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: []rdma.SGE{ini.sge(0, 5), ini.sge(5, 8)}}))
	if wc := ini.poll(1)[0]; wc.ID != 2 || wc.Op != rdma.WCSend || wc.Err() != nil {
		t.Errorf("%+v", wc)
	}
	if wc := tgt.poll(1)[0]; wc.ID != 7 || wc.Op != rdma.WCRecv || wc.ByteLen != 13 || wc.Err() != nil || wc.QPNum != tgt.qp.Num() {
		t.Errorf("%+v", wc)
	}
	if !bytes.Equal(tgt.mem(0, 13), []byte("hello, target")) || !bytes.Equal(tgt.mem(5000, 15), []byte("written into it")) {
		t.Errorf("%q %q", tgt.mem(0, 13), tgt.mem(5000, 15))
	}
	must(t, tgt.send(rdma.SendWR{ID: 3, Op: rdma.OpRDMARead, Flags: rdma.SendSignaled, SGE: []rdma.SGE{tgt.sge(6000, 4), tgt.sge(7000, 9)},
		RemoteAddr: ini.mr.Addr(), RKey: ini.mr.RKey()}))
	if wc := tgt.poll(1)[0]; wc.ID != 3 || wc.Op != rdma.WCRDMARead || wc.Err() != nil {
		t.Errorf("%+v", wc)
	}
	if string(tgt.mem(6000, 4))+string(tgt.mem(7000, 9)) != "hello, target" {
		t.Errorf("%q %q", tgt.mem(6000, 4), tgt.mem(7000, 9))
	}
}

// TestZeroAlloc is what whole-target tests stand on: a round of everything allocates nothing.
func TestZeroAlloc(t *testing.T) {
	_, tgt, ini := newPair(t, Config{Misuse: FailOnMisuse(t)})
	rsge, isge, tsge := []rdma.SGE{tgt.sge(0, 100)}, []rdma.SGE{ini.sge(0, 50)}, []rdma.SGE{tgt.sge(4096, 4096)}
	recvs := []rdma.RecvWR{{ID: 1, SGE: rsge}}
	isends := []rdma.SendWR{{ID: 2, Op: rdma.OpSend, Flags: rdma.SendSignaled | rdma.SendInline, SGE: isge}}
	tsends := []rdma.SendWR{
		{ID: 3, Op: rdma.OpRDMAWrite, SGE: tsge, RemoteAddr: ini.mr.Addr() + 8192, RKey: ini.mr.RKey()},
		{ID: 4, Op: rdma.OpRDMARead, Flags: rdma.SendSignaled, SGE: tsge, RemoteAddr: ini.mr.Addr() + 16384, RKey: ini.mr.RKey()}}
	tpost, ipost := make([]rdma.QPPost, 1), make([]rdma.QPPost, 1)
	if n := testing.AllocsPerRun(200, func() {
		must(t, tgt.cq.Arm())
		tpost[0] = rdma.QPPost{QP: tgt.qp, Recvs: recvs, Sends: tsends}
		tgt.dev.Post(tpost)
		ipost[0] = rdma.QPPost{QP: ini.qp, Sends: isends}
		ini.dev.Post(ipost)
		if tpost[0].Err != nil || ipost[0].Err != nil {
			t.Fatal(tpost[0].Err, ipost[0].Err)
		}
		if n, err := tgt.cc.Wait(time.Second); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		tgt.cc.Wake()
		if n, err := tgt.cc.Wait(time.Second); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		if n, _ := tgt.cq.Poll(tgt.wcs[:]); n != 2 || tgt.wcs[0].Status != 0 || tgt.wcs[1].Status != 0 {
			t.Fatal(n, tgt.wcs[:n])
		}
		if n, _ := ini.cq.Poll(ini.wcs[:]); n != 1 || ini.wcs[0].Status != 0 {
			t.Fatal(n, ini.wcs[:n])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRound(b *testing.B) {
	_, tgt, ini := newPair(b, Config{})
	recvs := []rdma.RecvWR{{ID: 1, SGE: []rdma.SGE{tgt.sge(0, 100)}}}
	isends := []rdma.SendWR{{ID: 2, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: []rdma.SGE{ini.sge(0, 76)}}}
	post := make([]rdma.QPPost, 1)
	b.ReportAllocs()
	for b.Loop() {
		post[0] = rdma.QPPost{QP: tgt.qp, Recvs: recvs}
		tgt.dev.Post(post)
		post[0] = rdma.QPPost{QP: ini.qp, Sends: isends}
		ini.dev.Post(post)
		n, _ := tgt.cq.Poll(tgt.wcs[:])
		m, _ := ini.cq.Poll(ini.wcs[:])
		if n != 1 || m != 1 {
			b.Fatal(n, m)
		}
	}
}
