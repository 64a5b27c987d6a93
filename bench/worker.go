package bench

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"iserd/internal/initiator"
)

const (
	// maxSamples is how many failures of a session are kept in words.
	maxSamples = 10
	// pollTime bounds a wait for answers, so that the end of a load is seen.
	pollTime = 50 * time.Millisecond
	// reapMost is how many answers are taken at a time.
	reapMost = 64
)

// Directions index what there is for reads and for writes.
const (
	dirRead = iota
	dirWrite
)

// worker drives one session. Everything but the live counters is its goroutine's while it runs.
type worker struct {
	*run
	s       initiator.Session
	stream  *stream
	pattern pattern
	tasks   [2][]*initiator.Task // free
	reqs    []request            // by slot
	started []int64              // by slot: when it was due
	batch   []int                // slots that were queued and not yet handed over
	done    []*initiator.Task
	every   int64 // nanoseconds between starts of an open loop
	due     int64
	clock   int64 // as of the last batch
	under   int   // requests under way
	heard   int64 // when something was answered last, or first asked

	hist  [2]*hdrhistogram.Histogram
	bytes [2]uint64
	last  int64 // when the last measured request ended
	// Every request that was launched completed, failed (the target said so) or was lost with the session.
	launched, completed, failed, lost uint64
	unmeasured                        uint64 // completed, but started during the warm-up
	bad                               uint64 // blocks that did not verify
	samples                           []Failure
	misses                            []Mismatch
	err                               error
	dead                              bool // the session failed and is closed

	nextLive             int64
	liveCount, liveBytes atomic.Uint64
	liveP99              atomic.Int64
}

func newWorker(r *run, s initiator.Session, i, n int) (*worker, error) {
	l := r.load
	w := &worker{run: r, s: s, stream: newStream(l, r.area, i, n), pattern: pattern{int(r.disk.BlockSize), l.Seed, l.Generation}}
	slots := s.Info().Depth
	w.reqs, w.started = make([]request, slots), make([]int64, slots)
	w.batch, w.done = make([]int, 0, l.Depth), make([]*initiator.Task, min(l.Depth, reapMost))
	w.hist = [2]*hdrhistogram.Histogram{newHistogram(), newHistogram()}
	if l.Rate > 0 {
		// The sessions take turns, evenly.
		w.every = max(1, int64(float64(time.Second)*float64(n)/l.Rate))
		w.due = w.every * int64(i) / int64(n)
	}
	for dir, use := range [2]bool{l.reads(), l.writes()} {
		for k := 0; use && k < l.Depth; k++ {
			t, err := w.newTask(dir, int(l.Size))
			if err != nil {
				return nil, errors.Join(fmt.Errorf("session %d, depth %d: %w", i+1, l.Depth, err), w.release())
			}
			w.tasks[dir] = append(w.tasks[dir], t)
		}
	}
	return w, nil
}

func (w *worker) newTask(dir, size int) (*initiator.Task, error) {
	in, out := size, 0
	if dir == dirWrite {
		in, out = 0, size
	}
	t, err := w.s.Take(in, out)
	if err != nil {
		return nil, err
	}
	t.LUN = w.lun
	if dir == dirWrite && w.load.Verify == VerifyOff {
		// Data that neither compresses nor repeats, made once.
		pattern{w.pattern.block, w.load.Seed, ^uint64(t.Slot)}.fill(t.DataOut, uint64(t.Slot))
	}
	return t, nil
}

// release gives the tasks back.
func (w *worker) release() error {
	var errs []error
	for dir, list := range w.tasks {
		for _, t := range list {
			if !w.dead { // else they went with the session
				errs = append(errs, w.s.Release(t))
			}
		}
		w.tasks[dir] = nil
	}
	return errors.Join(errs...)
}

// work keeps the session busy until the load's end. A session that fails is closed, and what was under way is lost.
func (w *worker) work() {
	w.err = w.loop()
	if w.lost += uint64(w.under); w.err != nil || w.lost > 0 {
		w.under, w.dead = 0, true
		w.stop.Store(true)
		w.err = errors.Join(w.err, w.s.Close())
	}
	w.publish()
}

func (w *worker) loop() error {
	w.clock = w.now()
	w.heard = w.clock
	for more := true; more || w.under > 0; {
		var err error
		if more, err = w.fill(); err != nil {
			return err
		}
		if err = w.reap(more); err != nil {
			return err
		}
		if w.clock >= w.nextLive {
			w.publish()
		}
	}
	return nil
}

// fill starts what may be started and hands it over in one batch. more is whether there will be more to start.
func (w *worker) fill() (more bool, err error) {
	l := w.load
	more = true
	for w.under < l.Depth {
		if w.stop.Load() || w.to != 0 && w.clock >= w.to {
			more = false
			break
		}
		if w.every != 0 && w.due > w.clock {
			break
		}
		r, ok := w.stream.take(l.Verify == VerifyWrite)
		if !ok {
			more = false
			break
		}
		t, err := w.task(r)
		if err != nil {
			return false, err
		}
		if w.every != 0 {
			w.started[t.Slot] = w.due
			w.due += w.every
		}
		if err := w.s.StartTask(t); err != nil {
			return false, fmt.Errorf("start: %w", err)
		}
		w.batch = append(w.batch, t.Slot)
		w.launched++
		w.under++
	}
	if len(w.batch) == 0 {
		return more, nil
	}
	if w.every == 0 {
		w.clock = w.now()
		for _, slot := range w.batch {
			w.started[slot] = w.clock
		}
	}
	if w.under == len(w.batch) { // nothing was awaited before
		w.heard = w.clock
	}
	w.batch = w.batch[:0]
	// When this fails, what is under way comes back by Poll, each request with its error.
	_ = w.s.Flush()
	return more, nil
}

// task takes a free task and makes it a request.
func (w *worker) task(r request) (*initiator.Task, error) {
	dir := dirRead
	if r.write {
		dir = dirWrite
	}
	list := w.tasks[dir]
	t := list[len(list)-1]
	w.tasks[dir] = list[:len(list)-1]
	if n := int(r.blocks) * w.pattern.block; len(t.DataIn)+len(t.DataOut) != n { // the end of the region, or the task that did it
		var err error
		if err = w.s.Release(t); err != nil {
			return nil, err
		}
		if t, err = w.newTask(dir, n); err != nil {
			return nil, err
		}
	}
	if r.lba+uint64(r.blocks) <= 1<<32 && r.blocks < 1<<16 {
		initiator.PutReadWrite10(&t.CDB, r.write, uint32(r.lba), uint16(r.blocks))
	} else {
		initiator.PutReadWrite16(&t.CDB, r.write, r.lba, r.blocks)
	}
	if w.load.Verify == VerifyWrite {
		w.pattern.fill(t.DataOut, r.lba)
	}
	w.reqs[t.Slot] = r
	return t, nil
}

// reap takes what has been answered, and waits for something unless more may be started.
func (w *worker) reap(more bool) error {
	wait := pollTime
	if more && w.every != 0 && w.under < w.load.Depth {
		wait = min(wait, time.Duration(max(0, w.due-w.clock)))
		if w.under == 0 {
			time.Sleep(wait)
			w.clock = w.now()
			w.heard = w.clock
			return nil
		}
	}
	if w.under == 0 {
		return nil
	}
	n, err := w.s.Poll(wait, w.done)
	w.clock = w.now()
	if err != nil {
		return err
	}
	if n == 0 {
		if quiet := time.Duration(w.clock - w.heard); quiet > w.load.Timeout {
			return fmt.Errorf("%w to %d requests for %v", initiator.ErrTimeout, w.under, quiet.Round(time.Millisecond))
		}
		return nil
	}
	w.heard = w.clock
	for _, t := range w.done[:n] {
		w.under--
		w.ended(t)
	}
	return nil
}

// ended counts a task and frees it.
func (w *worker) ended(t *initiator.Task) {
	r, dir := w.reqs[t.Slot], dirRead
	if r.write {
		dir = dirWrite
	}
	w.tasks[dir] = append(w.tasks[dir], t)
	if t.Err != nil || t.Status != 0 || t.Underflow || t.Overflow || t.Response != 0 {
		w.bungled(t, r)
		return
	}
	w.completed++
	if w.load.Verify == VerifyRead {
		w.pattern.check(t.Data, r.lba, w.missed)
	}
	begin := w.started[t.Slot]
	if begin < w.from {
		w.unmeasured++
		return
	}
	record(w.hist[dir], w.clock-begin)
	w.bytes[dir] += uint64(r.blocks) * uint64(w.pattern.block)
	w.last = w.clock
}

// bungled counts a task that did not end well.
func (w *worker) bungled(t *initiator.Task, r request) {
	if t.Err != nil {
		w.lost++
	} else {
		w.failed++
	}
	if len(w.samples) < maxSamples {
		w.samples = append(w.samples, Failure{r.write, r.lba, r.blocks, outcome(t)})
	}
	if t.Err != nil || !w.load.KeepGoing {
		w.stop.Store(true)
	}
}

// missed counts a block that did not verify. The pass goes on, so that all of them are known.
func (w *worker) missed(m Mismatch) {
	w.bad++
	if len(w.misses) < maxSamples {
		w.misses = append(w.misses, m)
	}
}

// publish lets others see how far the session is.
func (w *worker) publish() {
	w.nextLive = w.clock + int64(progressTime)
	w.liveCount.Store(w.completed - w.unmeasured)
	w.liveBytes.Store(w.bytes[dirRead] + w.bytes[dirWrite])
	var p99 int64
	for _, h := range w.hist {
		if h.TotalCount() > 0 {
			p99 = max(p99, h.ValueAtPercentile(99))
		}
	}
	w.liveP99.Store(p99)
}
