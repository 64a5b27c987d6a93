package bench

import (
	"testing"
)

func requests(l Load, a area, i, n, count int) (out []request) {
	s := newStream(&l, a, i, n)
	for range count {
		r, ok := s.take(l.Verify == VerifyWrite)
		if !ok {
			break
		}
		out = append(out, r)
	}
	return out
}

// The same seed gives the same requests, another seed or session others; all lie in the area, aligned to it.
func TestStreamIsDetermined(t *testing.T) {
	a := area{first: 100, blocks: 8*1000 + 3, per: 8}
	for _, rw := range []RW{Read, Write, RandRead, RandWrite, RandRW} {
		l := Load{RW: rw, ReadPercent: 70, Seed: 7}
		one, two := requests(l, a, 0, 2, 5000), requests(l, a, 0, 2, 5000)
		other := requests(l, a, 1, 2, 5000)
		l.Seed = 8
		seed := requests(l, a, 0, 2, 5000)
		same, sameSeed, reads := 0, 0, 0
		for i, r := range one {
			if r != two[i] {
				t.Fatalf("%s: request %d is %+v, then %+v", rw, i, r, two[i])
			}
			if r.lba < 100 || (r.lba-100)%8 != 0 || r.blocks != 8 || r.lba+8 > 100+8000 {
				t.Fatalf("%s: %+v is not a slot of the area", rw, r)
			}
			if r == other[i] {
				same++
			}
			if r == seed[i] {
				sameSeed++
			}
			if !r.write {
				reads++
			}
		}
		if same > 50 {
			t.Errorf("%s: two sessions have %d of 5000 requests in common", rw, same)
		}
		if rw.Random() && sameSeed > 50 {
			t.Errorf("%s: two seeds have %d of 5000 requests in common", rw, sameSeed)
		}
		want := map[RW][2]int{Read: {5000, 5000}, RandRead: {5000, 5000}, Write: {0, 0}, RandWrite: {0, 0}, RandRW: {3300, 3700}}[rw]
		if reads < want[0] || reads > want[1] {
			t.Errorf("%s: %d of 5000 are reads, want %v", rw, reads, want)
		}
	}
}

// Passes that verify visit every block of the area once, whatever the order and the number of sessions.
func TestOnceIsOnce(t *testing.T) {
	for _, rw := range []RW{Write, RandWrite} {
		for _, blocks := range []uint64{1, 7, 8, 9, 16, 24, 8*97 + 5, 4096} {
			for _, sessions := range []int{1, 3} {
				a := area{first: 5, blocks: blocks, per: 8}
				seen := map[uint64]bool{}
				for i := range sessions {
					for _, r := range requests(Load{RW: rw, Verify: VerifyWrite, Seed: 3}, a, i, sessions, 10000) {
						for k := range uint64(r.blocks) {
							if seen[r.lba+k] {
								t.Fatalf("%s, %d blocks, %d sessions: block %d twice", rw, blocks, sessions, r.lba+k)
							}
							seen[r.lba+k] = true
						}
						if !r.write || r.lba < 5 || r.lba+uint64(r.blocks) > 5+blocks {
							t.Fatalf("%+v", r)
						}
					}
				}
				if uint64(len(seen)) != blocks {
					t.Errorf("%s, %d blocks, %d sessions: %d visited", rw, blocks, sessions, len(seen))
				}
			}
		}
	}
}

func TestCountIsShared(t *testing.T) {
	n := 0
	for i := range 3 {
		n += len(requests(Load{RW: RandRead, Count: 100}, area{0, 800, 8}, i, 3, 1000))
	}
	if n != 100 {
		t.Errorf("%d requests in all, want 100", n)
	}
}

// Any byte that is changed is found, and what a block is instead is told.
func TestPattern(t *testing.T) {
	p := pattern{block: 512, seed: 11, gen: 2}
	const lba = 1000
	good := make([]byte, 8*512)
	p.fill(good, lba)
	find := func(b []byte, p pattern) (out []Mismatch) {
		p.check(b, lba, func(m Mismatch) { out = append(out, m) })
		return out
	}
	if bad := find(good, p); bad != nil {
		t.Fatalf("what was filled is called bad: %v", bad)
	}
	for i := range good {
		good[i] ^= 0x40
		bad := find(good, p)
		if len(bad) != 1 || bad[0].LBA != uint64(lba+i/512) || bad[0].Offset != i%512 || bad[0].Want[i%8]^0x40 != bad[0].Got[i%8] {
			t.Fatalf("byte %d changed: %v", i, bad)
		}
		good[i] ^= 0x40
	}
	older := make([]byte, len(good))
	pattern{512, 11, 1}.fill(older, lba)
	moved := append(append([]byte(nil), good[512:1024]...), good[512:]...)
	foreign := make([]byte, len(good))
	pattern{512, 12, 2}.fill(foreign, lba)
	for name, c := range map[string]struct {
		b     []byte
		n     int
		holds string
	}{
		"lost write": {older, 8, "the block is of pass 1, not 2: a write was lost"},
		"moved":      {moved, 1, "the block was written to LBA 1001 in pass 2"},
		"zero":       {make([]byte, len(good)), 8, "the block is zero"},
		"foreign":    {foreign, 8, ""},
	} {
		bad := find(c.b, p)
		if len(bad) != c.n || bad[0].Holds != c.holds {
			t.Errorf("%s: %v; want %d, %q", name, bad, c.n, c.holds)
		}
	}
}
