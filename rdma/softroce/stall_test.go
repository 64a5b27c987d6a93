package softroce

import (
	"net/netip"
	"testing"

	"iserd/rdma"
)

// TestReadAgainTakenAway: a READ comes again though its answer was on its way, and behind it, in the same batch, the message
// that takes the READ's key back, as a target's response does. The peer has what it wants: the connection lives.
func TestReadAgainTakenAway(t *testing.T) {
	r := newRig(t)
	v, p := r.connect(r.peer)
	defer r.closeEnds(v, p)
	var rx reader
	var err error
	rx.sock, err = r.victim.p.dev.socketAt(r.victim.addr)
	r.must(err)
	a := &assault{r: r, v: v, qpn: v.qp.num}
	_, a.psn, _ = v.state()
	from := netip.AddrPortFrom(r.peer.addr, Port)
	batch := func(pkts ...[]byte) []string {
		for _, b := range pkts {
			r.crc.put(&flow{src: from.Addr(), dst: r.victim.addr, srcPort: from.Port(), dstPort: Port}, b, 0)
			rx.datagram(from, b)
		}
		rx.endBatch()
		return r.answers(p.qp.num, a.psn)
	}
	read := func() []byte { return a.req(opReadRequest, 0, a.reth(armRW, 2*armMTU), 0) }
	r.settle()
	r.answers(p.qp.num, a.psn)
	if got := batch(read()); !same(got, []string{"READ +0 1024", "READ +1 1024"}) {
		t.Fatalf("answered %q", got)
	}
	if got := batch(read(), a.req(opSendOnlyInv, 2, be32(a.key(armRW)), 64)); !same(got, []string{"ACK +2"}) {
		t.Errorf("answered %q", got)
	}
	if wc := r.reap(v, 1); wc[0].Status != rdma.StatusSuccess || !wc[0].WithInv {
		t.Errorf("%+v", wc)
	}
	if s, _, _ := v.state(); s != qpReady {
		t.Error("the connection is in error")
	}
}

// TestWindowBeforeRead: a message that nobody is to be told of, and a READ that does not fit the window beside it.
func TestWindowBeforeRead(t *testing.T) {
	r := newRig(t)
	v, p := r.connect(r.peer)
	defer r.closeEnds(v, p)
	q := p.qp
	q.mu.Lock()
	q.sq.window, q.sq.threshold = minWindow, minWindow
	q.mu.Unlock()
	r.victim.deaf.Store(true)
	rw := v.mrs[armRW]
	posts := []rdma.QPPost{{QP: q, Sends: []rdma.SendWR{
		{ID: 1, Op: rdma.OpRDMAWrite, SGE: p.sge(armLocal, 100), RemoteAddr: rw.Addr(), RKey: rw.RKey()},
		{ID: 2, Op: rdma.OpRDMARead, SGE: p.sge(armLocal+4096, armRegion), RemoteAddr: rw.Addr(), RKey: rw.RKey(), Flags: rdma.SendSignaled},
	}}}
	q.dev.Post(posts)
	r.must(posts[0].Err)
	q.mu.Lock()
	if q.sq.reads.n != 0 || q.sq.noAck != 0 {
		t.Errorf("%d READs were asked for, %d packets without a question for an acknowledgement", q.sq.reads.n, q.sq.noAck)
	}
	q.mu.Unlock()
	r.victim.deaf.Store(false)
	if wc := r.reap(p, 1); wc[0].ID != 2 || wc[0].Status != rdma.StatusSuccess {
		t.Errorf("%+v", wc)
	}
}
