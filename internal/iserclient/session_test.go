package iserclient_test

import (
	"context"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/initiator"
	"iserd/internal/initiator/sessionconform"
	"iserd/internal/iserclient"
	"iserd/iscsi"
)

// Sessions that differ in how they wait, and in what the target may do.
var sessions = map[string]iserclient.Options{
	"polling":     {},
	"sleeping":    {Sleep: true},
	"invalidated": {Sleep: true, PrivateData: []byte{iserclient.NoZBVA, 0, 0, 0}},
	"one read":    {ResponderResources: 1},
}

func (r *rig) world(o iserclient.Options) sessionconform.World {
	return sessionconform.World{
		Size: storeSize,
		Open: func(t testing.TB, depth int) initiator.Session {
			t.Helper()
			r.isid++
			s, err := iserclient.OpenSession(r.peer, r.addr, o, iserclient.Login{Target: targetName, ISID: [6]byte{0x80, 0, 0, 0, 0, r.isid}}, depth)
			check(t, err)
			t.Cleanup(func() { check(t, s.Close()) })
			return s
		},
		LUN:     iserclient.LUN(0),
		HeldLUN: slow,
		Hold:    func() { r.fault.Hang(backstore.OpWrite) },
		Resume:  func() { r.fault.Release() },
		Sever:   func() { r.fabric.SetLink(false) },
	}
}

func TestSession(t *testing.T) {
	for name, o := range sessions {
		t.Run(name, func(t *testing.T) {
			sessionconform.Run(t, func(t testing.TB) sessionconform.World { return newRig(t).world(o) })
		})
	}
}

// TestSessionShutdown: a target that is stopped asks us to log out first, which says why the tasks have ended.
func TestSessionShutdown(t *testing.T) {
	r := newRig(t)
	s := sessionconform.Ready(t, r.world(iserclient.Options{Sleep: true}), 4)
	r.fault.Hang(backstore.OpWrite)
	task, err := s.Take(0, 4096)
	check(t, err)
	task.LUN = slow
	initiator.PutReadWrite10(&task.CDB, true, 0, 8)
	check(t, s.StartTask(task))
	check(t, s.Flush())
	eventually(t, "the store has it", func() bool { return r.fault.Held() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- r.node.Shutdown(ctx) }()
	done := make([]*initiator.Task, 4)
	n, err := s.Poll(10*time.Second, done)
	if n != 1 || err != nil || done[0].Err == nil {
		t.Errorf("%d tasks, %v, want one with an error", n, err)
	}
	if n, err := s.Poll(0, done); n != 0 || err == nil {
		t.Errorf("%d tasks, %v", n, err)
	}
	check(t, s.Close())
	r.fault.Release()
	check(t, <-down)
}

// TestSessionPinged: the target's pings are answered while nothing else goes on, else it would end the session.
func TestSessionPinged(t *testing.T) {
	r := newRigOf(t, iscsi.Config{NopInterval: 10 * time.Millisecond, NopTimeout: 2 * time.Second})
	s := sessionconform.Ready(t, r.world(iserclient.Options{Sleep: true}), 4)
	done := make([]*initiator.Task, 1)
	eventually(t, "several pings", func() bool {
		n, err := s.Poll(20*time.Millisecond, done)
		check(t, err)
		return n == 0 && r.node.Stats().Pings > 4
	})
	if r.node.Stats().DeadPeers != 0 {
		t.Error("the target took us for dead")
	}
	check(t, s.Logout())
}

// TestSessionNoAllocs: client, fabric and target together allocate nothing for a command.
func TestSessionNoAllocs(t *testing.T) {
	for _, n := range []int{4096, 16384} {
		sessionconform.NoAllocs(t, newRig(t).world(iserclient.Options{}), n)
	}
}

func BenchmarkSession4K(b *testing.B) {
	sessionconform.Benchmark(b, newRig(b).world(iserclient.Options{}), 4096, 32)
}
