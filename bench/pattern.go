package bench

import (
	"encoding/binary"
	"fmt"
)

// pattern is what a verified block holds: its address, the seed and the generation in the open, so that a block in the
// wrong place or of an earlier pass can be named, then words that follow from all three.
type pattern struct {
	block int // bytes, a multiple of 8 and at least 24
	seed  uint64
	gen   uint64
}

const (
	patternHead = 24
	lcgMul      = 6364136223846793005
	lcgAdd      = 1442695040888963407
)

func (p pattern) start(lba uint64) uint64 { return mix(lba ^ mix(p.seed^mix(p.gen))) }

// fill writes the blocks from lba on.
func (p pattern) fill(b []byte, lba uint64) {
	for ; len(b) >= p.block; b, lba = b[p.block:], lba+1 {
		blk := b[:p.block]
		binary.LittleEndian.PutUint64(blk, lba)
		binary.LittleEndian.PutUint64(blk[8:], p.seed)
		binary.LittleEndian.PutUint64(blk[16:], p.gen)
		x := p.start(lba)
		for blk = blk[patternHead:]; len(blk) >= 8; blk = blk[8:] {
			x = x*lcgMul + lcgAdd
			binary.LittleEndian.PutUint64(blk, x)
		}
	}
}

// Mismatch is a block that does not hold what was written.
type Mismatch struct {
	LBA uint64 `json:"lba"`
	// Offset is the first byte of the block that differs; Want and Got are the eight bytes round it, aligned.
	Offset int     `json:"offset"`
	Want   [8]byte `json:"want"`
	Got    [8]byte `json:"got"`
	// Holds says what the block seems to be instead, if it can be told.
	Holds string `json:"holds,omitempty"`
}

func (m Mismatch) String() string {
	s := fmt.Sprintf("LBA %d, byte %d: want % x, got % x", m.LBA, m.Offset, m.Want, m.Got)
	if m.Holds != "" {
		s += ": " + m.Holds
	}
	return s
}

// check compares the blocks from lba on. It calls bad for each that differs, once.
func (p pattern) check(b []byte, lba uint64, bad func(Mismatch)) {
	for ; len(b) >= p.block; b, lba = b[p.block:], lba+1 {
		blk := b[:p.block]
		x, ok := p.start(lba), true
		ok = binary.LittleEndian.Uint64(blk) == lba && binary.LittleEndian.Uint64(blk[8:]) == p.seed && binary.LittleEndian.Uint64(blk[16:]) == p.gen
		for rest := blk[patternHead:]; ok && len(rest) >= 8; rest = rest[8:] {
			x = x*lcgMul + lcgAdd
			ok = binary.LittleEndian.Uint64(rest) == x
		}
		if !ok {
			bad(p.mismatch(blk, lba))
		}
	}
}

// mismatch says how a block differs.
func (p pattern) mismatch(got []byte, lba uint64) Mismatch {
	want := make([]byte, p.block)
	p.fill(want, lba)
	m := Mismatch{LBA: lba}
	for i := range want {
		if want[i] != got[i] {
			m.Offset = i
			copy(m.Want[:], want[i&^7:])
			copy(m.Got[:], got[i&^7:])
			break
		}
	}
	m.Holds = p.holds(got, lba)
	return m
}

// holds names what a block is instead of what it should be.
func (p pattern) holds(got []byte, lba uint64) string {
	at, seed, gen := binary.LittleEndian.Uint64(got), binary.LittleEndian.Uint64(got[8:]), binary.LittleEndian.Uint64(got[16:])
	zero := true
	for _, x := range got {
		zero = zero && x == 0
	}
	switch {
	case zero:
		return "the block is zero"
	case seed != p.seed:
		return "" // not of this run, or damaged at the start
	case at == lba && gen == p.gen:
		return "the block is the right one, damaged"
	case at == lba:
		return fmt.Sprintf("the block is of pass %d, not %d: a write was lost", gen, p.gen)
	}
	return fmt.Sprintf("the block was written to LBA %d in pass %d", at, gen)
}
