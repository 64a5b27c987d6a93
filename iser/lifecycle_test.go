package iser

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/iscsi/pdu"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

func total(s *Server) ShardStats {
	st := s.Stats()
	return st.Total()
}

// TestB118_KillLinkInMidWrite: the link dies with reads and writes in flight; every buffer comes back.
func TestB118_KillLinkInMidWrite(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{DrainTimeout: time.Second})
	before := total(s)
	for round := range 5 {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		for tag := range uint32(24) {
			_, a := i.data(int(tag)<<16, 1<<16)
			h, c := Header{WSV: true, WriteSTag: i.mr.RKey(), WriteBaseOffset: a}, command(tag, tag, cdb(0x2a, 0), 0, 1<<16, 0)
			if tag%2 == 0 {
				h, c = Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: a}, command(tag, tag, cdb(0x28, 0), 1<<16, 0, 0)
			}
			// The stub checks the pattern only of data that arrives.
			b, _ := i.data(int(tag)<<16, 1<<16)
			pattern(b, 0)
			if err := i.sendPDU(h, c, nil); err != nil {
				t.Fatal(err)
			}
			if tag == uint32(4*round) {
				f.mem.SetLink(false)
			}
		}
		time.Sleep(2 * time.Millisecond)
		f.mem.SetLink(false)
		i.close()
		eventually(t, "the target notices", func() bool {
			if total(s).Connections == 0 {
				return true
			}
			n.last().terminate.Store(2) // nothing in flight, nothing to notice: the engine's timers would
			n.last().dm.Wake()
			return false
		})
		f.mem.SetLink(true)
		atRest(t, s, before)
	}
}

// TestB118_DisconnectWithSlowStore: connections go while a store holds their tasks. Memory stays until it lets go, and
// no longer.
func TestB118_DisconnectWithSlowStore(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	n.hold.Store(true)
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	for tag := range uint32(8) {
		_, a := i.data(0, 4096)
		if err := i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: a}, command(tag, tag, cdb(0x28, 0), 4096, 0, 0), nil); err != nil {
			t.Fatal(err)
		}
	}
	e := n.last()
	held := func() (k int) {
		s.eachConn(func(*conn) { k = len(e.held) })
		return k
	}
	eventually(t, "all commands at the store", func() bool { return held() == 8 })
	i.close()
	eventually(t, "the queue pair is gone", func() bool { return total(s).QPs == 0 })
	st := total(s)
	if st.Connections != 1 || st.BuffersInUse < before.BuffersInUse+8 {
		t.Errorf("buffers of the store were taken from it: %d connections, %d buffers", st.Connections, st.BuffersInUse)
	}
	e.releases.Add(8)
	e.dm.Wake()
	atRest(t, s, before)
}

// TestConnectDisconnect: 500 connections come, log in and go, in all the ways there are.
func TestConnectDisconnect(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{Shards: 2})
	before := total(s)
	rounds := 500
	if testing.Short() || raceEnabled {
		rounds = 60
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := range rounds / 5 {
				i, err := dial(f.peer, addr, dialOptions{})
				if err != nil {
					t.Errorf("connection %d: %v", k, err)
					return
				}
				if k%4 > 0 {
					if err = i.logIn(); err != nil {
						t.Errorf("login %d: %v", k, err)
					}
				}
				if k%4 == 1 {
					if err = i.read(0x28, 1, 0, 4096); err != nil {
						t.Errorf("read: %v", err)
					}
				}
				if k%4 == 2 { // logout: who asked for it closes
					var b pdu.BHS
					b.SetOpcode(pdu.OpLogoutRequest)
					err = i.sendPDU(Header{}, &b, nil)
					if _, err2 := i.next(5 * time.Second); err != nil || err2 != nil {
						t.Errorf("logout: %v %v", err, err2)
					}
				}
				i.close()
			}
		}()
	}
	wg.Wait()
	atRest(t, s, before)
	if n.live.Load() != 0 {
		t.Errorf("%d engines live", n.live.Load())
	}
}

// TestLogoutLeavesTheFirstWordToThePeer: after a logout the initiator closes. Only one that does not is closed on.
func TestLogoutLeavesTheFirstWordToThePeer(t *testing.T) {
	f := newFabric(t)
	s, addr := stubServer(t, f, newStubNode(), Config{GracefulTimeout: 200 * time.Millisecond})
	before := total(s)
	for k := range 2 {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		var b pdu.BHS
		b.SetOpcode(pdu.OpLogoutRequest)
		start := time.Now()
		if err := i.sendPDU(Header{}, &b, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := i.next(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			i.close()
			atRest(t, s, before)
			if d := time.Since(start); d > 150*time.Millisecond {
				t.Errorf("gone only after %s", d)
			}
			continue
		}
		if err := i.waitDisconnected(5 * time.Second); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < 150*time.Millisecond {
			t.Errorf("disconnected after %s", d)
		}
		i.close()
	}
	atRest(t, s, before)
}

// TestB114_NeverLogsIn: 100 connections that say nothing, or vanish in the handshake. The engine's timer is what ends
// them; what they took comes back, and a login beside them works.
func TestB114_NeverLogsIn(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{Shards: 2})
	before := total(s)
	var silent []*initiator
	for k := range 100 {
		i, err := dial(f.peer, addr, dialOptions{noWait: k%3 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if k%3 == 0 {
			i.close()
			continue
		}
		silent = append(silent, i)
	}
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Error(err)
	}
	if err := i.read(0x28, 1, 0, 4096); err != nil {
		t.Error(err)
	}
	i.close()
	n.mu.Lock()
	engines := append([]*stub(nil), n.engines...)
	n.mu.Unlock()
	for _, e := range engines {
		e.terminate.Store(1) // the login timer
		e.dm.Wake()
	}
	for _, i := range silent {
		if err := i.waitDisconnected(5 * time.Second); err != nil {
			t.Error(err)
		}
		i.close()
	}
	atRest(t, s, before)
}

// TestB120_FailedCompletions: any request may fail, and be reported twice by what follows; its connection ends, others
// go on, nothing is lost.
func TestB120_FailedCompletions(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	good := mustDial(t, f.peer, addr, dialOptions{})
	if err := good.logIn(); err != nil {
		t.Fatal(err)
	}
	for k, tt := range []struct {
		op     rdma.SendOp
		status rdma.Status
	}{{rdma.OpRDMAWrite, rdma.StatusRemAccessErr}, {rdma.OpSend, rdma.StatusRetryExcErr}, {rdma.OpRDMARead, rdma.StatusRemOpErr},
		{rdma.OpSend, rdma.StatusRNRRetryExcErr}, {rdma.OpRDMARead, rdma.StatusLocProtErr}} {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		var victim atomic.Uint32
		s.eachConn(func(c *conn) {
			if c.eng == engine(n.last()) {
				victim.Store(c.qp.Num())
			}
		})
		f.mem.SetFaults(rdmatest.Faults{Complete: func(w rdmatest.WorkInfo) rdma.Status {
			if w.QPNum == victim.Load() && !w.Recv && w.Op == tt.op && w.N > 2 {
				return tt.status
			}
			return rdma.StatusSuccess
		}})
		var err error
		for tag := uint32(1); tag < 20 && err == nil; tag += 2 {
			if err = i.read(0x28, tag, 0, 8192); err == nil {
				err = i.write(tag+1, 0, 8192, 0)
			}
		}
		if err == nil {
			t.Errorf("%s never failed", tt.op)
		}
		if err := i.waitDisconnected(5 * time.Second); err != nil {
			t.Errorf("%s: %v", tt.op, err)
		}
		i.close()
		f.mem.SetFaults(rdmatest.Faults{})
		if err := good.read(0x28, uint32(1000+k), 0, 8192); err != nil {
			t.Errorf("another connection suffers: %v", err)
		}
	}
	good.close()
	atRest(t, s, before)
	if total(s).RNR == 0 {
		t.Error("RNR not counted")
	}
}

// TestDrainTimeout: completions never come back from a device that has died without saying so. The connection ends all
// the same.
func TestDrainTimeout(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{DrainTimeout: 50 * time.Millisecond})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	f.mem.SetFaults(rdmatest.Faults{Delay: func(w rdmatest.WorkInfo) time.Duration { return rdmatest.Held }})
	n.last().terminate.Store(2)
	n.last().dm.Wake()
	if err := i.waitDisconnected(5 * time.Second); err != nil {
		t.Error(err)
	}
	i.close()
	atRest(t, s, before)
	if total(s).DrainTimeouts != 1 {
		t.Errorf("%d drains timed out", total(s).DrainTimeouts)
	}
	f.mem.SetFaults(rdmatest.Faults{})
	f.mem.ReleaseCompletions()
}

// TestB132_Close: at the end initiators see the disconnect at once.
func TestB132_Close(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, err := newServer(f.target, n.make, Config{Shards: 2, PoolBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(netip.AddrPortFrom(f.addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	var all []*initiator
	for range 10 {
		i := mustDial(t, f.peer, l.Addr(), dialOptions{})
		defer i.close()
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	for _, i := range all {
		if err := i.waitDisconnected(time.Second); err != nil {
			t.Error(err)
		}
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it took %s", d)
	}
	if _, err := s.Listen(netip.AddrPortFrom(f.addr, 0)); err == nil {
		t.Error("listening after Close")
	}
}

// TestCloseWithHungStore: Close gives up when its time is over and says so.
func TestCloseWithHungStore(t *testing.T) {
	f := rdmatestPlain()
	n := newStubNode()
	n.hold.Store(true)
	s, err := newServer(f.target, n.make, Config{Shards: 1, PoolBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(netip.AddrPortFrom(f.addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	i := mustDial(t, f.peer, l.Addr(), dialOptions{})
	defer i.close()
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	_, a := i.data(0, 4096)
	if err := i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: a}, command(1, 1, cdb(0x28, 0), 4096, 0, 0), nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command at the store", func() (ok bool) {
		s.eachConn(func(*conn) { ok = len(n.last().held) == 1 })
		return ok
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil {
		t.Error("no error although a store holds a buffer")
	}
}

func rdmatestPlain() *fabric {
	f, target, peer := rdmatest.Pair(rdmatest.Config{})
	return &fabric{target: target, peer: peer, addr: netip.MustParseAddr("192.0.2.1"), mem: f}
}
