package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
)

// record collects misuse.
type record struct {
	mu   sync.Mutex
	seen map[Misuse]int
}

func (r *record) misuse(m Misuse, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[Misuse]int{}
	}
	r.seen[m]++
}

func (r *record) only(t *testing.T, m Misuse, n int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[m] != n || len(r.seen) > 1 {
		t.Errorf("%v, want %d of %q", r.seen, n, m)
	}
}

func status(t *testing.T, what string, wc rdma.WC, want rdma.Status) {
	t.Helper()
	if wc.Status != want {
		t.Errorf("%s: %s, want %s", what, wc.Status, want)
	}
}

func (e *end) message(id uint64) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: []rdma.SGE{e.sge(0, 10)}}
}

func (e *end) read(id uint64, peer *end) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpRDMARead, Flags: rdma.SendSignaled, SGE: []rdma.SGE{e.sge(0, 10)}, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
}

func TestReadDepthIsCounted(t *testing.T) {
	var r record
	_, tgt, ini := newPair(t, Config{Misuse: r.misuse})
	must(t, tgt.send(tgt.read(1, ini), tgt.read(2, ini), tgt.read(3, ini), tgt.read(4, ini)))
	r.only(t, MisuseReadDepth, 0)
	// Done, but nobody polled: the poster cannot know.
	must(t, tgt.send(tgt.read(5, ini)))
	r.only(t, MisuseReadDepth, 1)
	tgt.poll(5)
	must(t, tgt.send(tgt.read(6, ini)))
	r.only(t, MisuseReadDepth, 1)
	tgt.poll(1)
	if s := tgt.dev.(*Device).Stats(); s.ReadsOverDepth != 1 || s.MaxReads != 5 || s.RDMAReads != 6 {
		t.Errorf("%+v", s)
	}
}

// TestReadsOverlap: as many READs as granted go at a time, and completions keep their order.
func TestReadsOverlap(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	busy, most := 0, 0
	f.SetFaults(Faults{ReadTime: func(WorkInfo) time.Duration {
		busy++
		most = max(most, busy)
		return Held
	}})
	var wrs []rdma.SendWR
	for i := range 6 {
		wrs = append(wrs, tgt.read(uint64(i), ini))
	}
	fenced := tgt.message(6)
	fenced.Flags |= rdma.SendFence
	must(t, ini.recv(1, 0, 64))
	must(t, tgt.send(append(wrs, fenced)...))
	if most != 4 {
		t.Errorf("%d READs at a time, 4 were granted", most)
	}
	if n, _ := tgt.cq.Poll(tgt.wcs[:]); n != 0 {
		t.Error("held READs are done")
	}
	f.ReleaseReads()
	if n, _ := ini.cq.Poll(ini.wcs[:]); n != 0 {
		t.Error("the fence let a message through")
	}
	f.ReleaseReads()
	for i, wc := range tgt.poll(7) {
		if wc.ID != uint64(i) || wc.Status != 0 {
			t.Errorf("%d: %+v", i, wc)
		}
	}
	ini.poll(1)
}

func TestOverrun(t *testing.T) {
	var r record
	_, tp, ip := Pair(Config{Misuse: r.misuse})
	tgt, ini := connect(t, tp, ip)
	sent := 0
	for ; tgt.qp.(*qp).state == qpReady && sent < 100; sent++ {
		must(t, tgt.recv(1, 0, 64))
		must(t, ini.send(ini.message(1)))
		ini.poll(1)
		tgt.qp.(*qp).rqFreed++ // as a driver does that gives places back before the poll
	}
	if sent != 65 {
		t.Errorf("%d messages into a queue of 64 entries", sent)
	}
	r.only(t, MisuseOverrun, 1)
	seen := map[rdma.AsyncEventType]bool{}
	for len(seen) < 2 {
		select {
		case e := <-tgt.dev.Events():
			seen[e.Type] = true
		case <-time.After(time.Second):
			t.Fatalf("only %v", seen)
		}
	}
	if !seen[rdma.AsyncCQErr] || !seen[rdma.AsyncQPFatal] {
		t.Error(seen)
	}
	tgt.close()
	ini.close()
}

func TestFailedCompletion(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	f.SetFaults(Faults{Complete: func(w WorkInfo) rdma.Status {
		if !w.Recv && w.N == 1 && w.Device == "mem0" && w.QPNum == ini.qp.Num() {
			return rdma.StatusRetryExcErr
		}
		return rdma.StatusSuccess
	}})
	for i := range 3 {
		must(t, tgt.recv(uint64(i), 0, 64))
	}
	must(t, ini.send(ini.message(1), ini.message(2), ini.message(3)))
	wcs := ini.poll(3)
	status(t, "first", wcs[0], rdma.StatusSuccess)
	status(t, "second", wcs[1], rdma.StatusRetryExcErr)
	status(t, "third", wcs[2], rdma.StatusFlushed)
	if wcs[1].ByteLen == 10 || wcs[1].Op == rdma.WCSend {
		t.Errorf("fields that are not valid look valid: %+v", wcs[1])
	}
	status(t, "receive", tgt.poll(1)[0], rdma.StatusSuccess)
}

func TestFailedReceive(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	f.SetFaults(Faults{Complete: func(w WorkInfo) rdma.Status {
		if w.Recv {
			return rdma.StatusLocProtErr
		}
		return rdma.StatusSuccess
	}})
	must(t, tgt.recv(1, 0, 64))
	must(t, ini.send(ini.message(1)))
	status(t, "receive", tgt.poll(1)[0], rdma.StatusLocProtErr)
	status(t, "send", ini.poll(1)[0], rdma.StatusRemOpErr)
}

func TestHeldCompletions(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	f.SetFaults(Faults{Delay: func(w WorkInfo) time.Duration {
		if w.Recv && w.N == 0 {
			return Held
		}
		return 0
	}})
	must(t, tgt.cq.Arm())
	must(t, tgt.recv(1, 0, 64))
	must(t, tgt.recv(2, 0, 64))
	must(t, ini.send(ini.message(1), ini.message(2)))
	ini.poll(2)
	must(t, ini.recv(9, 0, 64))
	must(t, tgt.send(tgt.message(3))) // another queue: not held back
	if wc := tgt.poll(1)[0]; wc.ID != 3 {
		t.Errorf("%+v", wc)
	}
	f.ReleaseCompletions()
	if wcs := tgt.poll(2); wcs[0].ID != 1 || wcs[1].ID != 2 {
		t.Errorf("%+v", wcs)
	}
}

func TestLinkDrop(t *testing.T) {
	f, tgt, ini := newPair(t, Config{RetryTimeout: 20 * time.Millisecond})
	must(t, tgt.recv(1, 0, 64))
	// Restored in time: nothing is lost.
	f.SetLink(false)
	must(t, ini.send(ini.message(1)))
	if n, _ := ini.cq.Poll(ini.wcs[:]); n != 0 {
		t.Fatal("a message over a dead link")
	}
	f.SetLink(true)
	status(t, "send", ini.poll(1)[0], rdma.StatusSuccess)
	tgt.poll(1)
	// Not restored.
	ini.dev.(*Device).SetLink(false)
	must(t, ini.send(ini.message(2), ini.message(3)))
	wcs := ini.poll(2)
	status(t, "send", wcs[0], rdma.StatusRetryExcErr)
	status(t, "next", wcs[1], rdma.StatusFlushed)
	// The connection manager does not get through either: the peer is not told, and we give up.
	must(t, ini.conn.Disconnect())
	ini.next(rdma.EventDisconnected)
	ini.dev.(*Device).SetLink(true)
	must(t, tgt.recv(5, 0, 64))
	must(t, tgt.send(tgt.message(4)))
	status(t, "the other end's send", tgt.poll(2)[0], rdma.StatusRetryExcErr)
}

// TestConnectOverDeadLink: nobody answers.
func TestConnectOverDeadLink(t *testing.T) {
	f, tp, ip := Pair(Config{CMTimeout: 5 * time.Millisecond})
	tgt, ini := newEnd(t, tp), newEnd(t, ip)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3260"), 8)
	must(t, err)
	ini.conn, err = ini.ch.Resolve(context.Background(), netip.AddrPort{}, l.Addr())
	must(t, err)
	ini.arm(testQP)
	f.SetLink(false)
	must(t, ini.conn.Connect(testParam))
	if ev := ini.next(rdma.EventUnreachable); ev.Status != -int(syscall.ETIMEDOUT) {
		t.Errorf("%+v", ev)
	}
	must(t, l.Close())
	ini.close()
	tgt.close()
	if l := f.Leaks(); len(l) > 0 {
		t.Errorf("%q", l)
	}
}

func TestFailingVerbs(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	nomem := &rdma.OpError{Op: "test", Errno: syscall.ENOMEM}
	posts := 0
	f.SetFaults(Faults{Verb: func(dev, op string) error {
		if op == "PostRecv" {
			if posts++; posts < 3 {
				return nil
			}
		}
		return nomem
	}})
	p := []rdma.QPPost{{QP: tgt.qp, Recvs: []rdma.RecvWR{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}, Sends: []rdma.SendWR{tgt.message(1)}}}
	tgt.dev.Post(p)
	if p[0].RecvsPosted != 2 || p[0].SendsPosted != 0 || !errors.Is(p[0].Err, syscall.ENOMEM) {
		t.Errorf("%+v", p[0])
	}
	for op, err := range map[string]error{
		"Arm":        tgt.cq.Arm(),
		"SetError":   ini.qp.SetError(),
		"PostSend":   ini.send(ini.message(1)),
		"RegMR":      func() error { _, err := tgt.pd.RegMR(tgt.mem(0, 64), 0); return err }(),
		"CreateCQ":   func() error { _, err := tgt.cc.CreateCQ(8, 0); return err }(),
		"AllocPD":    func() error { _, err := tgt.dev.AllocPD(); return err }(),
		"Listen":     func() error { _, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:1"), 1); return err }(),
		"channel":    func() error { _, err := tgt.p.NewEventChannel(); return err }(),
		"CreateQP":   func() error { _, err := tgt.conn.CreateQP(tgt.pd, testQP); return err }(),
		"Disconnect": tgt.conn.Disconnect(),
	} {
		if !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v", op, err)
		}
	}
	f.SetFaults(Faults{})
}

func TestBreak(t *testing.T) {
	_, tgt, _ := newPair(t, Config{})
	must(t, tgt.recv(1, 0, 64))
	d := tgt.dev.(*Device)
	if !d.Break(tgt.qp.Num()) || d.Break(0xFFFF) {
		t.Error("Break")
	}
	status(t, "receive", tgt.poll(1)[0], rdma.StatusFlushed)
	if e := <-d.Events(); e.Type != rdma.AsyncQPFatal || e.QPNum != tgt.qp.Num() {
		t.Errorf("%+v", e)
	}
	d.Raise(rdma.AsyncEvent{Type: rdma.AsyncPortErr, Port: 1})
	if e := <-d.Events(); e.Type != rdma.AsyncPortErr {
		t.Errorf("%+v", e)
	}
	d.RaiseQP(rdma.AsyncPathMig)
	if e := <-d.Events(); e.Type != rdma.AsyncPathMig || e.QPNum != tgt.qp.Num() {
		t.Errorf("%+v", e)
	}
	for i := range 200 { // nobody reads: the oldest go
		d.Raise(rdma.AsyncEvent{Type: rdma.AsyncPortErr, Port: i})
	}
	if e := <-d.Events(); e.Port != 200-64 {
		t.Errorf("%+v", e)
	}
}

// TestBacklog: requests that nobody fetches are refused beyond the backlog.
func TestBacklog(t *testing.T) {
	_, tp, ip := Pair(Config{})
	tgt := newEnd(t, tp)
	l, err := tgt.ch.Listen(netip.MustParseAddrPort("192.0.2.1:3260"), 2)
	must(t, err)
	var inis []*end
	for range 3 {
		ini := newEnd(t, ip)
		ini.conn, err = ini.ch.Resolve(context.Background(), netip.AddrPort{}, l.Addr())
		must(t, err)
		ini.arm(testQP)
		must(t, ini.conn.Connect(testParam))
		inis = append(inis, ini)
	}
	if ev := inis[2].next(rdma.EventRejected); ev.Status != 28 {
		t.Errorf("%+v", ev)
	}
	must(t, tgt.next(rdma.EventConnectRequest).Conn.Close())
	inis[0].next(rdma.EventRejected)
	must(t, l.Close()) // the second one
	inis[1].next(rdma.EventRejected)
	for _, i := range inis {
		i.close()
	}
	tgt.close()
}

func TestMisuseIsTold(t *testing.T) {
	for m, do := range map[Misuse]func(tgt, ini *end){
		MisuseRNR:        func(_, ini *end) { _ = ini.send(ini.message(1)) },
		MisuseAfterError: func(tgt, _ *end) { _ = tgt.qp.SetError(); _ = tgt.recv(1, 0, 64) },
		MisuseQueueFull: func(tgt, _ *end) {
			for tgt.recv(1, 0, 64) == nil {
			}
		},
	} {
		var r record
		_, tgt, ini := newPair(t, Config{Misuse: r.misuse})
		do(tgt, ini)
		r.only(t, m, 1)
	}
	var told []string
	fail := FailOnMisuse(errorfFunc(func(f string, _ ...any) { told = append(told, f) }), MisuseRNR)
	fail(MisuseRNR, "x")
	fail(MisuseOverrun, "x")
	if len(told) != 1 || !strings.HasPrefix(told[0], "rdmatest") {
		t.Errorf("%q", told)
	}
}

type errorfFunc func(string, ...any)

func (f errorfFunc) Errorf(format string, args ...any) { f(format, args...) }

func TestLeaksAreNamed(t *testing.T) {
	f, tgt, ini := newPair(t, Config{})
	all := strings.Join(f.Leaks(), "\n")
	for _, want := range []string{"QP 0x", "CQ of", "MR of", "PD of", "completion channel", "event channel", "connection"} {
		if strings.Count(all, want) < 2 {
			t.Errorf("%q is not twice in\n%s", want, all)
		}
	}
	_, _ = tgt, ini
}

func TestOddDevices(t *testing.T) {
	for what, attr := range map[string]func(*rdma.DeviceAttr){
		"boastful": func(a *rdma.DeviceAttr) { a.MaxCQE, a.MaxQPWR = 1<<31-1, 1<<31-1 },
		"tiny": func(a *rdma.DeviceAttr) {
			a.MaxCQE, a.MaxSGE, a.MaxInline, a.MaxQPRDAtom, a.MaxQPInitRDAtom = 8, 1, 0, 1, 1
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := New(Config{})
			p := f.NewProvider(DeviceConfig{Addrs: addrs("192.0.2.1"), Attr: attr})
			devs, err := p.Devices()
			must(t, err)
			a := devs[0].Attr()
			cc, err := devs[0].NewCompletionChannel()
			must(t, err)
			if _, err := cc.CreateCQ(a.MaxCQE, 0); (a.MaxCQE > 1<<30) != (err != nil) {
				t.Errorf("all the entries that it boasts of: %v", err)
			}
			if _, err := cc.CreateCQ(a.MaxCQE+1, 0); !errors.Is(err, rdma.ErrTooBig) {
				t.Error(err)
			}
		})
	}
}
