package bench

import (
	"fmt"
	"time"
)

// Verify is a pass that writes what can be checked, or that checks it.
type Verify uint8

// The passes.
const (
	VerifyOff Verify = iota
	// VerifyWrite writes every block of the region once.
	VerifyWrite
	// VerifyRead reads every block of the region once and compares it with what VerifyWrite wrote.
	VerifyRead
)

// Load is one point: a kind of load, a size and a depth.
type Load struct {
	RW RW
	// ReadPercent is the part of reads of RandRW.
	ReadPercent int
	// Size of a request in bytes, a multiple of the LUN's block size.
	Size uint64
	// Depth is how many requests each session keeps under way.
	Depth int
	// Duration of the measurement, after Warmup, which is not measured.
	Duration, Warmup time.Duration
	// Count, if not 0, is the number of requests of all sessions, in place of Duration.
	Count uint64
	// Rate, if not 0, is how many requests per second all sessions start together (open loop).
	Rate float64
	// Offset and Region are the part of the LUN to use, in bytes. Region 0 is up to the end.
	Offset, Region uint64
	Seed           uint64
	Verify         Verify
	// Generation is part of the pattern of a verified pass, so that what an earlier pass wrote is not taken for it.
	Generation uint64
	// KeepGoing goes on after a request failed; otherwise the first failure ends the load.
	KeepGoing bool
	// Timeout is how long nothing may be answered while requests are under way; 0 is 10 s.
	Timeout time.Duration
}

// Label names the load in tables.
func (l *Load) Label() string {
	switch {
	case l.Verify == VerifyWrite:
		return string(l.RW) + " (pattern)"
	case l.Verify == VerifyRead:
		return string(l.RW) + " (verified)"
	case l.RW == RandRW:
		return fmt.Sprintf("randrw %d/%d", l.ReadPercent, 100-l.ReadPercent)
	}
	return string(l.RW)
}

// cut holds the load against a LUN and gives its area.
func (l *Load) cut(block uint32, blocks uint64) (area, error) {
	b := uint64(block)
	switch {
	case b < patternHead+8 || b%8 != 0:
		return area{}, fmt.Errorf("the LUN's blocks have %d bytes, which this load generator cannot use", b)
	case l.Size == 0 || l.Size%b != 0:
		return area{}, fmt.Errorf("size %d is not a multiple of the LUN's block size, %d", l.Size, b)
	case l.Size/b >= 1<<32:
		return area{}, fmt.Errorf("size %d is more than one command can carry", l.Size)
	case l.Depth < 1:
		return area{}, fmt.Errorf("depth %d: want at least 1", l.Depth)
	case l.Offset%b != 0 || l.Region%b != 0:
		return area{}, fmt.Errorf("offset %d and region %d must be multiples of the LUN's block size, %d", l.Offset, l.Region, b)
	case l.Offset/b >= blocks:
		return area{}, fmt.Errorf("offset %d is beyond the end of the LUN, which has %s", l.Offset, FormatSize(blocks*b))
	}
	a := area{first: l.Offset / b, blocks: blocks - l.Offset/b, per: l.Size / b}
	if l.Region > 0 {
		if l.Region/b > a.blocks {
			return area{}, fmt.Errorf("offset and region reach to byte %d; the LUN has %d", l.Offset+l.Region, blocks*b)
		}
		a.blocks = l.Region / b
	}
	if a.whole() == 0 {
		return area{}, fmt.Errorf("size %s does not fit the region of %s", FormatSize(l.Size), FormatSize(a.blocks*b))
	}
	return a, nil
}

// reads and writes are whether the load has requests of either kind.
func (l *Load) reads() bool {
	return l.Verify == VerifyRead || l.Verify == VerifyOff && l.RW.Reads()
}

func (l *Load) writes() bool {
	return l.Verify == VerifyWrite || l.Verify == VerifyOff && l.RW.Writes()
}
