package rdma

import (
	"errors"
	"fmt"
	"slices"
)

// PoolConfig sizes a [Pool]. The zero value of each field has a default.
type PoolConfig struct {
	// ArenaSize is how much memory the pool maps and registers at a time; default 32 MiB, and never more than the
	// device registers at once. It is rounded up to whole slabs, a slab being as long as the biggest class.
	ArenaSize int
	// MaxBytes is how much it maps in all; default one arena. Rounded up to whole slabs.
	MaxBytes int
	// Huge asks for huge pages. [PoolStats.HugeFallback] says that some memory is in normal ones after all.
	Huge bool
	// Classes are the lengths of buffers, ascending, each a multiple of 64 that divides the last one; default 4 KiB,
	// 16 KiB, 64 KiB, 256 KiB, 1 MiB.
	Classes []int
	// Access is what the device may do to the memory, [AccessLocalWrite] besides. iWARP wants [AccessRemoteWrite] for the
	// memory that RDMA READs put data in.
	Access Access
}

const (
	defaultArenaSize = 32 << 20
	// classAlign keeps buffers on cache lines of their own.
	classAlign = 64
)

var defaultClasses = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// Validate says what is wrong with the configuration.
func (c PoolConfig) Validate() error {
	if c.ArenaSize < 0 || c.MaxBytes < 0 {
		return fmt.Errorf("rdma: pool of %d bytes in arenas of %d", c.MaxBytes, c.ArenaSize)
	}
	for i, n := range c.Classes {
		last := c.Classes[len(c.Classes)-1]
		switch {
		case n <= 0 || n%classAlign != 0:
			return fmt.Errorf("rdma: buffer class of %d bytes is not a multiple of %d", n, classAlign)
		case i > 0 && n <= c.Classes[i-1]:
			return fmt.Errorf("rdma: buffer classes are not in ascending order at %d", n)
		case last%n != 0:
			return fmt.Errorf("rdma: buffer class of %d bytes does not divide the biggest, %d", n, last)
		case last > 1<<30:
			return fmt.Errorf("rdma: buffer class of %d bytes is above 1 GiB", last)
		}
	}
	return nil
}

// Pool gives out buffers of registered memory outside the Go heap. Memory is cut into slabs as long as the biggest
// class. A slab serves one class while any buffer of it is out and any class afterwards, so no class can use the pool up
// for the others by what it needed once. A Get or a Put allocates nothing, except for the Get that maps an arena.
//
// A pool belongs to one goroutine at a time (a shard); the caller provides the exclusion.
type Pool struct {
	pd      PD
	cfg     PoolConfig
	size    int // of a slab
	arenas  []poolArena
	regions Regions
	slabs   []slab
	free    int32        // list of free slabs
	classes []poolClass  // by size
	next    []int32      // per place for a buffer of the smallest class: the next free one of its slab
	marks   invariantSet // which of those places are out
	places  int          // in a slab
	inUse   int          // bytes
	stats   PoolStats    // what is counted as it happens
	growErr error        // why the pool could not grow last time
	dead    bool         // deregistered
	perAcct []PoolClassStats
}

type poolArena struct {
	arena *Arena
	mr    MR
}

// slab is memory of one class, or free. Its buffers are taken from its list first, then from what was never used.
type slab struct {
	mem        []byte
	lkey       uint32
	class      int32 // or -1
	prev, next int32 // in the list of its class's slabs with room, or in that of free slabs
	free       int32 // first free buffer given back, by number in the slab, or -1
	fresh      int32 // buffers from here on were never used
	used       int32 // buffers that are out
}

type poolClass struct {
	size, perSlab int
	room          int32 // list of slabs with room, or -1
}

// Buf is a buffer of a pool: a value, valid until it is put back. The zero value is no buffer.
type Buf struct {
	mem   []byte
	lkey  uint32
	slab  int32
	index int32
}

// Bytes is the whole buffer, at least as long as was asked for. Its content is whatever was there before.
func (b Buf) Bytes() []byte { return b.mem }

// Addr is where the buffer begins, as an [SGE] states it.
func (b Buf) Addr() uint64 { return AddrOf(b.mem) }

// Len is the length of the buffer.
func (b Buf) Len() int { return len(b.mem) }

// LKey is the key for the buffer.
func (b Buf) LKey() uint32 { return b.lkey }

// IsZero is true for no buffer.
func (b Buf) IsZero() bool { return b.mem == nil }

// SGE names the first n bytes of the buffer.
func (b Buf) SGE(n int) SGE { return SGE{Addr: b.Addr(), Length: uint32(n), LKey: b.lkey} }

// PoolStats is what a pool did and has.
type PoolStats struct {
	Arenas       int
	Bytes        int  // mapped and registered
	MaxBytes     int  // as far as it may grow
	InUse        int  // bytes of the buffers that are out
	Peak         int  // the highest InUse
	HugeFallback bool // huge pages were asked for, and some memory is in normal ones
	Gets, Puts   uint64
	Failed       uint64 // Gets that found nothing
	GrowFailed   uint64 // times that mapping or registering failed
	FreeSlabs    int
}

// PoolClassStats is what one class has.
type PoolClassStats struct {
	Size  int
	Slabs int // that serve it now
	InUse int // buffers
}

// NewPool makes a pool. It maps nothing yet; see [Pool.Reserve].
func NewPool(pd PD, cfg PoolConfig) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(cfg.Classes) == 0 {
		cfg.Classes = defaultClasses
	}
	cfg.Classes = slices.Clone(cfg.Classes)
	size := cfg.Classes[len(cfg.Classes)-1]
	if cfg.ArenaSize == 0 {
		cfg.ArenaSize = defaultArenaSize
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = cfg.ArenaSize
	}
	if limit := pd.Device().Attr().MaxMRSize; limit > 0 && uint64(cfg.ArenaSize) > limit {
		if uint64(size) > limit {
			return nil, fmt.Errorf("%w: buffers of %d bytes, the device registers %d", ErrTooBig, size, limit)
		}
		cfg.ArenaSize = int(limit) / size * size
	}
	up := func(n int) int { return (n + size - 1) / size * size }
	cfg.MaxBytes = up(cfg.MaxBytes)
	cfg.ArenaSize = min(up(cfg.ArenaSize), cfg.MaxBytes)
	p := &Pool{pd: pd, cfg: cfg, size: size, free: -1, places: size / cfg.Classes[0]}
	for _, n := range cfg.Classes {
		p.classes = append(p.classes, poolClass{size: n, perSlab: size / n, room: -1})
		p.perAcct = append(p.perAcct, PoolClassStats{Size: n})
	}
	return p, nil
}

// Reserve maps and registers until the pool has n bytes. A server calls it at start-up, to learn then and not at the
// first login that memory may not be locked.
func (p *Pool) Reserve(n int) error {
	for p.stats.Bytes < n {
		if err := p.grow(); err != nil {
			return err
		}
	}
	return nil
}

// MaxSize is the length of the longest buffer; see [Pool.GetList] for more.
func (p *Pool) MaxSize() int { return p.size }

// Get takes a buffer of at least n bytes. It is false when the pool is exhausted or n is above [Pool.MaxSize]. A longer
// buffer than the class's is given when only such are left.
func (p *Pool) Get(n int) (Buf, bool) {
	if n >= 0 && n <= p.size && !p.dead {
		first := 0
		for p.classes[first].size < n {
			first++
		}
		if p.classes[first].room >= 0 {
			return p.take(first), true
		}
		if p.free >= 0 || p.grow() == nil {
			p.open(first)
			return p.take(first), true
		}
		for c := first + 1; c < len(p.classes); c++ {
			if p.classes[c].room >= 0 {
				return p.take(c), true
			}
		}
	}
	p.stats.Failed++
	return Buf{}, false
}

// GetList appends buffers for n bytes in all to dst: as many of the longest as fit, then one for the rest. All or
// nothing; false leaves dst as it was.
func (p *Pool) GetList(n int, dst []Buf) ([]Buf, bool) {
	first := len(dst)
	for n > 0 {
		b, ok := p.Get(min(n, p.size))
		if !ok {
			p.PutList(dst[first:])
			return dst[:first], false
		}
		dst = append(dst, b)
		n -= len(b.mem)
	}
	return dst, true
}

// Put gives a buffer back. No request in flight may use it any more.
func (p *Pool) Put(b Buf) {
	s := &p.slabs[b.slab]
	c := &p.classes[s.class]
	place := int(b.slab)*p.places + int(b.index)
	p.marks.release(place, b.mem)
	p.stats.Puts++
	p.inUse -= c.size
	p.perAcct[s.class].InUse--
	full := int(s.used) == c.perSlab
	s.used--
	if s.used == 0 {
		if !full {
			p.unlink(&c.room, b.slab)
		}
		p.perAcct[s.class].Slabs--
		p.stats.FreeSlabs++
		s.class, s.free, s.fresh = -1, -1, 0
		p.link(&p.free, b.slab)
		return
	}
	p.next[place] = s.free
	s.free = b.index
	if full {
		p.link(&c.room, b.slab)
	}
}

// PutList gives buffers back and forgets them.
func (p *Pool) PutList(list []Buf) {
	for i := range list {
		p.Put(list[i])
		list[i] = Buf{}
	}
}

// take takes a buffer of a class that has a slab with room.
func (p *Pool) take(class int) Buf {
	c := &p.classes[class]
	at := c.room
	s := &p.slabs[at]
	index := s.free
	if index >= 0 {
		s.free = p.next[int(at)*p.places+int(index)]
	} else {
		index = s.fresh
		s.fresh++
	}
	s.used++
	if int(s.used) == c.perSlab {
		p.unlink(&c.room, at)
	}
	p.marks.take(int(at)*p.places + int(index))
	p.stats.Gets++
	p.perAcct[class].InUse++
	p.inUse += c.size
	p.stats.Peak = max(p.stats.Peak, p.inUse)
	off := int(index) * c.size
	return Buf{mem: s.mem[off : off+c.size : off+c.size], lkey: s.lkey, slab: at, index: index}
}

// open gives a free slab to a class.
func (p *Pool) open(class int) {
	at := p.free
	p.unlink(&p.free, at)
	p.slabs[at].class = int32(class)
	p.link(&p.classes[class].room, at)
	p.perAcct[class].Slabs++
	p.stats.FreeSlabs--
}

func (p *Pool) link(head *int32, at int32) {
	s := &p.slabs[at]
	s.prev, s.next = -1, *head
	if s.next >= 0 {
		p.slabs[s.next].prev = at
	}
	*head = at
}

func (p *Pool) unlink(head *int32, at int32) {
	s := &p.slabs[at]
	if s.prev >= 0 {
		p.slabs[s.prev].next = s.next
	} else {
		*head = s.next
	}
	if s.next >= 0 {
		p.slabs[s.next].prev = s.prev
	}
}

var errPoolFull = errors.New("rdma: the pool has all the memory that it may have")

// grow maps and registers one arena.
func (p *Pool) grow() error {
	if p.dead {
		return ErrClosed
	}
	n := min(p.cfg.ArenaSize, p.cfg.MaxBytes-p.stats.Bytes)
	if n <= 0 {
		return errPoolFull
	}
	a, err := MapArena(n, p.cfg.Huge)
	if err != nil {
		return p.growFailed(err)
	}
	mem := a.Bytes()[:n]
	mr, err := p.pd.RegMR(mem, p.cfg.Access|AccessLocalWrite)
	if err != nil {
		return p.growFailed(errors.Join(fmt.Errorf("register %d bytes: %w", n, err), a.Close()))
	}
	if p.cfg.Huge && !a.Huge() {
		p.stats.HugeFallback = true
	}
	p.arenas = append(p.arenas, poolArena{a, mr})
	p.regions.Add(mr)
	p.stats.Bytes += n
	first := len(p.slabs)
	for off := 0; off < n; off += p.size {
		p.slabs = append(p.slabs, slab{mem: mem[off : off+p.size : off+p.size], lkey: mr.LKey(), class: -1, free: -1})
	}
	for i := len(p.slabs) - 1; i >= first; i-- {
		p.link(&p.free, int32(i))
	}
	p.stats.FreeSlabs += n / p.size
	p.next = append(p.next, make([]int32, n/p.size*p.places)...)
	p.marks.grow(len(p.next))
	return nil
}

func (p *Pool) growFailed(err error) error {
	p.stats.GrowFailed++
	p.growErr = err
	return err
}

// GrowError says why the pool could not grow the last time it tried, nil if it always could.
func (p *Pool) GrowError() error { return p.growErr }

// Lookup is the key for b if b lies in the pool's memory.
func (p *Pool) Lookup(b []byte) (lkey uint32, ok bool) { return p.regions.Lookup(b) }

// InUse is how many bytes the buffers that are out have.
func (p *Pool) InUse() int { return p.inUse }

// Available is how many bytes are not in use, counting what the pool may still map.
func (p *Pool) Available() int { return p.cfg.MaxBytes - p.inUse }

// Stats is what the pool did and has.
func (p *Pool) Stats() PoolStats {
	s := p.stats
	s.Arenas, s.MaxBytes, s.InUse = len(p.arenas), p.cfg.MaxBytes, p.inUse
	return s
}

// ClassStats appends what each class has, the smallest first.
func (p *Pool) ClassStats(dst []PoolClassStats) []PoolClassStats { return append(dst, p.perAcct...) }

// Deregister takes the memory from the device; it stays mapped, and buffers that are out stay valid for the processor.
// Afterwards every Get fails. For a device that is gone while a store still reads into its buffers.
func (p *Pool) Deregister() error {
	p.dead = true
	var errs []error
	for i := range p.arenas {
		if mr := p.arenas[i].mr; mr != nil {
			p.regions.Remove(mr)
			errs = append(errs, mr.Close())
			p.arenas[i].mr = nil
		}
	}
	return errors.Join(errs...)
}

// Close deregisters and unmaps. While buffers are out it deregisters, leaves them mapped, and says so; it may be called
// again.
func (p *Pool) Close() error {
	err := p.Deregister()
	if p.inUse > 0 {
		return errors.Join(err, fmt.Errorf("rdma: %d bytes of the pool are in use; they stay mapped", p.inUse))
	}
	for i := range p.arenas {
		err = errors.Join(err, p.arenas[i].arena.Close())
	}
	p.arenas, p.slabs, p.next, p.free = nil, nil, nil, -1
	for i := range p.classes {
		p.classes[i].room = -1
	}
	p.stats.Bytes, p.stats.FreeSlabs = 0, 0
	return err
}
