package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// RW is what a load does, in fio's words.
type RW string

// The kinds of load.
const (
	Read      RW = "read"
	Write     RW = "write"
	RandRead  RW = "randread"
	RandWrite RW = "randwrite"
	RandRW    RW = "randrw"
)

// ParseRW reads the name of a kind of load.
func ParseRW(s string) (RW, error) {
	switch rw := RW(s); rw {
	case Read, Write, RandRead, RandWrite, RandRW:
		return rw, nil
	}
	return "", fmt.Errorf("%q is no kind of load: want read, write, randread, randwrite or randrw", s)
}

// Random is whether it goes in random order.
func (rw RW) Random() bool { return strings.HasPrefix(string(rw), "rand") }

// Reads and Writes are whether it does some of either.
func (rw RW) Reads() bool { return rw == Read || rw == RandRead || rw == RandRW }

// Writes is whether it overwrites data.
func (rw RW) Writes() bool { return rw == Write || rw == RandWrite || rw == RandRW }

// request is one READ or WRITE, in blocks.
type request struct {
	lba    uint64
	blocks uint32
	write  bool
}

// area is a part of a LUN cut into slots of one request's size. In blocks.
type area struct {
	first, blocks uint64
	per           uint64 // of a request
}

// whole is the number of slots that a request fills, slots that with a shorter one at the end.
func (a area) whole() uint64 { return a.blocks / a.per }
func (a area) slots() uint64 { return (a.blocks + a.per - 1) / a.per }

// at is the request for a slot.
func (a area) at(slot uint64, write bool) request {
	n := min(a.per, a.blocks-slot*a.per)
	return request{a.first + slot*a.per, uint32(n), write}
}

// stream gives the requests of one session, the same ones for the same seed.
type stream struct {
	area    area
	random  bool
	once    bool // each slot of [next, end) once, then no more
	next    uint64
	end     uint64
	perm    permutation
	reads   uint32 // of 2^32
	rng     rand.PCG
	left    uint64
	limited bool
}

// newStream makes that of session i of n. A sequential load starts at its own place and goes round; one that does every
// slot once gets its own part.
func newStream(l *Load, a area, i, n int) *stream {
	s := &stream{area: a, random: l.RW.Random(), once: l.Verify != VerifyOff}
	s.rng.Seed(l.Seed, uint64(i)+1)
	switch {
	case l.RW == RandRW:
		s.reads = uint32(min(uint64(l.ReadPercent)<<32/100, 1<<32-1))
	case l.RW.Reads():
		s.reads = 1<<32 - 1
	}
	slots := a.whole()
	if s.once {
		slots = a.slots()
	}
	s.next, s.end = share(slots, i, n)
	if s.once {
		s.perm = newPermutation(s.end-s.next, l.Seed)
		return s
	}
	if l.Count > 0 {
		from, to := share(l.Count, i, n)
		s.left, s.limited = to-from, true
	}
	return s
}

// share is the part of session i of n of a whole.
func share(whole uint64, i, n int) (from, to uint64) {
	return whole * uint64(i) / uint64(n), whole * uint64(i+1) / uint64(n)
}

// take gives the next request; false when there are no more.
func (s *stream) take(write bool) (request, bool) {
	if s.once {
		if s.perm.i >= s.perm.n {
			return request{}, false
		}
		slot := s.perm.i
		if s.random {
			slot = s.perm.at(slot)
		}
		s.perm.i++
		return s.area.at(s.next+slot, write), true
	}
	if s.limited {
		if s.left == 0 {
			return request{}, false
		}
		s.left--
	}
	write = s.reads == 0
	if s.reads != 0 && s.reads != 1<<32-1 {
		write = uint32(s.rng.Uint64()) >= s.reads
	}
	if s.random {
		return s.area.at(s.below(s.area.whole()), write), true
	}
	slot := s.next
	if s.next++; s.next == s.area.whole() {
		s.next = 0
	}
	return s.area.at(slot, write), true
}

// below is a random number less than n. The bias of the remainder is below n in 2^64.
func (s *stream) below(n uint64) uint64 { return s.rng.Uint64() % n }

// permutation visits every number below n once, by steps that share no divisor with n: no memory, and far apart.
type permutation struct{ i, n, start, step uint64 }

func newPermutation(n, seed uint64) permutation {
	p := permutation{n: n, step: 1}
	if n < 3 {
		return p
	}
	p.start = mix(seed) % n
	// Near the golden section neighbours in time are far apart in place.
	for p.step = uint64(float64(n) * 0.618); gcd(p.step, n) != 1; p.step++ {
	}
	return p
}

// at stays exact as long as n is below 2^32, more slots than a run can visit.
func (p permutation) at(i uint64) uint64 { return (p.start + i*p.step) % p.n }

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mix spreads the bits of a number (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
