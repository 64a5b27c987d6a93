package iser

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
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

// TestB110_DeviceRemoval: the device goes away under load, while a store holds tasks, and comes back. The listener
// comes back by itself.
func TestB110_DeviceRemoval(t *testing.T) {
	fab := rdmatest.New(rdmatest.Config{Misuse: misuse(t)})
	a, w := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	target := fab.NewProvider(rdmatest.DeviceConfig{Name: "gone0", Addrs: []netip.Addr{a}}, rdmatest.DeviceConfig{Name: "stay0", Addrs: []netip.Addr{w}})
	peer := fab.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
	f := &fabric{target: target, peer: peer, addr: a, mem: fab}
	n := newStubNode()
	var removed, opened atomic.Int64
	t.Cleanup(func() {
		if l := fab.Leaks(); len(l) > 0 {
			t.Errorf("left open: %v", l)
		}
	})
	s, addr := stubServer(t, f, n, Config{RescanInterval: 20 * time.Millisecond, Events: Events{
		DeviceRemoved: func(string) { removed.Add(1) }, DeviceOpened: func(DeviceReport) { opened.Add(1) }}})
	other, err := s.Listen(netip.AddrPortFrom(w, 0))
	if err != nil {
		t.Fatal(err)
	}
	arena, err := rdma.MapArena(1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	unregister, err := s.RegisterMemory([][]byte{arena.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	stay := mustDial(t, peer, other.Addr(), dialOptions{})
	defer stay.close()
	if err := stay.logIn(); err != nil {
		t.Fatal(err)
	}
	dev := target.Device("gone0")
	for round := range 3 {
		n.hold.Store(round == 1)
		var lost []*initiator
		for range 4 {
			i := mustDial(t, peer, addr, dialOptions{})
			if err := i.logIn(); err != nil {
				t.Fatal(err)
			}
			for tag := range uint32(8) {
				_, x := i.data(0, 4096)
				_ = i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: x}, command(tag, tag, cdb(0x28, 0), 4096, 0, 0), nil)
			}
			lost = append(lost, i)
		}
		dev.Remove()
		eventually(t, "removal noticed", func() bool { return removed.Load() == int64(round+1) })
		n.hold.Store(false)
		n.mu.Lock()
		for _, e := range n.engines {
			e.releases.Add(8)
			e.dm.Wake()
		}
		n.mu.Unlock()
		if err := stay.read(0x28, uint32(round+1), 0, 4096); err != nil {
			t.Errorf("B121: the other device suffers: %v", err)
		}
		eventually(t, "its connections are gone", func() bool { return s.connections() == 1 })
		for _, i := range lost {
			i.close()
		}
		dev = dev.Return()
		eventually(t, "it is in use again", func() bool { return opened.Load() == int64(round+3) })
		eventually(t, "it is listened on again", func() bool {
			i, err := dial(peer, addr, dialOptions{})
			if err == nil {
				err = i.logIn()
				if err == nil {
					err = i.read(0x28, 1, 0, 4096)
				}
				i.close()
			}
			return err == nil
		})
		eventually(t, "that one is gone too", func() bool { return s.connections() == 1 })
	}
	unregister()
	_ = arena.Close()
}

// TestB111_AddrChange: the listener is renewed, the old identifier closed first.
func TestB111_AddrChange(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	var back atomic.Int64
	s, addr := stubServer(t, f, newStubNode(), Config{Events: Events{ListenerBack: func(netip.AddrPort) { back.Add(1) }}})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	f.target.(*rdmatest.Provider).Devices()
	dev := f.target.(*rdmatest.Provider).Device("mem0")
	for k := range 3 {
		dev.AddrChange()
		eventually(t, "listener back", func() bool { return back.Load() == int64(k+1) })
		j := mustDial(t, f.peer, addr, dialOptions{})
		if err := j.logIn(); err != nil {
			t.Error(err)
		}
		j.close()
	}
	i.close()
	atRest(t, s, before)
}

// TestPermutedEvents: connection events are late, lost, twice and in any order; connections still end and leave nothing
// behind.
func TestPermutedEvents(t *testing.T) {
	rounds := 40
	if raceEnabled {
		rounds = 10
	}
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
		var mu sync.Mutex
		f.mem.SetFaults(rdmatest.Faults{Event: func(e rdmatest.EventInfo) (a rdmatest.EventAction) {
			if !e.Passive || e.Type == rdma.EventConnectRequest {
				return a
			}
			mu.Lock()
			defer mu.Unlock()
			switch r.IntN(6) {
			case 0:
				a.Drop = e.Type == rdma.EventEstablished || e.Type == rdma.EventTimewaitExit
			case 1, 2:
				a.Delay = time.Duration(r.IntN(20)) * time.Millisecond
			case 3:
				a.Again = time.Duration(1+r.IntN(10)) * time.Millisecond
			}
			return a
		}})
		n := newStubNode()
		s, addr := stubServer(t, f, n, Config{DrainTimeout: 200 * time.Millisecond})
		before := total(s)
		for k := range 6 {
			i, err := dial(f.peer, addr, dialOptions{noWait: k%3 == 2})
			if err != nil {
				t.Fatal(err)
			}
			if k%3 == 0 {
				// 2.4: the first PDU before ESTABLISHED, or without it.
				if err := i.logIn(); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				if err := i.read(0x28, 1, 0, 4096); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			i.close()
		}
		atRest(t, s, before)
	}
}

// TestRecvBeforeEstablished: the connection manager's word never comes, and the session works.
func TestRecvBeforeEstablished(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	f.mem.SetFaults(rdmatest.Faults{Event: func(e rdmatest.EventInfo) rdmatest.EventAction {
		if e.Passive && e.Type == rdma.EventEstablished {
			return rdmatest.EventAction{Delay: rdmatest.Held}
		}
		return rdmatest.EventAction{}
	}})
	s, addr := stubServer(t, f, newStubNode(), Config{})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	if err := i.write(1, 0, 65536, 0); err != nil {
		t.Fatal(err)
	}
	f.mem.ReleaseEvents()
	if err := i.read(0x28, 2, 0, 65536); err != nil {
		t.Fatal(err)
	}
	i.close()
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

// TestRemoteInvalidation: only who asked for it, only the STag of this very command, only on the response.
func TestRemoteInvalidation(t *testing.T) {
	for _, tt := range []struct {
		private []byte
		cfg     RemoteInvalidation
		reply   byte
		used    bool
	}{
		{[]byte{0x80, 0, 0, 0}, InvalidateAuto, 0x80, true},
		{[]byte{0x80, 0, 0, 0}, InvalidateOff, 0xc0, false},
		{[]byte{0xc0, 0, 0, 0}, InvalidateAuto, 0xc0, false},
		{[]byte{}, InvalidateAuto, 0xc0, false}, // arrives as zeros
		{[]byte{0x40, 0, 0, 0}, InvalidateAuto, 0xc0, false},
	} {
		f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
		_, addr := stubServer(t, f, newStubNode(), Config{RemoteInvalidation: tt.cfg})
		i := mustDial(t, f.peer, addr, dialOptions{private: tt.private})
		if len(i.reply) == 0 || i.reply[0] != tt.reply {
			t.Errorf("% x, %v: reply % x", tt.private, tt.cfg, i.reply)
		}
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		// A region for each command, as it dies with the response.
		one := func(h Header, c *pdu.BHS, data []byte, want uint32) {
			t.Helper()
			if err := i.sendPDU(h, c, data); err != nil {
				t.Fatal(err)
			}
			r, err := i.next(5 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.used {
				want = 0
			}
			if r.inv != want {
				t.Errorf("% x, %v: STag %#x invalidated, want %#x", tt.private, tt.cfg, r.inv, want)
			}
			_ = i.done(r)
		}
		b, a := i.data(0, 4096)
		pattern(b, 0)
		var regs []rdma.MR
		reg := func() rdma.MR {
			mr, err := i.pd.RegMR(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			regs = append(regs, mr)
			return mr
		}
		mr := reg()
		one(Header{RSV: true, ReadSTag: mr.RKey(), ReadBaseOffset: a}, command(1, 1, cdb(0x28, 0), 4096, 0, 0), nil, mr.RKey())
		mr = reg()
		pattern(b, 0)
		one(Header{WSV: true, WriteSTag: mr.RKey(), WriteBaseOffset: a}, command(2, 2, cdb(0x2a, 0), 0, 4096, 0), nil, mr.RKey())
		// All immediate: no STag, with and without WSV (quirk 5).
		one(Header{}, command(3, 3, cdb(0x2a, 0), 0, 512, 512), b[:512], 0)
		one(Header{WSV: true}, command(4, 4, cdb(0x2a, 0), 0, 512, 512), b[:512], 0)
		var nop pdu.BHS
		nop.SetOpcode(pdu.OpNOPOut)
		one(Header{}, &nop, nil, 0)
		for _, mr := range regs {
			_ = mr.Close()
		}
		i.close()
	}
}

// TestMissingSTag: data without an STag to move it by is a refused command, or the end of the connection; never an
// RDMA request.
func TestMissingSTag(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	for k, h := range []Header{{}, {WSV: true}, {WriteSTag: 77}, {RSV: true, ReadSTag: 77}} {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		if err := i.sendPDU(h, command(1, 1, cdb(0x2a, 0), 0, 4096, 0), nil); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil || r.bhs[3] != 2 {
			t.Errorf("write %d: %v, % x", k, err, r.bhs)
		}
		if err := i.sendPDU(Header{RSV: k == 3, WSV: true, WriteSTag: 5}, command(2, 2, cdb(0x28, 0), 4096, 0, 0), nil); err != nil {
			t.Fatal(err)
		}
		if err := i.waitDisconnected(5 * time.Second); err != nil {
			t.Errorf("read %d: %v", k, err)
		}
		i.close()
	}
	atRest(t, s, before)
	if st := total(s); st.RDMAReads+st.RDMAWrites > 0 {
		t.Errorf("%d reads, %d writes", st.RDMAReads, st.RDMAWrites)
	}
}

// TestReceives holds the number of receives: one in login, the window and its allowance after it, never fewer than the
// initiator may use however slow the store is (B117, B124).
func TestB117_B124_Receives(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	n.hold.Store(true)
	s, addr := stubServer(t, f, n, Config{})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	if got := total(s).RecvPosted; got != 1 {
		t.Errorf("%d receives posted in login", got)
	}
	var b pdu.BHS
	b.SetOpcode(pdu.OpLoginRequest)
	for range 3 { // several requests; B116: as long as they may be
		if err := i.sendPDU(Header{}, &b, make([]byte, loginData)); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil || len(r.data) != loginData {
			t.Fatalf("%v, %d bytes", err, len(r.data))
		}
		if err := i.done(r); err != nil {
			t.Fatal(err)
		}
		if got := total(s).RecvPosted; got != 1 {
			t.Errorf("%d receives posted between two login requests", got)
		}
	}
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	want := uint64(n.res.Window + n.res.Immediate + 1)
	for tag := range uint32(n.res.Window) {
		_, a := i.data(0, 4096)
		c := command(tag, tag, cdb(0x28, 0), 4096, 0, 0)
		if err := i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: a}, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "commands at the store, receives posted", func() bool {
		return total(s).RecvPosted == want && func() (ok bool) {
			s.eachConn(func(*conn) { ok = len(n.last().held) == n.res.Window })
			return ok
		}()
	})
	n.last().releases.Add(int64(n.res.Window))
	n.last().dm.Wake()
	for range n.res.Window {
		if _, err := i.next(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRetain: a receive buffer that the engine keeps is not posted until it lets go, and the data in it stays.
func TestRetain(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	full := total(s).RecvPosted
	b, _ := i.data(0, 512)
	for tag := range uint32(5) {
		c := cdb(0x2a, 0)
		c[1] = 1
		if err := i.sendPDU(Header{}, command(tag, tag, c, 0, 512, 512), b); err != nil {
			t.Fatal(err)
		}
		r, err := i.response(tag)
		if err != nil {
			t.Fatal(err)
		}
		_ = i.done(r)
	}
	if got := total(s).RecvPosted; got != full-5 {
		t.Errorf("%d receives posted, want %d", got, full-5)
	}
	s.eachConn(func(c *conn) {
		e := n.last()
		for _, h := range e.retained[:3] {
			c.ReleaseControl(h)
			c.ReleaseControl(h) // harmless
		}
		e.retained = e.retained[3:]
	})
	if got := total(s).RecvPosted; got != full-2 {
		t.Errorf("%d receives posted, want %d", got, full-2)
	}
	i.close()
	atRest(t, s, before)
}

// TestHelloAnswered: a Hello gets its reply in login and after it.
func TestHelloAnswered(t *testing.T) {
	f := newFabric(t)
	s, addr := stubServer(t, f, newStubNode(), Config{})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	hello := golden(t, "hello.hex")
	for k := range 2 {
		if err := i.send(hello); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.raw) != 12 || opcodeOf(r.raw) != OpHelloReply || r.raw[0]&helloREJ != 0 || binary.BigEndian.Uint16(r.raw[2:]) != 4 {
			t.Errorf("reply % x", r.raw)
		}
		_ = i.done(r)
		if k == 0 {
			if err := i.logIn(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := i.send([]byte{0x20, 0x32, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	r, err := i.next(5 * time.Second)
	if err != nil || r.raw[0] != byte(OpHelloReply)<<4|helloREJ {
		t.Errorf("version 2 to 3: %v, % x", err, r.raw)
	}
	if err := i.waitDisconnected(5 * time.Second); err != nil {
		t.Error(err)
	}
	if total(s).Hellos != 3 {
		t.Errorf("%d Hellos counted", total(s).Hellos)
	}
}

// TestWakeStorm: wake-ups from many goroutines, during the life of connections and after it.
func TestWakeStorm(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{Shards: 2})
	before := total(s)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				n.mu.Lock()
				for _, e := range n.engines {
					e.dm.Wake()
				}
				n.mu.Unlock()
				time.Sleep(100 * time.Microsecond)
			}
		}()
	}
	for k := range 20 {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		if err := i.read(0x28, uint32(k), 0, 65536); err != nil {
			t.Fatal(err)
		}
		i.close()
	}
	close(stop)
	wg.Wait()
	atRest(t, s, before)
	e := n.last()
	turns := e.turns.Load()
	e.dm.Wake()
	time.Sleep(5 * time.Millisecond)
	if e.turns.Load() != turns {
		t.Error("a turn after the end")
	}
}

// TestPlacement: connections go to the shard with the fewest.
func TestPlacement(t *testing.T) {
	f := newFabric(t)
	s, addr := stubServer(t, f, newStubNode(), Config{Shards: 3})
	for range 9 {
		i := mustDial(t, f.peer, addr, dialOptions{})
		defer i.close()
	}
	for _, sh := range s.Stats().Shards {
		if sh.Connections != 3 {
			t.Error(fmt.Sprintf("shard %d has %d connections", sh.Shard, sh.Connections))
		}
	}
}
