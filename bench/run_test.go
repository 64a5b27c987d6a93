package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/initiator"
)

func over(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, name := range transports {
		t.Run(name, func(t *testing.T) { f(t, newRig(t, name)) })
	}
}

// Every kind of load, in sizes with and without immediate data, with one session and several.
func TestLoads(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		for _, sessions := range []int{1, 3} {
			c := r.connect(0, sessions, 32)
			for _, rw := range []RW{Read, Write, RandRead, RandWrite, RandRW} {
				for _, size := range []uint64{512, 4096, 65536} {
					const count = 200
					res := drive(t, c, Load{RW: rw, ReadPercent: 50, Size: size, Depth: 16, Count: count, Seed: 1})
					if res.Measured != count || res.Bytes != count*size || res.Sessions != sessions {
						t.Errorf("%s %d: %d requests, %d bytes, %d sessions", rw, size, res.Measured, res.Bytes, res.Sessions)
					}
					if both := res.Reads != nil && res.Writes != nil; both != (rw == RandRW) {
						t.Errorf("%s: reads %v, writes %v apart", rw, res.Reads, res.Writes)
					}
					if rw.Writes() != (res.WriteIOPS > 0) || rw.Reads() != (res.ReadIOPS > 0) || res.IOPS <= 0 || res.MBPerSec <= 0 {
						t.Errorf("%s: %+v", rw, res)
					}
				}
			}
		}
	})
}

// A load that time ends, and what is done in the warm-up does not count.
func TestTime(t *testing.T) {
	c := newRig(t, "rdmatest").connect(0, 2, 8)
	told := 0
	res, err := c.Run(context.Background(), Load{RW: RandRead, Size: 4096, Depth: 8, Duration: 500 * time.Millisecond, Warmup: 100 * time.Millisecond}, func(p Progress) {
		told++
		if p.Part < 0 || p.Part > 1 {
			t.Errorf("part %v", p.Part)
		}
	})
	check(t, err)
	accounted(t, &res)
	if res.Measured == 0 || res.Measured >= res.Completed || res.Seconds < 0.2 || told == 0 {
		t.Errorf("%d of %d requests measured in %v s, told %d times", res.Measured, res.Completed, res.Seconds, told)
	}
}

// With a rate no more is started than was asked for, and every request that was due is done.
func TestRate(t *testing.T) {
	c := newRig(t, "rdmatest").connect(0, 2, 8)
	res := drive(t, c, Load{RW: RandRead, Size: 4096, Depth: 8, Count: 100, Rate: 1000})
	if res.Measured != 100 || res.Seconds < 0.098 {
		t.Errorf("%d requests at 1000/s took %v s", res.Measured, res.Seconds)
	}
	// A target that stalls does not slow the clock: what was due meanwhile waited, and its latency says so.
	r := newRig(t, "rdmatest")
	slow := r.connect(1, 1, 1)
	r.fault.Delay(backstore.OpRead, 20*time.Millisecond)
	res = drive(t, slow, Load{RW: RandRead, Size: 4096, Depth: 1, Count: 10, Rate: 1000})
	if res.Latency.Max < int64(150*time.Millisecond) {
		t.Errorf("ten requests, due within 10 ms and done one after the other in 20 ms each: the last waited only %v", time.Duration(res.Latency.Max))
	}
}

// Write, read back, compare, with sizes that do not divide the region, in order and in random order.
func TestVerify(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(0, 2, 16)
		gen := uint64(0)
		for _, size := range []uint64{512, 4096, 24576, 1 << 20} {
			for _, w := range []RW{Write, RandWrite} {
				gen++
				l := Load{RW: w, Size: size, Depth: 16, Offset: 512, Region: storeSize - 1024, Seed: 5, Generation: gen, Verify: VerifyWrite}
				wrote := drive(t, c, l)
				l.Verify = VerifyRead
				read := drive(t, c, l)
				if wrote.Bytes != storeSize-1024 || read.Bytes != wrote.Bytes {
					t.Errorf("%d bytes written, %d read, want %d", wrote.Bytes, read.Bytes, storeSize-1024)
				}
			}
		}
	})
}

// One bit that is not as it was written is found and told, and so is a pass that never came.
func TestVerifyFinds(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(0, 1, 8)
		l := Load{RW: Write, Size: 8192, Depth: 8, Seed: 5, Generation: 1, Verify: VerifyWrite}
		drive(t, c, l)
		const at = 700*512 + 300
		r.mem.Map(nil, at, 1)[0][0] ^= 1
		l.Verify = VerifyRead
		res, err := c.Run(context.Background(), l, nil)
		check(t, err)
		accounted(t, &res)
		if res.OK() || res.BadBlocks != 1 || len(res.Mismatches) != 1 {
			t.Fatalf("%d bad blocks: %v", res.BadBlocks, res.Mismatches)
		}
		if m := res.Mismatches[0]; m.LBA != 700 || m.Offset != 300 || m.Want[300%8]^1 != m.Got[300%8] || m.Holds != "the block is the right one, damaged" {
			t.Errorf("%v", m)
		}
		l.Generation = 2
		res, err = c.Run(context.Background(), l, nil)
		check(t, err)
		if res.BadBlocks != storeSize/512 || len(res.Mismatches) != maxSamples || !strings.Contains(res.Mismatches[0].Holds, "a write was lost") {
			t.Errorf("%d bad blocks: %v", res.BadBlocks, res.Mismatches)
		}
	})
}

// A request that fails is named with its sense, ends the load, and the session goes on.
func TestFailure(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(1, 1, 8)
		r.fault.Fail(backstore.OpRead, 1, backstore.ErrIO)
		l := Load{RW: Read, Size: 4096, Depth: 8, Count: 1000}
		res, err := c.Run(context.Background(), l, nil)
		check(t, err)
		accounted(t, &res)
		if res.Failed != 1 || res.Launched >= 1000 || len(res.Failures) != 1 || !strings.Contains(res.Failures[0].String(), "CHECK CONDITION, MEDIUM ERROR") {
			t.Errorf("%d failed of %d: %v", res.Failed, res.Launched, res.Failures)
		}
		r.fault.Fail(backstore.OpRead, 3, backstore.ErrIO)
		l.KeepGoing = true
		res, err = c.Run(context.Background(), l, nil)
		check(t, err)
		accounted(t, &res)
		if res.Failed != 3 || res.Launched != 1000 || res.Measured != 997 {
			t.Errorf("kept going: %d failed of %d, %d measured", res.Failed, res.Launched, res.Measured)
		}
	})
}

// A target that stops answering is given up; every request is accounted for.
func TestLost(t *testing.T) {
	l := Load{RW: Read, Size: 4096, Depth: 8, Count: 1000, Timeout: 300 * time.Millisecond}
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(1, 1, 8)
		r.fault.Hang(backstore.OpRead)
		res, err := c.Run(context.Background(), l, nil)
		if !errors.Is(err, initiator.ErrTimeout) || !strings.Contains(err.Error(), "8 requests") {
			t.Errorf("error %v, want one that says that nothing is answered", err)
		}
		accounted(t, &res)
		if res.Lost != 8 || res.Completed != 0 {
			t.Errorf("%d lost, %d completed", res.Lost, res.Completed)
		}
		r.fault.Release()
	})
}

// A target that is stopped ends the load; every request is accounted for.
func TestTargetStops(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(0, 2, 8)
		stopped := make(chan error, 1)
		time.AfterFunc(50*time.Millisecond, func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			stopped <- r.node.Shutdown(ctx)
		})
		res, err := c.Run(context.Background(), Load{RW: Read, Size: 4096, Depth: 8, Duration: time.Hour}, nil)
		accounted(t, &res)
		if err == nil && len(res.Failures) == 0 || res.Completed == 0 {
			t.Errorf("%v; %d completed, %d lost, %v", err, res.Completed, res.Lost, res.Failures)
		}
		check(t, <-stopped)
		_ = c.Close() // a session that the load did not see end says so here
	})
}

// The end of the context ends the load in order: what is under way is waited for, and measured.
func TestInterrupt(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		c := r.connect(0, 2, 8)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, cancel)
		res, err := c.Run(ctx, Load{RW: RandRead, Size: 4096, Depth: 8, Duration: time.Hour}, nil)
		check(t, err)
		accounted(t, &res)
		if !res.Interrupted || res.Lost != 0 || res.Measured == 0 {
			t.Errorf("%+v", res)
		}
	})
}

// Loads that do not suit the LUN are refused before anything is sent.
func TestMisfit(t *testing.T) {
	c := newRig(t, "rdmatest").connect(0, 1, 4)
	for want, l := range map[string]Load{
		"not a multiple of the LUN's block size, 512": {Size: 1000, Depth: 1},
		"want at least 1":     {Size: 512},
		"beyond the end":      {Size: 512, Depth: 1, Offset: storeSize},
		"the LUN has 4194304": {Size: 512, Depth: 1, Offset: 512, Region: storeSize},
		"does not fit":        {Size: 8192, Depth: 1, Region: 4096},
		"must be multiples":   {Size: 512, Depth: 1, Offset: 1},
		"a duration":          {Size: 512, Depth: 1},
		"every task":          {Size: 512, Depth: 5, Count: 1},
	} {
		l.RW = Read
		if res, err := c.Run(context.Background(), l, nil); err == nil || !strings.Contains(err.Error(), want) || res.Launched != 0 {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
	drive(t, c, Load{RW: Read, Size: 512, Depth: 4, Count: 10}) // none of them kept a task
}

// Without a name the only target is taken; of several the user takes one.
func TestDiscovery(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		r.target.Name = ""
		if c := r.connect(0, 1, 1); c.Link.Target != targetName || c.Disk.BlockSize != 512 || c.Disk.Bytes() != storeSize || c.Disk.Vendor == "" || c.Disk.Serial == "" {
			t.Errorf("%+v", c.Link)
		}
	})
}

// What is no disk, or not there, is told before the load.
func TestConnectErrors(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		for want, change := range map[string]func(*Options){
			"no such logical unit": func(o *Options) { o.Target.LUN = 9 },
			"refused":              func(o *Options) { o.Target.Name = "iqn.2026-01.test:other" },
			"want at least 1":      func(o *Options) { o.Depth = 0 },
		} {
			o := Options{Target: r.target, Sessions: 1, Depth: 1, Provider: r.peer}
			change(&o)
			if c, err := Connect(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
				if err == nil {
					check(t, c.Close())
				}
			}
		}
	})
}

// In steady state a turn of a session's goroutine allocates nothing, however many requests it starts and takes.
func TestNoAllocation(t *testing.T) {
	over(t, func(t *testing.T, r *rig) {
		for _, rw := range []RW{RandRead, RandWrite, RandRW} {
			t.Run(string(rw), func(t *testing.T) {
				c := r.connect(0, 1, 64)
				l := Load{RW: rw, ReadPercent: 50, Size: 4096, Depth: 32, Timeout: 10 * time.Second}
				a, err := l.cut(c.Disk.BlockSize, c.Disk.Blocks)
				check(t, err)
				w, err := newWorker(&run{load: &l, disk: c.Disk, lun: initiator.LUN(0), area: a, base: time.Now()}, c.Sessions[0], 0, 1)
				check(t, err)
				turn := func() {
					_, err := w.fill()
					check(t, err)
					check(t, w.reap(true))
				}
				for range 200 {
					turn()
				}
				before := w.completed
				if n := testing.AllocsPerRun(1000, turn); n != 0 {
					t.Errorf("%v objects per turn", n)
				}
				if w.completed-before < 1000 {
					t.Errorf("only %d requests in 1000 turns", w.completed-before)
				}
				for w.stop.Store(true); w.under > 0; {
					turn()
				}
				check(t, w.release())
			})
		}
	})
}

func BenchmarkRead4K(b *testing.B) {
	for _, name := range transports {
		b.Run(name, func(b *testing.B) {
			c := newRig(b, name).connect(0, 1, 32)
			b.ReportAllocs()
			b.SetBytes(4096)
			b.ResetTimer()
			drive(b, c, Load{RW: RandRead, Size: 4096, Depth: 32, Count: uint64(b.N)})
		})
	}
}

func TestLoopback(t *testing.T) {
	for _, c := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.2:1", "127.0.0.1:3260", true},
		{"[::1]:5", "[::1]:3260", true},
		{"192.0.2.7:1", "192.0.2.7:3260", true},
		{"192.0.2.7:1", "192.0.2.8:3260", false},
		{"", "192.0.2.8:3260", false},
	} {
		if got := loopback(c.local, c.remote); got != c.want {
			t.Errorf("%s to %s: %v", c.local, c.remote, got)
		}
	}
}
