package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"iserd/bench"
)

// display shows how a run goes: a line that changes on a terminal, and one line per point everywhere.
type display struct {
	f        *os.File
	quiet    bool
	terminal bool
	load     bench.Load
	rest     time.Duration // of the points to come, 0 if a count ends them
	drawn    bool
}

func newDisplay(f *os.File, quiet bool) *display {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &display{f: f, quiet: quiet, terminal: err == nil}
}

// note says something that is not of the measurement. It is shown even when quiet.
func (d *display) note(s string) {
	d.clear()
	fmt.Fprintln(d.f, "iserbench:", s)
}

func (d *display) clear() {
	if d.drawn {
		fmt.Fprint(d.f, "\r\x1b[K")
		d.drawn = false
	}
}

// begin is called before each point.
func (d *display) begin(l *bench.Load, rest []bench.Load) {
	d.load, d.rest = *l, 0
	for _, r := range rest {
		if r.Verify == bench.VerifyOff && r.Count == 0 {
			d.rest += r.Duration + r.Warmup
		}
	}
}

const barWidth = 20

// progress draws the line.
func (d *display) progress(p bench.Progress) {
	if d.quiet || !d.terminal {
		return
	}
	l := &d.load
	full := int(p.Part*barWidth + 0.5)
	line := fmt.Sprintf("%s %s depth %d [%s%s] %3.0f%%", l.Label(), bench.FormatSize(l.Size), l.Depth, strings.Repeat("█", full), strings.Repeat("·", barWidth-full), p.Part*100)
	if s := p.Elapsed.Seconds(); s > 0 && p.Completed > 0 {
		line += fmt.Sprintf("  %s IOPS  %s MB/s  p99 %s", bench.FormatCount(float64(p.Completed)/s), bench.FormatRate(float64(p.Bytes)/1e6/s), bench.FormatTime(float64(p.P99)))
		if p.Part > 0.02 {
			left := time.Duration(float64(p.Elapsed)*(1-p.Part)/p.Part) + d.rest
			line += fmt.Sprintf("  %.0f s left", left.Seconds())
		}
	} else {
		line += "  warming up"
	}
	if ws, err := unix.IoctlGetWinsize(int(d.f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Col > 1 {
		if r := []rune(line); len(r) >= int(ws.Col) {
			line = string(r[:ws.Col-1])
		}
	}
	fmt.Fprint(d.f, "\r\x1b[K"+line)
	d.drawn = true
}

// end says what a point came to.
func (d *display) end(r *bench.Result) {
	d.clear()
	if d.quiet || r.Latency == nil {
		return
	}
	fmt.Fprintf(d.f, "%-20s %8s  depth %-4d %10s IOPS %8s MB/s  p50 %-8s p99 %-8s errors %s\n", r.Label, bench.FormatSize(r.Size), r.Depth,
		bench.FormatCount(r.IOPS), bench.FormatRate(r.MBPerSec), bench.FormatTime(float64(r.Latency.P50)), bench.FormatTime(float64(r.Latency.P99)), r.Errors())
}
