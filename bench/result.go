package bench

import (
	"syscall"
	"time"
)

// Result is what one load measured. Rates are per second over all sessions; MB are 10^6 bytes.
type Result struct {
	Label     string  `json:"label"`
	RW        RW      `json:"rw"`
	Verify    bool    `json:"verify,omitempty"` // a pass that wrote or checked the pattern
	Size      uint64  `json:"size"`
	Depth     int     `json:"depth"` // of each session
	Sessions  int     `json:"sessions"`
	Rate      float64 `json:"rate,omitempty"` // asked for, of an open loop
	Seconds   float64 `json:"seconds"`
	IOPS      float64 `json:"iops"`
	MBPerSec  float64 `json:"mb_per_s"`
	ReadIOPS  float64 `json:"read_iops"`
	WriteIOPS float64 `json:"write_iops"`
	Bytes     uint64  `json:"bytes"`
	// Latency is that of all requests; Reads and Writes stand apart where there are both.
	Latency *Latency `json:"latency"`
	Reads   *Latency `json:"read_latency,omitempty"`
	Writes  *Latency `json:"write_latency,omitempty"`
	// CPU is this process's processor time per request in microseconds, user and system.
	CPU float64 `json:"cpu_us_per_io"`

	// Every request that was Launched is Completed, Failed or Lost. Measured leaves the warm-up out.
	Launched  uint64 `json:"launched"`
	Completed uint64 `json:"completed"`
	Measured  uint64 `json:"measured"`
	Failed    uint64 `json:"failed"`
	Lost      uint64 `json:"lost"`
	// BadBlocks is how many blocks did not hold what was written.
	BadBlocks   uint64     `json:"bad_blocks"`
	Failures    []Failure  `json:"failures,omitempty"`
	Mismatches  []Mismatch `json:"mismatches,omitempty"`
	Interrupted bool       `json:"interrupted,omitempty"`
}

// OK is whether every request ended well and every block was right.
func (r *Result) OK() bool { return r.Failed == 0 && r.Lost == 0 && r.BadBlocks == 0 }

// sum adds the workers up. cpu is the processor time that the process took meanwhile.
func (r *run) sum(workers []*worker, cpu time.Duration) Result {
	l := r.load
	res := Result{Label: l.Label(), RW: l.RW, Verify: l.Verify != VerifyOff, Size: l.Size, Depth: l.Depth, Sessions: len(workers), Rate: l.Rate}
	all := newHistogram()
	dirs := workers[0].hist
	var last int64
	for i, w := range workers {
		for d := range dirs {
			all.Merge(w.hist[d])
			if i > 0 {
				dirs[d].Merge(w.hist[d])
			}
			res.Bytes += w.bytes[d]
		}
		last = max(last, w.last)
		res.Launched += w.launched
		res.Completed += w.completed
		res.Measured += w.completed - w.unmeasured
		res.Failed += w.failed
		res.Lost += w.lost
		res.BadBlocks += w.bad
		res.Failures = append(res.Failures, w.samples...)
		res.Mismatches = append(res.Mismatches, w.misses...)
	}
	res.Failures = res.Failures[:min(len(res.Failures), maxSamples)]
	res.Mismatches = res.Mismatches[:min(len(res.Mismatches), maxSamples)]
	reads, writes := dirs[dirRead].TotalCount(), dirs[dirWrite].TotalCount()
	res.Latency = latency(all)
	if reads > 0 && writes > 0 {
		res.Reads, res.Writes = latency(dirs[dirRead]), latency(dirs[dirWrite])
	}
	if last > r.from {
		res.Seconds = time.Duration(last - r.from).Seconds()
		res.IOPS = float64(reads+writes) / res.Seconds
		res.ReadIOPS, res.WriteIOPS = float64(reads)/res.Seconds, float64(writes)/res.Seconds
		res.MBPerSec = float64(res.Bytes) / 1e6 / res.Seconds
	}
	if res.Completed > 0 {
		res.CPU = float64(cpu.Nanoseconds()) / 1e3 / float64(res.Completed)
	}
	return res
}

// cpuTime is the processor time that the process has had.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
