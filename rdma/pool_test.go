package rdma

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
)

// heapPD registers memory of no device.
type heapPD struct {
	maxMR uint64
	fail  error
	open  int
	key   uint32
}

type heapDevice struct {
	Device
	pd *heapPD
}

type heapMR struct {
	pd     *heapPD
	b      []byte
	key    uint32
	access Access
}

func (p *heapPD) Device() Device       { return &heapDevice{pd: p} }
func (d *heapDevice) Attr() DeviceAttr { return DeviceAttr{MaxMRSize: d.pd.maxMR} }
func (p *heapPD) Close() error         { return nil }
func (m *heapMR) Bytes() []byte        { return m.b }
func (m *heapMR) Addr() uint64         { return AddrOf(m.b) }
func (m *heapMR) LKey() uint32         { return m.key }
func (m *heapMR) RKey() uint32         { return m.key }
func (m *heapMR) Close() error         { m.pd.open--; return nil }
func (p *heapPD) RegMR(b []byte, a Access) (MR, error) {
	if p.fail != nil {
		return nil, p.fail
	}
	p.open++
	p.key++
	return &heapMR{p, b, p.key, a}, nil
}

func newTestPool(t testing.TB, pd PD, cfg PoolConfig) *Pool {
	t.Helper()
	p, err := NewPool(pd, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPoolRandom takes and gives back at random: buffers never overlap, have the right key, nothing is lost.
func TestPoolRandom(t *testing.T) {
	pd := &heapPD{}
	p := newTestPool(t, pd, PoolConfig{ArenaSize: 4 << 20, MaxBytes: 12 << 20})
	r := rand.New(rand.NewPCG(1, 2))
	type held struct {
		b    Buf
		mark byte
	}
	var out []held
	bytes := 0
	for step := range 30000 {
		if len(out) > 0 && r.IntN(7) < 3 {
			i := r.IntN(len(out))
			h := out[i]
			for _, off := range []int{0, h.b.Len() / 2, h.b.Len() - 1} {
				if h.b.Bytes()[off] != h.mark {
					t.Fatalf("step %d: buffer overwritten at %d", step, off)
				}
			}
			bytes -= h.b.Len()
			p.Put(h.b)
			out[i] = out[len(out)-1]
			out = out[:len(out)-1]
			continue
		}
		n := 1 + r.IntN(1<<r.IntN(21))
		b, ok := p.Get(n)
		if !ok {
			if p.Available() >= 12<<20 {
				t.Fatalf("step %d: nothing for %d bytes in an empty pool", step, n)
			}
			continue
		}
		if b.Len() < n {
			t.Fatalf("asked for %d, got %d", n, b.Len())
		}
		if key, ok := p.Lookup(b.Bytes()); !ok || key != b.LKey() {
			t.Fatalf("key %d, the table says %d, %v", b.LKey(), key, ok)
		}
		if b.SGE(n) != (SGE{AddrOf(b.Bytes()), uint32(n), b.LKey()}) || b.IsZero() {
			t.Fatalf("%+v", b.SGE(n))
		}
		mark := byte(step)
		for i := range b.Bytes() {
			b.Bytes()[i] = mark
		}
		bytes += b.Len()
		out = append(out, held{b, mark})
		if p.InUse() != bytes {
			t.Fatalf("step %d: %d in use, really %d", step, p.InUse(), bytes)
		}
	}
	if s := p.Stats(); s.Arenas != 3 || s.Bytes != 12<<20 || s.MaxBytes != s.Bytes || s.Peak < s.InUse || s.Failed == 0 {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); err == nil || pd.open != 0 {
		t.Errorf("closed with buffers out: %v; %d regions open", err, pd.open)
	}
	if _, ok := p.Get(1); ok {
		t.Error("a buffer of a deregistered pool")
	}
	for _, h := range out {
		p.Put(h.b)
	}
	for _, c := range p.ClassStats(nil) {
		if c.InUse != 0 || c.Slabs != 0 {
			t.Errorf("left: %+v", c)
		}
	}
	if s := p.Stats(); s.InUse != 0 || s.FreeSlabs != 12 || s.Gets != s.Puts {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestPoolGivesSlabsBack: what one class had, any other can have afterwards.
func TestPoolGivesSlabsBack(t *testing.T) {
	p := newTestPool(t, &heapPD{}, PoolConfig{ArenaSize: 2 << 20, Classes: []int{4096, 1 << 20}})
	for round := range 3 {
		var out []Buf
		for {
			b, ok := p.Get(1)
			if !ok {
				break
			}
			out = append(out, b)
		}
		if len(out) != 512 {
			t.Fatalf("round %d: %d buffers of 4 KiB in 2 MiB", round, len(out))
		}
		if _, ok := p.Get(1 << 20); ok {
			t.Fatal("more than there is")
		}
		p.PutList(out)
		if out[0].Bytes() != nil {
			t.Error("a buffer that was put back is still named")
		}
		out, ok := p.GetList(2<<20, nil)
		if !ok || len(out) != 2 {
			t.Fatalf("round %d: %d buffers, %v", round, len(out), ok)
		}
		p.PutList(out)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestPoolGetList(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want []int
		ok   bool
	}{
		{0, nil, true},
		{-1, nil, true},
		{1, []int{1024}, true},
		{1025, []int{4096}, true},
		{4096, []int{4096}, true},
		{4097, []int{4096, 1024}, true},
		{4096 + 1025, []int{4096, 4096}, true},
		{8192, []int{4096, 4096}, true},
		{8193, nil, false},
		{1 << 40, nil, false},
	} {
		p := newTestPool(t, &heapPD{}, PoolConfig{ArenaSize: 8192, Classes: []int{1024, 4096}})
		dst := []Buf{{index: 77}}
		got, ok := p.GetList(tt.n, dst)
		if ok != tt.ok || len(got) != 1+len(tt.want) || got[0].index != 77 {
			t.Errorf("%d: %v %v", tt.n, got, ok)
			continue
		}
		for i, n := range tt.want {
			if got[1+i].Len() != n {
				t.Errorf("%d: piece %d has %d bytes", tt.n, i, got[1+i].Len())
			}
		}
		if !ok && p.InUse() != 0 {
			t.Errorf("%d: %d bytes lost", tt.n, p.InUse())
		}
		p.PutList(got[1:])
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPoolBorrows: with no slab left, a longer buffer is better than none.
func TestPoolBorrows(t *testing.T) {
	p := newTestPool(t, &heapPD{}, PoolConfig{ArenaSize: 4096, Classes: []int{1024, 2048, 4096}})
	big, _ := p.Get(2048)
	b, ok := p.Get(10)
	if !ok || b.Len() != 2048 {
		t.Fatalf("%d bytes, %v", b.Len(), ok)
	}
	if _, ok := p.Get(10); ok {
		t.Error("more than there is")
	}
	p.Put(b)
	p.Put(big)
}

func TestPoolConfigBad(t *testing.T) {
	for _, cfg := range []PoolConfig{
		{ArenaSize: -1},
		{MaxBytes: -1},
		{Classes: []int{0}},
		{Classes: []int{-64}},
		{Classes: []int{100}},
		{Classes: []int{4096, 1024}},
		{Classes: []int{1024, 1024}},
		{Classes: []int{3 * 1024, 4096}},
		{Classes: []int{1 << 31}},
	} {
		if _, err := NewPool(&heapPD{}, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	if _, err := NewPool(&heapPD{maxMR: 4096}, PoolConfig{}); !errors.Is(err, ErrTooBig) {
		t.Errorf("a device that registers 4096 bytes: %v", err)
	}
}

// TestPoolObeysMaxMRSize: arenas shrink to what the device registers at once.
func TestPoolObeysMaxMRSize(t *testing.T) {
	pd := &heapPD{maxMR: 3<<20 + 5}
	p := newTestPool(t, pd, PoolConfig{ArenaSize: 8 << 20, MaxBytes: 8 << 20, Huge: true})
	if err := p.Reserve(8 << 20); err != nil || pd.open != 3 {
		t.Errorf("%v, %d regions", err, pd.open)
	}
	if err := p.Reserve(8<<20 + 1); err == nil {
		t.Error("more than MaxBytes")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestPoolCannotRegister(t *testing.T) {
	want := &OpError{Op: "ibv_reg_mr", Errno: syscall.ENOMEM, Hint: "raise RLIMIT_MEMLOCK"}
	pd := &heapPD{fail: want}
	p := newTestPool(t, pd, PoolConfig{})
	if err := p.Reserve(1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if _, ok := p.Get(1); ok {
		t.Error("unregistered memory")
	}
	if err := p.GrowError(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if s := p.Stats(); s.GrowFailed != 2 || s.Failed != 1 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
	pd.fail = nil
	if b, ok := p.Get(1); !ok {
		t.Error("does not try again")
	} else {
		p.Put(b)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestPoolZeroAlloc(t *testing.T) {
	p := newTestPool(t, &heapPD{}, PoolConfig{ArenaSize: 8 << 20})
	if err := p.Reserve(8 << 20); err != nil {
		t.Fatal(err)
	}
	list := make([]Buf, 0, 8)
	if n := testing.AllocsPerRun(200, func() {
		a, _ := p.Get(8192)
		b, _ := p.Get(100)
		var ok bool
		if list, ok = p.GetList(3<<20+5, list[:0]); !ok {
			t.Fatal("no room")
		}
		if _, ok := p.Lookup(a.Bytes()); !ok {
			t.Fatal("not registered")
		}
		p.Put(b)
		p.PutList(list)
		p.Put(a)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkPoolGetPut(b *testing.B) {
	p, _ := NewPool(&heapPD{}, PoolConfig{})
	defer p.Close()
	for b.Loop() {
		x, _ := p.Get(4096)
		p.Put(x)
	}
}

func TestRegions(t *testing.T) {
	a, err := MapArena(64<<10, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m := a.Bytes()
	pd := &heapPD{}
	reg := func(from, to int) MR {
		mr, _ := pd.RegMR(m[from:to], 0)
		return mr
	}
	var r Regions
	if _, ok := r.Lookup(m[:1]); ok || r.Len() != 0 {
		t.Error("something in an empty table")
	}
	if r.Remove(reg(0, 1)) {
		t.Error("removed what was never there")
	}
	third, first, second, inner, inner2 := reg(40000, 50000), reg(100, 1000), reg(1000, 2000), reg(41000, 42000), reg(44000, 44100)
	for _, mr := range []MR{third, first, inner, second, inner2} {
		r.Add(mr)
	}
	for _, tt := range []struct {
		from, to int
		mr       MR
	}{
		{0, 1, nil}, {99, 100, nil}, {99, 101, nil}, {100, 101, first}, {999, 1000, first}, {100, 1000, first},
		{999, 1001, nil}, // two regions, two keys
		{1000, 2000, second}, {1000, 2001, nil}, {2000, 2001, nil}, {30000, 30001, nil}, {39999, 40001, nil},
		{40000, 50000, third}, {41000, 42000, inner}, {41500, 43000, third}, {45000, 45001, third}, {49999, 50001, nil},
		{50000, 50001, nil}, {41000, 41000, nil}, {0, 64 << 10, nil},
	} {
		key, ok := r.Lookup(m[tt.from:tt.to])
		if ok != (tt.mr != nil) || ok && key != tt.mr.LKey() {
			t.Errorf("[%d:%d]: key %d, %v", tt.from, tt.to, key, ok)
		}
	}
	if _, ok := r.LookupAddr(first.Addr()+10, ^uint64(0)-5); ok {
		t.Error("a length that wraps around")
	}
	if !r.Remove(third) || r.Remove(third) || r.Len() != 4 {
		t.Error("Remove")
	}
	if _, ok := r.Lookup(m[45000:45001]); ok {
		t.Error("a region that was removed")
	}
	if n := testing.AllocsPerRun(100, func() { r.Lookup(m[1500:1600]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
