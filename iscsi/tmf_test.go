package iscsi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

// Where a task can be when it is aborted. In each place: one response of the function, none of the task, and the slot is
// used again.
func TestAbortTask(t *testing.T) {
	long := func(c *Config) { c.TMFWait = 5 * time.Second }
	for _, c := range []struct {
		name  string
		start func(w *world, p *peer) uint32
		// goOn lets the task come back; nil when the function is answered at once.
		goOn func(w *world, p *peer)
	}{
		{"read in a store", func(w *world, p *peer) uint32 { w.store.Hang(backstore.OpRead); return p.read(0, 8) },
			func(w *world, p *peer) { w.store.Release() }},
		{"write in a store", func(w *world, p *peer) uint32 {
			w.store.Hang(backstore.OpWrite)
			return p.write(0, pattern(4096, 1), 4096, true)
		}, func(w *world, p *peer) { w.store.Release() }},
		{"data-out that can be stopped", func(w *world, p *peer) uint32 {
			p.turn(func() { p.holdData = true })
			return p.write(0, pattern(4096, 1), 0, true)
		}, nil},
		{"data-out that cannot be stopped", func(w *world, p *peer) uint32 {
			p.holdData, p.noCancel = true, true
			return p.write(0, pattern(4096, 1), 512, true)
		}, func(w *world, p *peer) { p.finishData(nil) }},
		{"data that is thrown away", func(w *world, p *peer) uint32 {
			p.holdData, p.noCancel = true, true
			return p.write(1<<20, pattern(4096, 1), 512, false)
		}, func(w *world, p *peer) { p.finishData(nil) }},
		{"waiting for memory", func(w *world, p *peer) uint32 {
			p.bufferLimit, p.holdRelease = 1, true
			p.good(p.read(0, 8))
			return p.write(0, pattern(4096, 1), 512, true)
		}, nil},
	} {
		w := newWorld(t, long)
		p := w.session(hostA, 1)
		itt := c.start(w, p)
		p.nothing()
		p.abort(itt)
		if c.goOn != nil {
			p.nothing() // the function waits, the connection does not
			p.ping(nil, true)
			c.goOn(w, p)
		}
		p.tmfResponse(pdu.TMFunctionComplete)
		p.nothing()
		p.abort(itt)
		p.tmfResponse(pdu.TMTaskDoesNotExist)
		if p.c.win.unanswered != 0 {
			t.Errorf("%s: %d unanswered", c.name, p.c.win.unanswered)
		}
		if n := w.store.Seen(backstore.OpWrite); n > 0 && !strings.HasPrefix(c.name, "write") {
			t.Errorf("%s: the store saw a write", c.name)
		}
		p.holdData, p.holdRelease, p.bufferLimit = false, false, 0
		p.ready()
	}
}

// B89, B90: a task whose response is on its way is no more; the response goes first.
func TestB90_AbortOfAFinishedTask(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	p.turn(func() { p.holdRelease = true })
	itt := p.read(0, 8)
	p.abort(itt)
	p.good(itt)
	p.tmfResponse(pdu.TMTaskDoesNotExist)
	p.abort(12345)
	p.tmfResponse(pdu.TMTaskDoesNotExist)
}

// RFC 7143: an ABORT TASK that overtook its command counts the command as received.
func TestAbortOfACommandThatHasNotCome(t *testing.T) {
	for _, held := range []bool{false, true} {
		w := newWorld(t, nil)
		p := w.session(hostA, 1)
		sn := p.cmdSN
		lost := uint32(4711)
		if held {
			p.cmdSN = sn.Next()
			lost = p.write(0, pattern(512, 1), 512, true)
			p.cmdSN = sn.Add(2)
			sn = sn.Next()
		} else {
			p.cmdSN = sn.Next()
		}
		p.tmf(pdu.TMAbortTask, 0, func(r *pdu.TaskManagementRequest) {
			r.SetReferencedTaskTag(lost)
			r.SetRefCmdSN(sn)
		})
		p.tmfResponse(pdu.TMFunctionComplete)
		if held {
			after := p.cmdSN
			p.cmdSN = sn.Add(^uint32(0))
			p.good(p.command(0, "00", 0, nil))
			p.cmdSN = after
		}
		p.ready()
		if n := w.store.Seen(backstore.OpWrite); n != 0 {
			t.Error("the aborted command was carried out")
		}
	}
	// Outside the window, or not before the function: it does not exist.
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, d := range []uint32{0, 1, 100, 1 << 31, ^uint32(0)} {
		p.tmf(pdu.TMAbortTask, 0, func(r *pdu.TaskManagementRequest) {
			r.SetReferencedTaskTag(4711)
			r.SetRefCmdSN(p.cmdSN.Add(d))
		})
		p.tmfResponse(pdu.TMTaskDoesNotExist)
	}
}

// B93: unknown functions, and those that make no sense here, are answered once and leave nothing behind.
func TestB93_OtherFunctions(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for f := range 128 {
		want := pdu.TMFunctionNotSupported
		switch pdu.TMFunction(f) {
		case pdu.TMAbortTask:
			want = pdu.TMTaskDoesNotExist
		case pdu.TMTaskReassign:
			want = pdu.TMReassignNotSupported
		case pdu.TMAbortTaskSet, pdu.TMClearTaskSet, pdu.TMLogicalUnitReset, pdu.TMTargetWarmReset:
			want = pdu.TMFunctionComplete
		case pdu.TMTargetColdReset:
			continue
		}
		for _, immediate := range []bool{true, false} {
			p.tmf(pdu.TMFunction(f), 0, func(r *pdu.TaskManagementRequest) { r.BHS().SetImmediate(immediate) })
			p.tmfResponse(want)
		}
	}
	p.nothing()
	p.ready()
	if len(p.c.tmfs) != 0 || p.c.win.unanswered != 0 {
		t.Errorf("%d functions and %d commands are left", len(p.c.tmfs), p.c.win.unanswered)
	}
	if err := w.node.RemoveTarget(iqn); err != nil {
		t.Fatal(err)
	}
	p.closed()
}

func TestTaskSets(t *testing.T) {
	for _, c := range []struct {
		f      pdu.TMFunction
		others bool // commands of other nexuses are ended
		code   scsi.AdditionalSense
	}{
		{pdu.TMAbortTaskSet, false, 0},
		{pdu.TMClearTaskSet, true, scsi.CommandsClearedByAnotherPort},
		{pdu.TMLogicalUnitReset, true, scsi.BusDeviceResetFunctionOccurred},
		{pdu.TMTargetWarmReset, true, scsi.SCSIBusResetOccurred},
	} {
		w := newWorld(t, func(c *Config) { c.TMFWait = 5 * time.Second })
		p, q := w.session(hostA, 1), w.session(hostB, 1)
		w.store.Hang(backstore.OpRead)
		p.read(0, 8)
		p.read(8, 8)
		mine := q.read(16, 8)
		p.tmf(c.f, 0, nil)
		q.ping(nil, true) // the mail was read in an earlier turn or will be: neither waits
		p.nothing()
		if c.others {
			q.await("the abort", func() bool { return q.c.tasks[0].aborted || anyAborted(q.c) })
		}
		w.store.Release()
		p.tmfResponse(pdu.TMFunctionComplete)
		p.nothing()
		if c.others {
			itt := q.command(0, "00", 0, nil)
			q.checkCondition(itt, scsi.UnitAttention, c.code) // and no status for the read: TAS is 0
		} else {
			q.good(mine)
		}
		q.ready()
		p.ready()
	}
}

func anyAborted(c *Connection) bool {
	for i := range c.tasks {
		if c.tasks[i].state == taskStore && c.tasks[i].aborted {
			return true
		}
	}
	return false
}

// B94: TARGET COLD RESET ends every session of the target, after its response.
func TestB94_ColdReset(t *testing.T) {
	w := newWorld(t, nil)
	_, dev := newUnit(t, w.store, iqnOther)
	w.addTarget(iqnOther, dev, nil)
	n := names(hostB, 9)
	n.TargetName = iqnOther
	stranger := w.connect(tcpInfo()).login(n)
	stranger.ready()
	p, q := w.session(hostA, 1), w.connect(iserInfo()).login(names(hostB, 1))
	p.tmf(pdu.TMTargetColdReset, 0, nil)
	p.tmfResponse(pdu.TMFunctionComplete)
	p.closed()
	q.closed()
	stranger.ready()
	if n := len(w.node.Sessions()); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// B91: a store that hangs delays a function for a bounded time only. A write that may still land cannot be called aborted.
func TestB91_FunctionsAreBounded(t *testing.T) {
	for _, write := range []bool{false, true} {
		w := newWorld(t, nil)
		p := w.session(hostA, 1)
		w.store.Hang(backstore.OpRead)
		w.store.Hang(backstore.OpWrite)
		itt := uint32(0)
		want := pdu.TMFunctionComplete
		if write {
			itt, want = p.write(0, pattern(512, 1), 512, true), pdu.TMFunctionRejected
		} else {
			itt = p.read(0, 8)
		}
		p.abort(itt)
		p.tmf(pdu.TMLogicalUnitReset, 0, nil)
		p.ping(nil, false)
		p.tmfResponse(want)
		p.tmfResponse(want)
		s := w.node.Stats()
		if late := s.LateWrites > 0; s.TMFTimeouts != 2 || late != write {
			t.Errorf("write %v: %d timeouts, %d late writes", write, s.TMFTimeouts, s.LateWrites)
		}
		w.store.Release()
		p.await("the task", func() bool { return p.c.busy == 0 })
		p.nothing()
		p.ready()
	}
}

// The tasks of a session that is already gone count too: a reset is complete when nothing can land any more.
func TestResetWaitsForTheGone(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.TMFWait = 5 * time.Second })
	p, q := w.session(hostA, 1), w.session(hostB, 1)
	w.store.Hang(backstore.OpWrite)
	q.write(0, pattern(512, 1), 512, true)
	q.lose(nil)
	p.tmf(pdu.TMLogicalUnitReset, 0, nil)
	time.Sleep(20 * time.Millisecond)
	p.nothing()
	w.store.Release()
	p.tmfResponse(pdu.TMFunctionComplete)
}

func TestTooManyFunctions(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.TMFWait = 5 * time.Second })
	p := w.session(hostA, 1)
	w.store.Hang(backstore.OpRead)
	p.read(0, 1)
	for range immediateAllowance {
		p.tmf(pdu.TMAbortTaskSet, 0, nil)
	}
	p.nothing()
	p.tmf(pdu.TMAbortTaskSet, 0, nil)
	if s := p.expect(pdu.OpReject); s.bhs.Reject().Reason() != pdu.RejectImmediateCommand {
		t.Errorf("%v", s.bhs.Reject().Reason())
	}
	w.store.Release()
	for range immediateAllowance {
		p.tmfResponse(pdu.TMFunctionComplete)
	}
}

// Sessions that reset each other, log in over each other, vanish and are removed, over a store that answers elsewhere.
// Everything ends; the race detector watches.
func TestEverybodyAtOnce(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.NopInterval, c.NopTimeout = 20*time.Millisecond, time.Second })
	w.store.Async(true)
	var peers [8]*peer
	var mu sync.Mutex
	connect := func() *peer {
		mu.Lock()
		defer mu.Unlock()
		return w.connect(tcpInfo())
	}
	end := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	for i := range peers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for time.Now().Before(end) {
				p := connect()
				// Two of them are the same initiator port.
				if p.tryLogin(names(fmt.Sprintf("iqn.2026-01.host:%d", i/2), 1), nil) != nil {
					continue
				}
				for range r.IntN(60) {
					switch n := r.IntN(20); {
					case n < 8:
						p.write(uint32(r.IntN(64)*8), pattern(4096, byte(n)), []int{0, 512, 4096}[r.IntN(3)], true)
					case n < 16:
						p.read(uint32(r.IntN(64)*8), 8)
					case n < 17:
						p.tmf(pdu.TMFunction(r.IntN(7)), 0, nil) // not the cold reset
					case n < 18:
						p.abort(p.tag - uint32(r.IntN(4)))
					case n < 19:
						for _, s := range w.node.Target(iqn).Sessions() {
							s.Info()
						}
					default:
						time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
					}
					p.mu.Lock()
					// Keep to the window, as an initiator does.
					p.cmdSN = p.c.win.exp
					p.sent = nil
					over := p.notified
					p.mu.Unlock()
					if over {
						break
					}
				}
				switch r.IntN(4) {
				case 0:
					p.lose(nil)
				case 1:
					w.node.Target(iqn).Sessions()
				case 2:
					p.tmf(pdu.TMTargetColdReset, 0, nil)
				}
			}
		}()
	}
	wg.Wait()
	w.node.Target(iqn).RemoveSessions("enough")
	for end := time.Now().Add(5 * time.Second); len(w.node.Sessions()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sessions are left", len(w.node.Sessions()))
		}
	}
}

// What a session wrote and was told of is there for the next one.
func TestDataOutlivesTheSession(t *testing.T) {
	w := newWorld(t, nil)
	data := pattern(4096, 4)
	p := w.session(hostA, 1)
	p.good(p.write(8, data, 0, true))
	q := w.session(hostA, 1)
	itt := q.read(8, 8)
	q.good(itt)
	if !bytes.Equal(q.dataIn(itt), data) {
		t.Error("the data is gone")
	}
}
