package rdma

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Regions is a table of registered memory by address, for data that is sent from where it lies. The zero value is
// empty and ready. Lookup may be called by anyone at any time and takes no lock; it sees the table before a change or
// after it. It is the caller's duty not to close a region that requests in flight may name.
type Regions struct {
	mu   sync.Mutex // writers
	list atomic.Pointer[[]regionEntry]
}

type regionEntry struct {
	addr, end uint64
	reach     uint64 // the highest end of this entry and those before it
	mr        MR
	lkey      uint32
}

// setReach completes a new list.
func setReach(list []regionEntry) {
	reach := uint64(0)
	for i := range list {
		reach = max(reach, list[i].end)
		list[i].reach = reach
	}
}

// Add enters a region. Where regions overlap, the one that begins last and holds all of the data is found.
func (r *Regions) Add(mr MR) {
	e := regionEntry{addr: mr.Addr(), mr: mr, lkey: mr.LKey()}
	e.end = e.addr + uint64(len(mr.Bytes()))
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []regionEntry
	if old := r.list.Load(); old != nil {
		list = *old
	}
	at, _ := slices.BinarySearchFunc(list, e.addr, func(x regionEntry, addr uint64) int {
		if x.addr <= addr {
			return -1
		}
		return 1
	})
	list = slices.Insert(slices.Clone(list), at, e)
	setReach(list)
	r.list.Store(&list)
}

// Remove takes a region out, and tells whether it was there. It does not close it.
func (r *Regions) Remove(mr MR) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.list.Load()
	if old == nil {
		return false
	}
	list := slices.DeleteFunc(slices.Clone(*old), func(e regionEntry) bool { return e.mr == mr })
	setReach(list)
	r.list.Store(&list)
	return len(list) < len(*old)
}

// Len is the number of regions.
func (r *Regions) Len() int {
	if list := r.list.Load(); list != nil {
		return len(*list)
	}
	return 0
}

// Lookup finds the key for b; false when not all of b lies in one region. An empty slice lies nowhere.
func (r *Regions) Lookup(b []byte) (lkey uint32, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	return r.LookupAddr(AddrOf(b), uint64(len(b)))
}

// LookupAddr is Lookup by address and length.
func (r *Regions) LookupAddr(addr, n uint64) (lkey uint32, ok bool) {
	p := r.list.Load()
	if p == nil || n == 0 {
		return 0, false
	}
	list := *p
	lo, hi := 0, len(list) // the last region that begins at or before addr
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); list[mid].addr <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	// Nearly always the first one tried; more than one step only where regions overlap.
	for i := lo - 1; i >= 0 && addr < list[i].reach; i-- {
		if e := &list[i]; addr < e.end && n <= e.end-addr {
			return e.lkey, true
		}
	}
	return 0, false
}
