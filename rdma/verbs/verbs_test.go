//go:build linux && cgo && !nordma

package verbs_test

import (
	"bytes"
	"testing"

	"iserd/rdma"
	"iserd/rdma/verbs"
)

func TestPingPong(t *testing.T) {
	p := newProvider(t)
	tgt, ini := connect(t, p, func(s *side) {
		s.post([]rdma.RecvWR{{ID: 1, SGE: s.sge(0, 4096)}, {ID: 2, SGE: s.sge(4096, 4096)}}, nil)
	})
	must(t, tgt.qp.SetMinRNRTimer(12))
	copy(ini.mr.Bytes(), "ping")
	ini.post([]rdma.RecvWR{{ID: 3, SGE: ini.sge(8192, 4096)}}, []rdma.SendWR{{ID: 4, SGE: ini.sge(0, 4), Flags: rdma.SendSignaled}})
	wc := tgt.reapOK(1)[0]
	if wc.ID != 1 || wc.Op != rdma.WCRecv || wc.ByteLen != 4 || wc.QPNum != tgt.qp.Num() || string(tgt.mr.Bytes()[:4]) != "ping" {
		t.Fatalf("%+v %q", wc, tgt.mr.Bytes()[:4])
	}
	// RDMA WRITE, then SEND WITH INVALIDATE of a key that the initiator made for this.
	extra, err := ini.pd.RegMR(ini.arena.Bytes()[sideMem/2:], rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	must(t, err)
	copy(tgt.mr.Bytes()[10000:], bytes.Repeat([]byte("data"), 1000))
	send := rdma.SendWR{ID: 6, Op: rdma.OpSend, SGE: tgt.sge(0, 4), Flags: rdma.SendSignaled | rdma.SendInline}
	send.SGE[0].LKey = 0 // inline needs none
	tgt.post(nil, []rdma.SendWR{
		{ID: 5, Op: rdma.OpRDMAWrite, SGE: tgt.sge(10000, 4000), RemoteAddr: extra.Addr(), RKey: extra.RKey()}, send})
	if wc := tgt.reapOK(1)[0]; wc.ID != 6 || wc.Op != rdma.WCSend {
		t.Fatalf("%+v", wc)
	}
	wcs := ini.reapOK(2)
	if wcs[0].ID != 4 || wcs[1].ID != 3 || !bytes.Equal(extra.Bytes()[:4000], tgt.mr.Bytes()[10000:14000]) {
		t.Fatalf("%+v", wcs)
	}
	must(t, extra.Close())
	// RDMA READ.
	copy(ini.mr.Bytes()[20000:], "to be read")
	tgt.post(nil, []rdma.SendWR{{ID: 7, Op: rdma.OpRDMARead, SGE: tgt.sge(30000, 10), RemoteAddr: ini.mr.Addr() + 20000, RKey: ini.mr.RKey(), Flags: rdma.SendSignaled}})
	if wc := tgt.reapOK(1)[0]; wc.Op != rdma.WCRDMARead || wc.ID != 7 || string(tgt.mr.Bytes()[30000:30010]) != "to be read" {
		t.Fatalf("%+v", wc)
	}
	s, ok := verbs.StatsOf(p)
	if !ok || s.Posts == 0 || s.Completions != 5 || s.Sends != 4 || s.Recvs != 3 || s.CMDropped != 0 {
		t.Fatalf("%+v", s)
	}
	tgt.close()
	ini.close()
}
