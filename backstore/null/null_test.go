package null

import (
	"errors"
	"math"
	"testing"

	"iserd/backstore"
)

func TestNull(t *testing.T) {
	if _, err := New(0); err == nil {
		t.Error("a store of no bytes")
	}
	s, err := New(math.MaxUint64)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte{1, 2, 3}
	for _, c := range []*struct {
		r    backstore.Request
		want error
		zero bool
	}{
		{r: backstore.Request{Op: backstore.OpRead, Offset: 1 << 50, Length: 3, Buffers: [][]byte{b}}, zero: true},
		{r: backstore.Request{Op: backstore.OpWrite, Length: 3, Buffers: [][]byte{b}}},
		{r: backstore.Request{Op: backstore.OpFlush}},
		{r: backstore.Request{Op: backstore.OpRead, Offset: math.MaxUint64, Length: 2, Buffers: [][]byte{b}}, want: backstore.ErrOutOfRange},
		{r: backstore.Request{Op: backstore.OpWrite, Offset: math.MaxUint64 - 1, Length: 2, Buffers: [][]byte{b}}, want: backstore.ErrOutOfRange},
	} {
		copy(b, "abc")
		if !s.Submit(&c.r) || !errors.Is(c.r.Err, c.want) {
			t.Errorf("%v at %d: %v, want %v", c.r.Op, c.r.Offset, c.r.Err, c.want)
		}
		if (string(b) == "\x00\x00\x00") != c.zero {
			t.Errorf("%v: buffer is %q", c.r.Op, b)
		}
	}
	var r backstore.Request
	r.Cancel.Store(true)
	if s.Submit(&r); !errors.Is(r.Err, backstore.ErrCanceled) {
		t.Error(r.Err)
	}
	s.Close()
	if s.Submit(&r); !errors.Is(r.Err, backstore.ErrClosed) {
		t.Error(r.Err)
	}
}

func TestMap(t *testing.T) {
	s, err := New(1 << 40)
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	if &s.Regions()[0][0] != &other.Regions()[0][0] {
		t.Error("every store has zeros of its own")
	}
	for n, pieces := range map[uint64]int{0: 0, 1: 1, zeroRegionSize: 1, zeroRegionSize + 1: 2, 4 * zeroRegionSize: 4} {
		got := s.Map(nil, 12345, n)
		sum := uint64(0)
		for _, p := range got {
			sum += uint64(len(p))
			if cap(p) != len(p) {
				t.Error("a piece can be appended to in place")
			}
		}
		if len(got) != pieces || sum != n {
			t.Errorf("%d bytes: %d pieces of %d bytes", n, len(got), sum)
		}
	}
}
