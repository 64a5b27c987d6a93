package rdmaconform

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"iserd/rdma"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr demands one of several errors.
func wantErr(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	t.Errorf("%s: %v, want %v", what, err, want)
}

// node is an event channel and the goroutine that reads it.
type node struct {
	t      *testing.T
	env    *Env
	p      rdma.Provider
	ch     rdma.EventChannel
	events chan rdma.Event
	ended  chan error
}

func newNode(t *testing.T, env *Env, p rdma.Provider) *node {
	t.Helper()
	ch, err := p.NewEventChannel()
	must(t, err)
	n := &node{t: t, env: env, p: p, ch: ch, events: make(chan rdma.Event, 1024), ended: make(chan error, 1)}
	go func() {
		for {
			ev, err := ch.Next()
			if err != nil {
				n.ended <- err
				return
			}
			n.events <- ev
		}
	}()
	t.Cleanup(func() {
		if err := ch.Close(); err != nil {
			t.Errorf("close event channel: %v", err)
		}
		select {
		case err := <-n.ended:
			wantErr(t, "Next after Close", err, rdma.ErrClosed)
		case <-time.After(env.Patience):
			t.Error("Next does not return after Close")
		}
	})
	return n
}

func (n *node) expect(want ...rdma.EventType) rdma.Event {
	n.t.Helper()
	select {
	case ev := <-n.events:
		if !slices.Contains(want, ev.Type) {
			n.t.Fatalf("event %s (status %d), want %v", ev.Type, ev.Status, want)
		}
		return ev
	case <-time.After(n.env.Patience):
		n.t.Fatalf("no event, want %v", want)
	}
	return rdma.Event{}
}

// skipTo waits for an event of a type and passes over others.
func (n *node) skipTo(want rdma.EventType) rdma.Event {
	n.t.Helper()
	timeout := time.After(n.env.Patience)
	for {
		select {
		case ev := <-n.events:
			if ev.Type == want {
				return ev
			}
		case <-timeout:
			n.t.Fatalf("no %s", want)
		}
	}
}

// silent demands that no event comes.
func (n *node) silent() {
	n.t.Helper()
	select {
	case ev := <-n.events:
		n.t.Errorf("event %s (status %d), want none", ev.Type, ev.Status)
	case <-time.After(n.env.Quiet):
	}
}

func (n *node) listen(at netip.AddrPort) rdma.Listener {
	n.t.Helper()
	l, err := n.ch.Listen(at, 64)
	must(n.t, err)
	n.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			n.t.Errorf("close listener: %v", err)
		}
	})
	return l
}

func (n *node) resolve(to netip.AddrPort) rdma.Conn {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), n.env.Patience)
	defer cancel()
	c, err := n.ch.Resolve(ctx, netip.AddrPort{}, to)
	must(n.t, err)
	return c
}

// addr is any address of the target.
func (e *Env) addr() netip.Addr {
	if e.Addr4.IsValid() {
		return e.Addr4
	}
	return e.Addr6
}

// side is one end of a connection with all that it needs. Its memory is sideMem bytes.
type side struct {
	t      *testing.T
	env    *Env
	node   *node
	conn   rdma.Conn
	dev    rdma.Device
	pd     rdma.PD
	cc     rdma.CompletionChannel
	cq     rdma.CQ
	qp     rdma.QP
	mr     rdma.MR
	arena  *rdma.Arena
	wcs    []rdma.WC
	closed bool
}

const sideMem = 4 << 20

var (
	stdQP    = rdma.QPConfig{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 96}
	stdParam = rdma.ConnParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}
)

const fullAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite

func newSide(n *node, c rdma.Conn, cfg rdma.QPConfig) *side {
	t := n.t
	t.Helper()
	s := &side{t: t, env: n.env, node: n, conn: c, dev: c.Device(), wcs: make([]rdma.WC, 64)}
	var err error
	s.pd, err = s.dev.AllocPD()
	must(t, err)
	s.cc, err = s.dev.NewCompletionChannel()
	must(t, err)
	s.cq, err = s.cc.CreateCQ(512, 0)
	must(t, err)
	s.arena, err = rdma.MapArena(sideMem, false)
	must(t, err)
	s.mr, err = s.pd.RegMR(s.arena.Bytes(), fullAccess)
	must(t, err)
	cfg.SendCQ, cfg.RecvCQ = s.cq, s.cq
	s.qp, err = c.CreateQP(s.pd, cfg)
	must(t, err)
	t.Cleanup(s.close)
	return s
}

func (s *side) close() {
	if s.closed {
		return
	}
	s.closed = true
	_ = s.conn.Disconnect()
	for _, c := range []interface{ Close() error }{s.qp, s.conn, s.cq, s.cc, s.mr, s.pd, s.arena} {
		if err := c.Close(); err != nil {
			s.t.Errorf("close %T: %v", c, err)
		}
	}
}

// options change a connection.
type options struct {
	qp             rdma.QPConfig
	connect        rdma.ConnParam
	accept         rdma.ConnParam
	prepare        func(tgt *side) // before the accept
	addr           netip.Addr
	listener       rdma.Listener
	tgtNode, iNode *node
}

// connect makes a connection and returns its two ends.
func connect(t *testing.T, env *Env, o options) (tgt, ini *side) {
	t.Helper()
	if o.qp.MaxSendWR == 0 {
		o.qp = stdQP
	}
	if o.connect.RetryCount == 0 {
		o.connect = stdParam
	}
	if o.accept.RetryCount == 0 {
		o.accept = stdParam
	}
	if !o.addr.IsValid() {
		o.addr = env.addr()
	}
	if o.tgtNode == nil {
		o.tgtNode, o.iNode = newNode(t, env, env.Target), newNode(t, env, env.Initiator)
	}
	if o.listener == nil {
		o.listener = o.tgtNode.listen(netip.AddrPortFrom(o.addr, 0))
	}
	ini = newSide(o.iNode, o.iNode.resolve(netip.AddrPortFrom(o.addr, o.listener.Addr().Port())), o.qp)
	must(t, ini.conn.Connect(o.connect))
	req := o.tgtNode.expect(rdma.EventConnectRequest)
	tgt = newSide(o.tgtNode, req.Conn, o.qp)
	if o.prepare != nil {
		o.prepare(tgt)
	}
	must(t, tgt.conn.Accept(o.accept))
	if ev := o.iNode.expect(rdma.EventEstablished); ev.Conn != ini.conn {
		t.Fatalf("established: another connection")
	}
	if ev := o.tgtNode.expect(rdma.EventEstablished); ev.Conn != tgt.conn {
		t.Fatalf("established: another connection")
	}
	return tgt, ini
}

func (s *side) mem(off, n int) []byte { return s.arena.Bytes()[off : off+n : off+n] }
func (s *side) at(off int) uint64     { return s.mr.Addr() + uint64(off) }

func (s *side) sge(off, n int) rdma.SGE {
	return rdma.SGE{Addr: s.at(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *side) sges(off, n int) []rdma.SGE { return []rdma.SGE{s.sge(off, n)} }

// try posts and returns the result.
func (s *side) try(recvs []rdma.RecvWR, sends []rdma.SendWR) rdma.QPPost {
	posts := []rdma.QPPost{{QP: s.qp, Recvs: recvs, Sends: sends}}
	s.dev.Post(posts)
	return posts[0]
}

// recv posts receives, each of n bytes in the memory from off on, numbered from id.
func (s *side) recv(id uint64, count, off, n int) {
	s.t.Helper()
	wrs := make([]rdma.RecvWR, count)
	for i := range wrs {
		wrs[i] = rdma.RecvWR{ID: id + uint64(i), SGE: s.sges(off+i*n, n)}
	}
	if p := s.try(wrs, nil); p.Err != nil || p.RecvsPosted != count {
		s.t.Fatalf("%d of %d receives posted: %v", p.RecvsPosted, count, p.Err)
	}
}

// send posts sends.
func (s *side) send(wrs ...rdma.SendWR) {
	s.t.Helper()
	if p := s.try(nil, wrs); p.Err != nil || p.SendsPosted != len(wrs) {
		s.t.Fatalf("%d of %d sends posted: %v", p.SendsPosted, len(wrs), p.Err)
	}
}

func (s *side) message(id uint64, off, n int) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: s.sges(off, n)}
}

// to makes a one-sided request for the peer's memory at roff.
func (s *side) to(op rdma.SendOp, id uint64, off, n int, peer *side, roff int) rdma.SendWR {
	return rdma.SendWR{ID: id, Op: op, Flags: rdma.SendSignaled, SGE: s.sges(off, n), RemoteAddr: peer.at(roff), RKey: peer.mr.RKey()}
}

// reap waits for n completions and demands no more.
func (s *side) reap(n int) []rdma.WC {
	s.t.Helper()
	var out []rdma.WC
	deadline := time.Now().Add(s.env.Patience)
	for len(out) < n {
		k, err := s.cq.Poll(s.wcs)
		must(s.t, err)
		out = append(out, s.wcs[:k]...)
		if k == 0 {
			if time.Now().After(deadline) {
				s.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	if len(out) > n {
		s.t.Fatalf("%d completions, want %d: %+v", len(out), n, out)
	}
	return out
}

// reapOK waits for n completions and demands success of each.
func (s *side) reapOK(n int) []rdma.WC {
	s.t.Helper()
	out := s.reap(n)
	for i := range out {
		if err := out[i].Err(); err != nil {
			s.t.Fatalf("completion %d (ID %d): %v", i, out[i].ID, err)
		}
		if out[i].QPNum != s.qp.Num() {
			s.t.Fatalf("completion %d: QP %#x, want %#x", i, out[i].QPNum, s.qp.Num())
		}
	}
	return out
}

// quiet demands that no completion comes.
func (s *side) quiet() {
	s.t.Helper()
	for deadline := time.Now().Add(s.env.Quiet); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n, err := s.cq.Poll(s.wcs); n != 0 || err != nil {
			s.t.Fatalf("%d completions, want none: %+v, %v", n, s.wcs[:n], err)
		}
	}
}

// wantStatus demands one of several statuses.
func wantStatus(t testing.TB, what string, wc rdma.WC, want ...rdma.Status) {
	t.Helper()
	if !slices.Contains(want, wc.Status) {
		t.Errorf("%s: %s (vendor error %#x), want %v", what, wc.Status, wc.VendorErr, want)
	}
}

// wantFault is wantStatus for the request that was at fault itself.
func (e *Env) wantFault(t testing.TB, what string, wc rdma.WC, want ...rdma.Status) {
	t.Helper()
	if !e.VagueStatus {
		wantStatus(t, what, wc, want...)
	} else if wc.Status == rdma.StatusSuccess {
		t.Errorf("%s: success", what)
	}
}

// fill writes a pattern that differs with seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*7 ^ byte(i>>16)*13 ^ byte(seed)
	}
}

// check demands the pattern.
func check(t testing.TB, what string, b []byte, seed int) {
	t.Helper()
	for i := range b {
		if b[i] != byte(i)^byte(i>>8)*7^byte(i>>16)*13^byte(seed) {
			t.Fatalf("%s: byte %d of %d is wrong", what, i, len(b))
		}
	}
}
