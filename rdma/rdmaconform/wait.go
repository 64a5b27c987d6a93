package rdmaconform

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/rdma"
)

func testWaitTimeout(t *testing.T, env Env) {
	tgt, _ := connect(t, &env, options{})
	start := time.Now()
	if n, err := tgt.cc.Wait(20 * time.Millisecond); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if d := time.Since(start); d < 15*time.Millisecond || d > 20*time.Millisecond+env.Patience/2 {
		t.Errorf("waited %s", d)
	}
	if n, err := tgt.cc.Wait(0); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// testWake: a Wake ends the current Wait or the next one, once.
func testWake(t *testing.T, env Env) {
	tgt, _ := connect(t, &env, options{})
	tgt.cc.Wake()
	tgt.cc.Wake()
	start := time.Now()
	if n, err := tgt.cc.Wait(env.Patience); n != 0 || err != nil || time.Since(start) > env.Patience/2 {
		t.Errorf("%d, %v after %s", n, err, time.Since(start))
	}
	start = time.Now()
	if n, err := tgt.cc.Wait(20 * time.Millisecond); n != 0 || err != nil || time.Since(start) < 15*time.Millisecond {
		t.Errorf("a Wake was seen twice: %d, %v after %s", n, err, time.Since(start))
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		tgt.cc.Wake()
	}()
	start = time.Now()
	if n, err := tgt.cc.Wait(-1); n != 0 || err != nil || time.Since(start) > env.Patience {
		t.Errorf("%d, %v after %s", n, err, time.Since(start))
	}
}

func testArmThenWait(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 8, 0, 64) }})
	// Not armed: no event.
	ini.send(ini.message(1, 0, 10))
	tgt.reapOK(1)
	if n, err := tgt.cc.Wait(env.Quiet); n != 0 || err != nil {
		t.Errorf("an event without arming: %d, %v", n, err)
	}
	must(t, tgt.cq.Arm())
	if n, err := tgt.cc.Wait(env.Quiet); n != 0 || err != nil {
		t.Errorf("an event without a completion: %d, %v", n, err)
	}
	// Armed once: one event, whatever comes.
	ini.send(ini.message(2, 0, 10), ini.message(3, 0, 10))
	if n, err := tgt.cc.Wait(env.Patience); n != 1 || err != nil {
		t.Fatalf("%d events, %v", n, err)
	}
	tgt.reapOK(2)
	ini.send(ini.message(4, 0, 10))
	tgt.reapOK(1)
	if n, err := tgt.cc.Wait(env.Quiet); n != 0 || err != nil {
		t.Errorf("a second event for one arming: %d, %v", n, err)
	}
	// A flushed request is a completion like any other.
	must(t, tgt.cq.Arm())
	must(t, tgt.qp.SetError())
	if n, err := tgt.cc.Wait(env.Patience); n != 1 || err != nil {
		t.Errorf("flush: %d events, %v", n, err)
	}
}

func testCloseWakesWaiter(t *testing.T, env Env) {
	devs, err := env.Target.Devices()
	must(t, err)
	cc, err := devs[0].NewCompletionChannel()
	must(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := cc.Wait(-1)
		got <- err
	}()
	time.Sleep(10 * time.Millisecond)
	must(t, cc.Close())
	select {
	case err := <-got:
		wantErr(t, "Wait", err, rdma.ErrClosed)
	case <-time.After(env.Patience):
		t.Error("Wait does not return")
	}
}

// sleeper receives with arm, poll and wait, and answers every message. It is how a shard's loop sleeps.
func (s *side) sleeper(total, window int) (err error) {
	done := 0
	recvs := [1]rdma.RecvWR{}
	sends := [1]rdma.SendWR{}
	posts := [1]rdma.QPPost{}
	drain := func() (int, error) {
		n, err := s.cq.Poll(s.wcs)
		if err != nil {
			return 0, err
		}
		for i := range s.wcs[:n] {
			wc := &s.wcs[i]
			if err := wc.Err(); err != nil {
				return 0, err
			}
			if wc.Op != rdma.WCRecv {
				continue
			}
			done++
			recvs[0] = rdma.RecvWR{ID: wc.ID, SGE: s.sges(int(wc.ID)*64, 64)}
			posts[0] = rdma.QPPost{QP: s.qp, Recvs: recvs[:]}
			if done+window <= total { // the last ones are not answered
				sends[0] = s.message(1<<32, 100000, 32)
				posts[0].Sends = sends[:]
			}
			s.dev.Post(posts[:])
			if posts[0].Err != nil {
				return 0, posts[0].Err
			}
		}
		return n, nil
	}
	for done < total {
		if n, err := drain(); n > 0 || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if rand.IntN(4) == 0 {
			runtime.Gosched()
		}
		if err := s.cq.Arm(); err != nil {
			return err
		}
		if n, err := drain(); n > 0 || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		start := time.Now()
		if n, err := s.cc.Wait(s.env.Patience); err != nil {
			return err
		} else if n == 0 && time.Since(start) >= s.env.Patience {
			return errLost
		}
	}
	return nil
}

type lostError struct{}

func (lostError) Error() string { return "slept through a completion" }

var errLost = lostError{}

// testNoLostWakeup plays ping-pong between two ends that both sleep whenever there is nothing to do.
func testNoLostWakeup(t *testing.T, env Env) {
	const window = 4
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 16, 0, 64) }})
	ini.recv(0, 16, 0, 64)
	errs := make(chan error, 2)
	// Each end gets env.Rounds messages: the first window of the target's from here, the rest are answers.
	go func() { errs <- tgt.sleeper(env.Rounds, 0) }()
	for range window {
		ini.send(ini.message(1<<32, 100000, 32))
	}
	go func() { errs <- ini.sleeper(env.Rounds, window) }()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// testWakeStress: what was stored before a Wake is seen after the Wait that it ends; no Wake is lost.
func testWakeStress(t *testing.T, env Env) {
	tgt, _ := connect(t, &env, options{})
	var counter atomic.Int64
	var wg sync.WaitGroup
	const wakers = 3
	total := int64(env.Rounds / wakers * wakers)
	for range wakers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range total / wakers {
				counter.Add(1)
				tgt.cc.Wake()
				if i%16 == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	for counter.Load() < total {
		before := counter.Load()
		start := time.Now()
		n, err := tgt.cc.Wait(env.Patience)
		if n != 0 || err != nil {
			t.Fatalf("%d events, %v", n, err)
		}
		if time.Since(start) >= env.Patience && counter.Load() == before && before < total {
			t.Fatal("a Wake was lost")
		}
	}
	wg.Wait()
}

// testManyQueuesOneChannel: one goroutine sleeps on a channel for several completion queues.
func testManyQueuesOneChannel(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 4, 0, 64) }})
	var more []rdma.CQ
	for range 3 {
		c, err := tgt.cc.CreateCQ(16, 0)
		must(t, err)
		must(t, c.Arm())
		more = append(more, c)
	}
	must(t, tgt.cq.Arm())
	ini.send(ini.message(1, 0, 10))
	if n, err := tgt.cc.Wait(env.Patience); n != 1 || err != nil {
		t.Errorf("%d events, %v", n, err)
	}
	for _, c := range more {
		if n, err := c.Poll(tgt.wcs); n != 0 || err != nil {
			t.Errorf("%d completions, %v", n, err)
		}
		must(t, c.Close())
	}
	tgt.reapOK(1)
}

func testPollAtMost(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 8, 0, 64) }})
	for range 8 {
		ini.send(ini.message(1, 0, 10))
	}
	ini.reapOK(8)
	if n, err := tgt.cq.Poll(nil); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	next := uint64(0)
	var few [3]rdma.WC
	for deadline := time.Now().Add(env.Patience); next < 8; {
		n, err := tgt.cq.Poll(few[:])
		must(t, err)
		for _, wc := range few[:n] {
			if wc.ID != next {
				t.Fatalf("receive %d, want %d", wc.ID, next)
			}
			next++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d completions", next)
		}
	}
}

func testResize(t *testing.T, env Env) {
	tgt, ini := connect(t, &env, options{prepare: func(s *side) { s.recv(0, 8, 0, 64) }})
	for range 4 {
		ini.send(ini.message(1, 0, 10))
	}
	ini.reapOK(4)
	err := tgt.cq.Resize(1024)
	if !env.CanResize {
		wantErr(t, "Resize", err, rdma.ErrUnsupported)
		t.Skip("queues cannot be resized here")
	}
	must(t, err)
	if d := tgt.cq.Depth(); d < 1024 {
		t.Errorf("depth %d", d)
	}
	for range 4 {
		ini.send(ini.message(1, 0, 10))
	}
	for i, wc := range tgt.reapOK(8) {
		if wc.ID != uint64(i) {
			t.Errorf("receive %d as number %d", wc.ID, i)
		}
	}
}
