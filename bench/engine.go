package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"iserd/internal/initiator"
)

// LUN is a logical unit and the sessions that reach it.
type LUN struct {
	Sessions []initiator.Session
	Number   int
	Disk     Disk
}

// Disk is what a logical unit says of itself.
type Disk struct {
	Vendor    string `json:"vendor"`
	Product   string `json:"product"`
	Revision  string `json:"revision"`
	Serial    string `json:"serial"`
	BlockSize uint32 `json:"block_size"`
	Blocks    uint64 `json:"blocks"`
}

// Bytes is the capacity.
func (d Disk) Bytes() uint64 { return uint64(d.BlockSize) * d.Blocks }

// Progress is how far a load has come.
type Progress struct {
	Completed uint64
	Bytes     uint64
	// P99 is that of the slowest session up to now, 0 if not known yet.
	P99 time.Duration
	// Elapsed since the measurement began, negative before.
	Elapsed time.Duration
	// Part of the whole that is done, 0 to 1.
	Part float64
}

// run is what the sessions of one load share.
type run struct {
	load     *Load
	disk     Disk
	lun      uint64
	area     area
	base     time.Time // the clock's zero
	from, to int64     // the measurement, in nanoseconds since base; to is 0 if a count ends it
	total    uint64    // requests to do, 0 if time ends it
	stop     atomic.Bool
}

func (r *run) now() int64 { return int64(time.Since(r.base)) }

// Run does one load and says what it measured. Its result is complete as far as the load came, also with an error or
// after ctx has ended. Every session must be free.
func (u *LUN) Run(ctx context.Context, l Load, progress func(Progress)) (Result, error) {
	a, err := l.cut(u.Disk.BlockSize, u.Disk.Blocks)
	if err != nil {
		return Result{}, err
	}
	if l.Timeout <= 0 {
		l.Timeout = 10 * time.Second
	}
	r := &run{load: &l, disk: u.Disk, lun: initiator.LUN(u.Number), area: a}
	switch {
	case l.Verify != VerifyOff:
		r.total, l.Warmup, l.Count = a.slots(), 0, 0
	case l.Count > 0:
		r.total, l.Warmup = l.Count, 0
	case l.Duration <= 0:
		return Result{}, errors.New("a load needs a duration or a count of requests")
	}
	workers := make([]*worker, len(u.Sessions))
	for i, s := range u.Sessions {
		if workers[i], err = newWorker(r, s, i, len(u.Sessions)); err != nil {
			for _, w := range workers[:i] {
				err = errors.Join(err, w.release())
			}
			return Result{}, err
		}
	}
	cpu := cpuTime()
	r.base = time.Now()
	r.from = int64(l.Warmup)
	if r.total == 0 {
		r.to = r.from + int64(l.Duration)
	}
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(w.work)
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	r.watch(ctx, workers, done, progress)
	res := r.sum(workers, cpuTime()-cpu)
	res.Interrupted = ctx.Err() != nil
	var errs []error
	for _, w := range workers {
		errs = append(errs, w.err, w.release())
	}
	return res, errors.Join(errs...)
}

// watch tells the progress until the workers have ended, and ends them when ctx does.
func (r *run) watch(ctx context.Context, workers []*worker, done <-chan struct{}, progress func(Progress)) {
	tick := time.NewTicker(progressTime)
	defer tick.Stop()
	interrupted := ctx.Done()
	for {
		select {
		case <-done:
			return
		case <-interrupted:
			r.stop.Store(true)
			interrupted = nil
		case <-tick.C:
			if progress == nil {
				continue
			}
			p := Progress{Elapsed: time.Duration(r.now() - r.from)}
			for _, w := range workers {
				p.Completed += w.liveCount.Load()
				p.Bytes += w.liveBytes.Load()
				p.P99 = max(p.P99, time.Duration(w.liveP99.Load()))
			}
			if r.total > 0 {
				p.Part = float64(p.Completed) / float64(r.total)
			} else {
				p.Part = float64(p.Elapsed) / float64(r.load.Duration)
			}
			p.Part = min(max(p.Part, 0), 1)
			progress(p)
		}
	}
}

// progressTime is how often the progress is told.
const progressTime = 200 * time.Millisecond
