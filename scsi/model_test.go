package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"path/filepath"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/file"
	"iserd/backstore/ram"
)

// rangeCDB makes READ, WRITE, VERIFY or SYNCHRONIZE CACHE with n bytes.
func rangeCDB(t testing.TB, codes map[int]byte, n int, second byte, lba, blocks int) []byte {
	b := make([]byte, 16)
	b[0], b[1] = codes[n], second
	switch n {
	case 6:
		b[1], b[2], b[3], b[4] = byte(lba>>16), byte(lba>>8), byte(lba), byte(blocks)
	case 10:
		binary.BigEndian.PutUint32(b[2:], uint32(lba))
		binary.BigEndian.PutUint16(b[7:], uint16(blocks))
	case 12:
		binary.BigEndian.PutUint32(b[2:], uint32(lba))
		binary.BigEndian.PutUint32(b[6:], uint32(blocks))
	case 16:
		binary.BigEndian.PutUint64(b[2:], uint64(lba))
		binary.BigEndian.PutUint32(b[10:], uint32(blocks))
	default:
		t.Fatalf("CDB of %d bytes", n)
	}
	return b
}

var (
	readCodes   = map[int]byte{6: 0x08, 10: 0x28, 12: 0xA8, 16: 0x88}
	writeCodes  = map[int]byte{6: 0x0A, 10: 0x2A, 12: 0xAA, 16: 0x8A}
	verifyCodes = map[int]byte{10: 0x2F, 12: 0xAF, 16: 0x8F}
	syncCodes   = map[int]byte{10: 0x35, 16: 0x91}
)

// A disk does what a slice of bytes does, over every store, with every CDB size, with expected lengths that are right,
// too short and too long, and with data in any pieces.
func TestModel(t *testing.T) {
	const blocks = 300
	for name, open := range map[string]func(t *rapid.T, dir string) backstore.Store{
		"ram":    func(t *rapid.T, _ string) backstore.Store { return mustRAMOf(t, blocks*512) },
		"copied": func(t *rapid.T, _ string) backstore.Store { return unmapped{mustRAMOf(t, blocks*512)} },
		"async": func(t *rapid.T, _ string) backstore.Store {
			s := faultstore.New(mustRAMOf(t, blocks*512))
			s.Async(true)
			return s
		},
		"file": func(t *rapid.T, dir string) backstore.Store {
			s, err := file.Open(file.Config{Path: filepath.Join(dir, fmt.Sprint(rand.Int())), Size: blocks * 512})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				s := open(rt, dir)
				defer s.Close()
				i := withStore(t, s)
				model := make([]byte, blocks*512)
				for range rapid.IntRange(1, 12).Draw(rt, "steps") {
					modelStep(t, rt, i, model)
				}
			})
		})
	}
}

func modelStep(t *testing.T, rt *rapid.T, i *initiator, model []byte) {
	size := rapid.SampledFrom([]int{6, 10, 12, 16}).Draw(rt, "size")
	lba := rapid.IntRange(0, len(model)/512-1).Draw(rt, "lba")
	n := rapid.IntRange(0, min(len(model)/512-lba, 200)).Draw(rt, "blocks")
	if size == 6 && n == 0 {
		n = 1
	}
	i.seg = rapid.SampledFrom([]int{0, 512, 700, 4096}).Draw(rt, "pieces")
	need := n * 512
	expect := max(0, need+rapid.SampledFrom([]int{0, 0, 0, 512, -512, 77, -77, -1 << 30}).Draw(rt, "expect"))
	at := model[lba*512:]
	kind, residual := ResidualNone, 0
	if expect < need {
		kind, residual = ResidualOverflow, need-expect
	} else if expect > need {
		kind, residual = ResidualUnderflow, expect-need
	}
	moved := min(need, expect)
	check := func(what string, r result) {
		if r.status != StatusGood || r.kind != kind || int(r.residual) != residual {
			rt.Fatalf("%s(%d) of %d at %d with %d expected: %v, residual %v %d", what, size, n, lba, expect, r, r.kind, r.residual)
		}
	}
	switch op := rapid.IntRange(0, 4).Draw(rt, "op"); {
	case op <= 1:
		r := i.run(0, rangeCDB(t, readCodes, size, 0, lba, n), nil, uint32(expect))
		check("READ", r)
		if !bytes.Equal(r.data, at[:moved]) {
			rt.Fatal("READ differs")
		}
	case op == 2:
		out := make([]byte, expect)
		rand.New(rand.NewSource(rapid.Int64().Draw(rt, "seed"))).Read(out)
		check("WRITE", i.run(0, rangeCDB(t, writeCodes, size, rapid.SampledFrom([]byte{0, 0x08, 0x10}).Draw(rt, "FUA"), lba, n), out, uint32(expect)))
		copy(at[:moved], out)
	case op == 3 && size != 6:
		out := make([]byte, expect)
		copy(out, at[:moved])
		bad := moved > 0 && rapid.Bool().Draw(rt, "miscompare")
		if bad {
			out[rapid.IntRange(0, moved-1).Draw(rt, "where")] ^= 1
		}
		r := i.run(0, rangeCDB(t, verifyCodes, size, 0x02, lba, n), out, uint32(expect))
		if !bad {
			check("VERIFY", r)
		} else if r.key != Miscompare || r.code != MiscompareDuringVerify {
			rt.Fatalf("VERIFY of other data: %v", r)
		}
	case size == 10 || size == 16:
		expect, need, kind, residual = 0, 0, ResidualNone, 0
		check("SYNCHRONIZE CACHE", i.run(0, rangeCDB(t, syncCodes, size, 0, lba, n), nil, 0))
	}
}

func TestVerifyOneBlockAgainstAll(t *testing.T) {
	for name, s := range map[string]backstore.Store{"ram": mustRAM(t, 2<<20), "file": faultstore.New(mustRAM(t, 2<<20))} {
		i := withStore(t, s)
		block := bytes.Repeat([]byte{0xA5}, 512)
		for lba := 8; lba < 2008; lba += 100 {
			i.run(0, rangeCDB(t, writeCodes, 10, 0, lba, 100), bytes.Repeat(block, 100), 51200).expect(t, "WRITE", NoSense, 0)
		}
		cdb := rangeCDB(t, verifyCodes, 16, 0x06, 8, 2000) // more than one chunk
		i.run(0, cdb, block, 512).expect(t, name, NoSense, 0)
		i.run(0, rangeCDB(t, writeCodes, 10, 0, 2007, 1), make([]byte, 512), 512)
		i.run(0, cdb, block, 512).expect(t, name+", last block", Miscompare, MiscompareDuringVerify)
	}
}

func mustRAMOf(t *rapid.T, size uint64) backstore.Store {
	s, err := ram.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Sessions, LUNs, resets and reservations change while commands run; nothing is lost and nothing crashes.
func TestConcurrent(t *testing.T) {
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
	const luns = 4
	units := make([]*LogicalUnit, luns)
	for n := range units {
		s := faultstore.New(mustRAM(t, 1<<20))
		s.Async(n%2 == 1)
		units[n] = mustUnit(t, LogicalUnitConfig{Name: fmt.Sprint(n), Store: s})
		if err := d.SetLUN(uint16(n), units[n]); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewSource(int64(w)))
			for {
				i := newInitiator(t, d, fmt.Sprint("i", w))
				for range 50 {
					select {
					case <-stop:
						return
					default:
					}
					cdb := []string{"00", "16", "17", "12 01 83 00 ff 00", "28 00 00000000 00 0008 00", "2a 00 00000000 00 0008 00", "a0 00 00 00 00 00 00 00 00 ff", "35", "2f 02 00000000 00 0008 00"}[rng.Intn(9)]
					var out []byte
					if cdb[:2] == "2a" || cdb[:2] == "2f" {
						out = make([]byte, 4096)
					}
					i.run(EncodeLUN(uint16(rng.Intn(luns))), cdbOf(cdb), out, 4096)
				}
				i.nexus.Close()
			}
		}()
	}
	rng := rand.New(rand.NewSource(99))
	for range 300 {
		n := rng.Intn(luns)
		switch rng.Intn(5) {
		case 0:
			d.RemoveLUN(uint16(n))
		case 1, 2:
			if err := d.SetLUN(uint16(n), units[n]); err != nil {
				t.Error(err)
			}
		case 3:
			units[n].Reset()
		case 4:
			d.Reset(false)
			units[n].ClearTaskSet(nil)
		}
	}
	close(stop)
	wg.Wait()
	for _, lu := range units {
		if err := lu.Close(); err != nil {
			t.Error(err)
		}
	}
}
