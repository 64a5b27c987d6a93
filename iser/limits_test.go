package iser

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

// exercise logs in and moves data of many sizes both ways, one command at a time and 16 at once.
func exercise(t *testing.T, f *fabric, n *stubNode, cfg Config, o dialOptions) *Server {
	t.Helper()
	s, addr := stubServer(t, f, n, cfg)
	i := mustDial(t, f.peer, addr, o)
	defer i.close()
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	tag := uint32(1)
	for _, size := range []int{512, 4096, 70000, 1 << 20, 2<<20 + 4096} {
		if err := i.read(0x28, tag, 5*uint32(size), size); err != nil {
			t.Fatal(err)
		}
		if err := i.write(tag+1, 5*uint32(size), size, min(size, 4096)); err != nil {
			t.Fatal(err)
		}
		tag += 2
	}
	for _, write := range []bool{false, true} {
		l := i.newLoad(16, write, 64<<10, 100)
		if err := l.run(200); err != nil {
			t.Fatal(err)
		}
		if err := l.flushRecvs(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestB108_SmallDevices runs on devices that can do little: few pieces, short messages, short queues. FailOnMisuse sees
// queue overflows and too many RDMA READs.
func TestB108_SmallDevices(t *testing.T) {
	for name, attr := range map[string]func(*rdma.DeviceAttr){
		"one piece":           func(a *rdma.DeviceAttr) { a.MaxSGE, a.MaxSGERead = 1, 1 },
		"one piece in READ":   func(a *rdma.DeviceAttr) { a.MaxSGE, a.MaxSGERead = 3, 1 },
		"short messages":      func(a *rdma.DeviceAttr) { a.MaxMsgSize = 16 << 10 },
		"no inline":           func(a *rdma.DeviceAttr) { a.MaxInline = 0 },
		"48 work requests":    func(a *rdma.DeviceAttr) { a.MaxQPWR = 48 },
		"one READ at a time":  func(a *rdma.DeviceAttr) { a.MaxQPInitRDAtom = 1 },
		"B107: boastful":      func(a *rdma.DeviceAttr) { a.MaxCQE = 1<<31 - 1; a.MaxQPWR = 1<<31 - 1 },
		"B107: all at a time": func(a *rdma.DeviceAttr) { a.MaxSGE, a.MaxSGERead, a.MaxQPWR, a.MaxInline, a.MaxCQE = 1, 1, 44, 16, 256 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newStubNode()
			n.res.Tasks, n.res.Window = 32, 32
			exercise(t, memFabric(t, rdmatest.Config{Misuse: misuse(t)}, attr), n, Config{}, dialOptions{})
		})
	}
}

// TestB122_B123_ShortSendQueue: work waits for room and always gets it; nothing is posted that does not fit.
func TestB122_B123_ShortSendQueue(t *testing.T) {
	for _, depth := range []int{8, 9, 16, 31} {
		s := exercise(t, newFabric(t), newStubNode(), Config{SendDepth: depth}, dialOptions{})
		st := s.Stats()
		if tot := st.Total(); tot.WaitSQ == 0 {
			t.Errorf("depth %d: nothing ever waited: %+v", depth, tot)
		}
	}
}

// TestB125_ReadDepth: RDMA READs stay within what the initiator answers at a time; nothing counts as one. The fabric
// reports any excess.
func TestB125_ReadDepth(t *testing.T) {
	for _, o := range []dialOptions{{responder: 1}, {responder: 4}, {responder: 16}} {
		exercise(t, newFabric(t), newStubNode(), Config{}, o)
	}
	f := newFabric(t)
	s, addr := stubServer(t, f, newStubNode(), Config{})
	i := mustDial(t, f.peer, addr, dialOptions{noZero: true})
	defer i.close()
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	s.eachConn(func(c *conn) {
		if c.ord != 1 {
			t.Errorf("an initiator that reports 0 gets %d READs", c.ord)
		}
	})
}

// TestB109_CompletionQueueFull: connections beyond what the completion queue can hold are refused; those that are in
// go on.
func TestB109_CompletionQueueFull(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, func(a *rdma.DeviceAttr) { a.MaxCQE = 1100 })
	var refused atomic.Value
	s, addr := stubServer(t, f, newStubNode(), Config{CQDepth: 512, Events: Events{Refused: func(_ netip.AddrPort, err error) { refused.Store(err) }}})
	var in []*initiator
	for k := range 4 {
		i, err := dial(f.peer, addr, dialOptions{})
		if k < 2 {
			if err != nil {
				t.Fatalf("connection %d: %v", k, err)
			}
			in = append(in, i)
			defer i.close()
			continue
		}
		if err == nil {
			t.Fatalf("connection %d was let in", k)
		}
	}
	if err, _ := refused.Load().(error); !errors.Is(err, errCQFull) {
		t.Errorf("refused because of %v", err)
	}
	for _, i := range in {
		if err := i.logIn(); err != nil {
			t.Error(err)
		}
		if err := i.read(0x28, 1, 0, 4096); err != nil {
			t.Error(err)
		}
	}
	st := s.Stats()
	if tot := st.Total(); tot.CQReserved > tot.CQDepth || tot.Refused != 2 {
		t.Errorf("%d entries reserved of %d, %d refused", tot.CQReserved, tot.CQDepth, tot.Refused)
	}
}

// TestB105_B106_StartUp: what cannot be had is said at start-up.
func TestB105_B106_StartUp(t *testing.T) {
	for _, verb := range []string{"RegMR", "AllocPD", "CreateCQ", "NewCompletionChannel", "NewEventChannel"} {
		f := memFabric(t, rdmatest.Config{}, nil)
		want := &rdma.OpError{Op: verb, Errno: syscall.ENOMEM, Hint: "raise the limit"}
		f.mem.SetFaults(rdmatest.Faults{Verb: func(_, op string) error {
			if op == verb {
				return want
			}
			return nil
		}})
		s, err := newServer(f.target, newStubNode().make, Config{Shards: 2, PoolBytes: 4 << 20})
		if err == nil {
			t.Errorf("%s fails and nobody notices", verb)
			_ = s.Close(t.Context())
			continue
		}
		if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), want.Hint) {
			t.Errorf("%s: the error says %v", verb, err)
		}
	}
}

// TestPoolShort: commands wait for buffers in the order they came, and all get theirs.
func TestPoolShort(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{PoolBytes: 5 << 20, PoolMaxBytes: 5 << 20})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	j := mustDial(t, f.peer, addr, dialOptions{})
	defer j.close()
	for _, x := range []*initiator{i, j} {
		if err := x.logIn(); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 2)
	for k, x := range []*initiator{i, j} {
		go func() {
			l := x.newLoad(8, k == 1, 1<<20, 1)
			done <- l.run(100)
		}()
	}
	for range 2 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("somebody waits for ever")
		}
	}
	st := s.Stats()
	if st := st.Total(); st.WaitBuffers == 0 {
		t.Error("nothing ever waited for buffers")
	}
}
