package serial

import (
	"testing"
	"testing/quick"
)

func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		a, b uint32
		less bool
	}{
		{0, 1, true},
		{1, 0, false},
		{5, 5, false},
		{0xffffffff, 0, true}, // wrapped
		{0, 0xffffffff, false},
		{0xfffffff0, 0x10, true},
		{0x7fffffff, 0x80000000, true},
		{0x80000000, 0x7fffffff, false},
		{0, 0x7fffffff, true}, // the longest distance that has an order
		{0, 0x80000001, false},
		{0x80000001, 0, true},
	} {
		a, b := New(tt.a), New(tt.b)
		if a.Less(b) != tt.less {
			t.Errorf("%#x < %#x is %v", tt.a, tt.b, !tt.less)
		}
		if a.LessEq(b) != (tt.less || tt.a == tt.b) {
			t.Errorf("%#x <= %#x is %v", tt.a, tt.b, a.LessEq(b))
		}
		if a.Uint32() != tt.a {
			t.Errorf("%#x comes out as %#x", tt.a, a.Uint32())
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b uint32
		d    int32
	}{{3, 1, 2}, {1, 3, -2}, {1, 0xffffffff, 2}, {0xffffffff, 1, -2}, {7, 7, 0}, {0x80000000, 0, -1 << 31}, {0, 0x80000000, -1 << 31}} {
		if d := New(tt.a).Sub(New(tt.b)); d != tt.d {
			t.Errorf("%#x - %#x = %d, want %d", tt.a, tt.b, d, tt.d)
		}
	}
	if New(0xffffffff).Next() != New(0) || New(0xffffffff).Add(3) != New(2) {
		t.Error("no wrap")
	}
}

func TestInWindow(t *testing.T) {
	for _, tt := range []struct {
		n, lo, hi uint32
		in        bool
	}{
		{5, 5, 5, true},
		{5, 1, 9, true},
		{1, 1, 9, true},
		{9, 1, 9, true},
		{0, 1, 9, false},
		{10, 1, 9, false},
		{5, 6, 5, false}, // closed window: MaxCmdSN = ExpCmdSN-1
		{6, 6, 5, false},
		{0, 0xfffffff0, 0x0f, true},
		{0xffffffff, 0xfffffff0, 0x0f, true},
		{0x10, 0xfffffff0, 0x0f, false},
		{0xffffffef, 0xfffffff0, 0x0f, false},
		{0x80000000, 1, 9, false},
		{0, 0, 0xffffffff, false}, // closed at the wrap
	} {
		if got := New(tt.n).InWindow(New(tt.lo), New(tt.hi)); got != tt.in {
			t.Errorf("%#x in %#x..%#x is %v", tt.n, tt.lo, tt.hi, got)
		}
	}
}

func TestProperties(t *testing.T) {
	if err := quick.Check(func(a, b uint32) bool {
		x, y := New(a), New(b)
		if y.Add(uint32(x.Sub(y))) != x {
			return false
		}
		if a-b == 1<<31 {
			return true // RFC 1982 leaves the order undefined
		}
		// Exactly one of before, same, after; and the order survives a shift.
		return x.Less(y) == (!y.LessEq(x)) && x.Less(y) == x.Add(0x9abcdef0).Less(y.Add(0x9abcdef0))
	}, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}
