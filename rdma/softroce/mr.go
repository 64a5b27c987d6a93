package softroce

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"iserd/rdma"
)

// maxMR bounds the number of memory regions.
const maxMR = 1 << 16

// remoteAccess are the rights that a SEND with Invalidate takes away.
const remoteAccess = rdma.AccessRemoteRead | rdma.AccessRemoteWrite

// mrTable finds regions by key. Keys are random, so that one that was granted says nothing about others.
type mrTable struct {
	mu    sync.RWMutex
	byKey map[uint32]*mr
	// byAddr finds the region of inline data, which comes without a key.
	byAddr rdma.Regions
}

// mr is a memory region.
type mr struct {
	pd     *pd
	buf    []byte
	addr   uint64
	key    uint32
	access rdma.Access
	// noRemote: a SEND with Invalidate took the remote rights away.
	noRemote atomic.Bool

	mu     sync.RWMutex // held for reading while memory is touched
	closed bool
}

func randomKey() uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		// Zero means "no key" in too many protocols.
		if k := binary.BigEndian.Uint32(b[:]); k != 0 {
			return k
		}
	}
}

func (t *mrTable) add(m *mr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byKey) >= maxMR {
		return tooBig("memory regions", len(t.byKey)+1, maxMR)
	}
	for m.key = randomKey(); t.byKey[m.key] != nil; m.key = randomKey() {
	}
	t.byKey[m.key] = m
	t.byAddr.Add(m)
	return nil
}

func (t *mrTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey[m.key] == m {
		delete(t.byKey, m.key)
		t.byAddr.Remove(m)
	}
}

func (t *mrTable) find(key uint32) *mr {
	t.mu.RLock()
	m := t.byKey[key]
	t.mu.RUnlock()
	return m
}

// acquire gives the n bytes at addr under key, if the region is of p and grants need. The bytes are there until
// m.release.
func (t *mrTable) acquire(p *pd, key uint32, addr uint64, n uint32, need rdma.Access) (b []byte, m *mr, ok bool) {
	if m = t.find(key); m == nil || m.pd != p || m.access&need != need || need&remoteAccess != 0 && m.noRemote.Load() {
		return nil, nil, false
	}
	off := addr - m.addr
	if addr < m.addr || off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off {
		return nil, nil, false
	}
	m.mu.RLock()
	if m.closed {
		m.mu.RUnlock()
		return nil, nil, false
	}
	return m.buf[off : off+uint64(n) : off+uint64(n)], m, true
}

func (m *mr) release() { m.mu.RUnlock() }

// granted tells whether acquire would succeed.
func (t *mrTable) granted(p *pd, key uint32, addr uint64, n uint32, need rdma.Access) bool {
	_, m, ok := t.acquire(p, key, addr, n, need)
	if ok {
		m.release()
	}
	return ok
}

// invalidate takes the remote rights of a key away, as a SEND with Invalidate asks. It is false for a key that is not a
// remote one of this domain.
func (t *mrTable) invalidate(p *pd, key uint32) bool {
	m := t.find(key)
	return m != nil && m.pd == p && m.access&remoteAccess != 0 && m.noRemote.CompareAndSwap(false, true)
}

// pieces copies between a packet and the pieces of a request.
type pieces []rdma.SGE

// gather copies the bytes from off on into dst.
func (s pieces) gather(t *mrTable, p *pd, dst []byte, off uint32) bool {
	for i := range s {
		if len(dst) == 0 {
			return true
		}
		g := &s[i]
		if g.Length <= off {
			off -= g.Length
			continue
		}
		n := min(g.Length-off, uint32(len(dst)))
		b, m, ok := t.acquire(p, g.LKey, g.Addr+uint64(off), n, 0)
		if !ok {
			return false
		}
		copy(dst, b)
		m.release()
		dst, off = dst[n:], 0
	}
	return len(dst) == 0
}

// scatter copies src to the bytes from off on.
func (s pieces) scatter(t *mrTable, p *pd, src []byte, off uint32) bool {
	for i := range s {
		if len(src) == 0 {
			return true
		}
		g := &s[i]
		if g.Length <= off {
			off -= g.Length
			continue
		}
		n := min(g.Length-off, uint32(len(src)))
		b, m, ok := t.acquire(p, g.LKey, g.Addr+uint64(off), n, rdma.AccessLocalWrite)
		if !ok {
			return false
		}
		copy(b, src)
		m.release()
		src, off = src[n:], 0
	}
	return len(src) == 0
}

// granted tells whether all of the pieces may be used so.
func (s pieces) granted(t *mrTable, p *pd, need rdma.Access) bool {
	for i := range s {
		if s[i].Length > 0 && !t.granted(p, s[i].LKey, s[i].Addr, s[i].Length, need) {
			return false
		}
	}
	return true
}

// pd is a protection domain.
type pd struct {
	dev    *device
	users  atomic.Int32 // regions and queue pairs
	closed atomic.Bool
}

// AllocPD implements [rdma.Device].
func (d *device) AllocPD() (rdma.PD, error) {
	if d.closed.Load() {
		return nil, rdma.ErrClosed
	}
	d.open.pds.Add(1)
	return &pd{dev: d}, nil
}

func (p *pd) Device() rdma.Device { return p.dev }

func (p *pd) Close() error {
	if p.closed.Load() {
		return nil
	}
	if n := p.users.Load(); n > 0 {
		return busy("dealloc_pd", "regions or queue pairs", int(n))
	}
	if p.closed.CompareAndSwap(false, true) {
		p.dev.open.pds.Add(-1)
	}
	return nil
}

func (p *pd) RegMR(buf []byte, access rdma.Access) (rdma.MR, error) {
	if p.closed.Load() || p.dev.closed.Load() {
		return nil, rdma.ErrClosed
	}
	if len(buf) == 0 {
		return nil, invalid("reg_mr", "no memory")
	}
	m := &mr{pd: p, buf: buf, addr: rdma.AddrOf(buf), access: access}
	if err := p.dev.mrs.add(m); err != nil {
		return nil, err
	}
	p.users.Add(1)
	p.dev.open.mrs.Add(1)
	return m, nil
}

func (m *mr) Bytes() []byte { return m.buf }
func (m *mr) Addr() uint64  { return m.addr }
func (m *mr) LKey() uint32  { return m.key }
func (m *mr) RKey() uint32  { return m.key }

// Close waits for the packets that are being copied.
func (m *mr) Close() error {
	m.mu.Lock()
	was := m.closed
	m.closed = true
	m.mu.Unlock()
	if was {
		return nil
	}
	m.pd.dev.mrs.remove(m)
	m.pd.users.Add(-1)
	m.pd.dev.open.mrs.Add(-1)
	return nil
}
