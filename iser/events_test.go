package iser

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

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
			t.Errorf("shard %d has %d connections", sh.Shard, sh.Connections)
		}
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

// TestAddresses: IPv4, IPv6 and both wildcards, side by side on one port.
func TestAddresses(t *testing.T) {
	f := rdmatestPlain()
	s, first := stubServer(t, f, newStubNode(), Config{})
	for _, tt := range []struct{ listen, dial string }{
		{"[2001:db8::1]:0", "2001:db8::1"}, {"0.0.0.0:0", "192.0.2.1"}, {"[::]:0", "2001:db8::1"},
	} {
		l, err := s.Listen(netip.MustParseAddrPort(tt.listen))
		if err != nil {
			t.Errorf("%s: %v", tt.listen, err)
			continue
		}
		i := mustDial(t, f.peer, netip.AddrPortFrom(netip.MustParseAddr(tt.dial), l.Addr().Port()), dialOptions{})
		if err := i.logIn(); err != nil {
			t.Errorf("%s: %v", tt.listen, err)
		}
		i.close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if i, err := dial(f.peer, netip.AddrPortFrom(netip.MustParseAddr(tt.dial), l.Addr().Port()), dialOptions{}); err == nil {
			i.close()
			t.Errorf("%s: still there after Close", tt.listen)
		}
	}
	if _, err := s.Listen(first); err == nil {
		t.Error("one address listened on twice")
	}
}
