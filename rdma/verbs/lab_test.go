//go:build linux && cgo && !nordma

package verbs_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iserd/rdma"
	"iserd/rdma/verbs"
)

// Tests that need a device run in one of two ways:
//
//	LAB_VERBS=DIR        a folder with drop-in libibverbs.so.1 and librdmacm.so.1; the address is 127.0.0.1
//	ISERD_RDMA_ADDR=ADDR an address that an RDMA device of this machine carries
//
// The dynamic linker reads LD_LIBRARY_PATH before main, so the test starts itself anew with it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LAB_VERBS"); dir != "" {
		path := os.Getenv("LD_LIBRARY_PATH")
		if !strings.Contains(path, dir) {
			if path != "" {
				dir += ":" + path
			}
			exe, err := filepath.Abs("/proc/self/exe")
			if err == nil {
				os.Setenv("LD_LIBRARY_PATH", dir)
				err = syscall.Exec(exe, os.Args, os.Environ())
			}
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func labAddr(tb testing.TB) netip.Addr {
	tb.Helper()
	if a := os.Getenv("ISERD_RDMA_ADDR"); a != "" {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			tb.Fatal(err)
		}
		return addr
	}
	if os.Getenv("LAB_VERBS") == "" {
		tb.Skip("no RDMA device to test on: set LAB_VERBS to a folder with drop-in libraries, or ISERD_RDMA_ADDR to the address of a device")
	}
	return netip.MustParseAddr("127.0.0.1")
}

// onRealDevice is false over the drop-in libraries, which flush a queue pair when its peer disconnects, as iWARP does.
func onRealDevice() bool { return os.Getenv("LAB_VERBS") == "" }

// iWARP has no time wait of the connection manager, no RNR, and other error statuses.
func iWARP(d rdma.Device) bool { return d.Info().Transport == rdma.TransportIWARP }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newProvider(tb testing.TB) rdma.Provider {
	tb.Helper()
	labAddr(tb)
	p, err := verbs.New(verbs.Options{Trace: verbs.Trace{Warning: func(err error) { tb.Log("warning:", err) }}})
	must(tb, err)
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// node is one event channel and the goroutine that reads it.
type node struct {
	tb     testing.TB
	ch     rdma.EventChannel
	events chan rdma.Event
	ended  chan error
}

func newNode(tb testing.TB, p rdma.Provider) *node {
	tb.Helper()
	ch, err := p.NewEventChannel()
	must(tb, err)
	n := &node{tb: tb, ch: ch, events: make(chan rdma.Event, 1024), ended: make(chan error, 1)}
	go func() {
		for {
			ev, err := ch.Next()
			if err != nil {
				n.ended <- err
				return
			}
			select {
			case n.events <- ev:
			case <-time.After(20 * time.Second):
				tb.Error("nobody reads the events of this node")
			}
		}
	}()
	tb.Cleanup(func() {
		if err := ch.Close(); err != nil {
			tb.Error(err)
		}
		if err := <-n.ended; !errors.Is(err, rdma.ErrClosed) {
			tb.Errorf("Next after Close: %v, want ErrClosed", err)
		}
	})
	return n
}

func (n *node) expect(want rdma.EventType) rdma.Event {
	n.tb.Helper()
	return n.expectAny(want)
}

func (n *node) expectAny(want ...rdma.EventType) rdma.Event {
	n.tb.Helper()
	select {
	case ev := <-n.events:
		for _, w := range want {
			if ev.Type == w {
				return ev
			}
		}
		n.tb.Fatalf("event %s (status %d), want %v", ev.Type, ev.Status, want)
	case <-time.After(20 * time.Second):
		n.tb.Fatalf("no event, want %v", want)
	}
	return rdma.Event{}
}

// side is one end of a connection with all that it needs.
type side struct {
	tb    testing.TB
	node  *node
	conn  rdma.Conn
	dev   rdma.Device
	pd    rdma.PD
	chan_ rdma.CompletionChannel
	cq    rdma.CQ
	qp    rdma.QP
	mr    rdma.MR
	arena *rdma.Arena
	wcs   []rdma.WC
}

const sideMem = 1 << 20

func newSide(tb testing.TB, n *node, c rdma.Conn, cfg rdma.QPConfig) *side {
	tb.Helper()
	s := &side{tb: tb, node: n, conn: c, dev: c.Device(), wcs: make([]rdma.WC, 64)}
	var err error
	s.pd, err = s.dev.AllocPD()
	must(tb, err)
	s.chan_, err = s.dev.NewCompletionChannel()
	must(tb, err)
	s.cq, err = s.chan_.CreateCQ(512, 0)
	must(tb, err)
	s.arena, err = rdma.MapArena(sideMem, false)
	must(tb, err)
	s.mr, err = s.pd.RegMR(s.arena.Bytes(), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	must(tb, err)
	cfg.SendCQ, cfg.RecvCQ = s.cq, s.cq
	s.qp, err = c.CreateQP(s.pd, cfg)
	must(tb, err)
	return s
}

func (s *side) close() {
	s.tb.Helper()
	for _, c := range []interface{ Close() error }{s.qp, s.conn, s.cq, s.chan_, s.mr, s.pd, s.arena} {
		if err := c.Close(); err != nil {
			s.tb.Errorf("close %T: %v", c, err)
		}
	}
}

func (s *side) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}}
}

func (s *side) post(recvs []rdma.RecvWR, sends []rdma.SendWR) {
	s.tb.Helper()
	posts := []rdma.QPPost{{QP: s.qp, Recvs: recvs, Sends: sends}}
	s.dev.Post(posts)
	if p := posts[0]; p.Err != nil || p.RecvsPosted != len(recvs) || p.SendsPosted != len(sends) {
		s.tb.Fatalf("posted %d of %d receives, %d of %d sends: %v", p.RecvsPosted, len(recvs), p.SendsPosted, len(sends), p.Err)
	}
}

// reap waits for n completions, asleep: arm, poll once more, wait.
func (s *side) reap(n int) []rdma.WC {
	s.tb.Helper()
	var out []rdma.WC
	for end := time.Now().Add(20 * time.Second); len(out) < n; {
		got, err := s.cq.Poll(s.wcs)
		must(s.tb, err)
		out = append(out, s.wcs[:got]...)
		if got > 0 {
			continue
		}
		must(s.tb, s.cq.Arm())
		if got, err = s.cq.Poll(s.wcs); got > 0 || err != nil {
			must(s.tb, err)
			out = append(out, s.wcs[:got]...)
			continue
		}
		if time.Now().After(end) {
			s.tb.Fatalf("%d completions of %d: %+v", len(out), n, out)
		}
		if _, err := s.chan_.Wait(time.Second); err != nil {
			s.tb.Fatal(err)
		}
	}
	return out
}

func (s *side) reapOK(n int) []rdma.WC {
	s.tb.Helper()
	wcs := s.reap(n)
	for i := range wcs {
		must(s.tb, wcs[i].Err())
	}
	return wcs
}

var stdQP = rdma.QPConfig{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 96}

var stdParam = rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}

func resolve(tb testing.TB, n *node, to netip.AddrPort) rdma.Conn {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := n.ch.Resolve(ctx, netip.AddrPort{}, to)
	must(tb, err)
	return c
}

func listen(tb testing.TB, n *node, at netip.AddrPort) rdma.Listener {
	tb.Helper()
	l, err := n.ch.Listen(at, 16)
	must(tb, err)
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return l
}

// connect makes an established pair. prepare, if any, runs on the target before it accepts.
func connect(tb testing.TB, p rdma.Provider, prepare func(target *side)) (target, initiator *side) {
	tb.Helper()
	tn, in := newNode(tb, p), newNode(tb, p)
	l := listen(tb, tn, netip.AddrPortFrom(labAddr(tb), 0))
	c := resolve(tb, in, l.Addr())
	initiator = newSide(tb, in, c, stdQP)
	req := stdParam
	req.PrivateData = []byte("request")
	must(tb, c.Connect(req))
	ev := tn.expect(rdma.EventConnectRequest)
	if string(ev.Param.PrivateData[:7]) != "request" || ev.Listener != l {
		tb.Fatalf("connect request: %+v", ev)
	}
	target = newSide(tb, tn, ev.Conn, stdQP)
	if prepare != nil {
		prepare(target)
	}
	rep := stdParam
	rep.PrivateData = []byte("reply")
	must(tb, ev.Conn.Accept(rep))
	ev = in.expect(rdma.EventEstablished)
	if string(ev.Param.PrivateData[:5]) != "reply" || ev.Conn != c {
		tb.Fatalf("established: %+v", ev)
	}
	if ev = tn.expect(rdma.EventEstablished); ev.Conn != target.conn {
		tb.Fatalf("established: %+v", ev)
	}
	return target, initiator
}
