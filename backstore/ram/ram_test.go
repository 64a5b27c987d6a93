package ram

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"iserd/backstore"
)

func TestNewErrors(t *testing.T) {
	for size, want := range map[uint64]string{
		0:              "ram:64MiB",
		math.MaxUint64: "address",
		1 << 62:        "smaller",
	} {
		s, err := New(size)
		if err == nil {
			s.Close()
			t.Errorf("%d bytes: made", size)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v; want %q in it", size, err, want)
		}
	}
}

// The store does what a slice of bytes does, in place or copied.
func TestModel(t *testing.T) {
	const size = 10000 // not a whole page
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(size)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		model := make([]byte, size)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			off := rapid.IntRange(0, size).Draw(t, "off")
			n := rapid.IntRange(0, size-off).Draw(t, "n")
			cut := rapid.IntRange(0, n).Draw(t, "cut")
			b := make([]byte, n)
			r := &backstore.Request{Offset: uint64(off), Length: uint64(n), Buffers: [][]byte{b[:cut], b[cut:]}}
			if rapid.Bool().Draw(t, "write") {
				r.Op = backstore.OpWrite
				for i := range b {
					b[i] = byte(rapid.IntRange(0, 255).Draw(t, "b"))
					if i > 20 {
						b[i] = b[i-20] + 1
					}
				}
				copy(model[off:], b)
			}
			if !s.Submit(r) || r.Err != nil {
				t.Fatal(r.Err)
			}
			if !bytes.Equal(b, model[off:off+n]) {
				t.Fatal("differs")
			}
			if got := bytes.Join(s.Map(nil, uint64(off), uint64(n)), nil); !bytes.Equal(got, model[off:off+n]) {
				t.Fatal("differs in place")
			}
		}
	})
}

func TestErrors(t *testing.T) {
	s, err := New(4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ off, n uint64 }{{4096, 1}, {0, 4097}, {math.MaxUint64, 2}, {4095, math.MaxUint64}} {
		r := &backstore.Request{Op: backstore.OpRead, Offset: c.off, Length: c.n}
		if !s.Submit(r) || !errors.Is(r.Err, backstore.ErrOutOfRange) {
			t.Errorf("%d bytes at %d: %v", c.n, c.off, r.Err)
		}
	}
	r := &backstore.Request{Op: backstore.OpWrite, Length: 1, Buffers: [][]byte{{1}}}
	r.Cancel.Store(true)
	if s.Submit(r); !errors.Is(r.Err, backstore.ErrCanceled) || s.mem[0] != 0 {
		t.Error(r.Err)
	}
}

// Close does not unmap under a request.
func TestCloseRace(t *testing.T) {
	for range 50 {
		s, err := New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				b := make([]byte, 64<<10)
				r := &backstore.Request{Op: backstore.OpRead, Length: uint64(len(b)), Buffers: [][]byte{b}}
				for s.Submit(r) && r.Err == nil {
				}
				if !errors.Is(r.Err, backstore.ErrClosed) {
					t.Error(r.Err)
				}
			}()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
