package iser

import (
	"errors"

	"iserd/rdma"
)

var (
	errUnregistered = errors.New("iser: data in memory that is not registered")
	errPoolEmpty    = errors.New("iser: the pool of registered memory is exhausted")
)

// openPool makes the shard's pool and registers what it begins with, so that a lack of lockable memory shows now.
func (s *shard) openPool() (err error) {
	s.pool, err = rdma.NewPool(s.dev.pd, rdma.PoolConfig{
		ArenaSize: s.cfg.PoolBytes, MaxBytes: s.cfg.PoolMaxBytes, Huge: !s.cfg.NoHugePages, Access: s.dev.access,
		Classes: []int{4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20},
	})
	if err != nil {
		return err
	}
	if err = s.pool.Reserve(s.cfg.PoolBytes); err != nil {
		return errors.Join(err, s.pool.Close())
	}
	st := s.pool.Stats()
	s.huge = !s.cfg.NoHugePages && !st.HugeFallback
	s.poolChanged()
	return nil
}

// poolChanged brings the gauges up to date.
func (s *shard) poolChanged() {
	s.poolBytes.Store(uint64(s.pool.Available() + s.pool.InUse()))
	s.poolFree.Store(uint64(s.pool.Available()))
}

// getBuffer takes a buffer of at least n bytes from the pool.
func (s *shard) getBuffer(n int) (rdma.Buf, bool) {
	b, ok := s.pool.Get(n)
	if ok {
		s.counters.buffersInUse.inc()
		s.poolFree.Store(uint64(s.pool.Available()))
	}
	return b, ok
}

func (s *shard) putBuffer(b rdma.Buf) {
	s.pool.Put(b)
	s.counters.buffersInUse.dec()
	s.poolFree.Store(uint64(s.pool.Available()))
	s.freed = true
}

// getBuffers appends room for n bytes to list, in as few buffers as there can be; all or nothing.
func (s *shard) getBuffers(list []rdma.Buf, n uint32) ([]rdma.Buf, bool) {
	had := len(list)
	list, ok := s.pool.GetList(int(n), list)
	if ok {
		s.counters.buffersInUse.add(len(list) - had)
		s.poolFree.Store(uint64(s.pool.Available()))
	}
	return list, ok
}

func (s *shard) putBuffers(list []rdma.Buf) {
	for i := range list {
		s.putBuffer(list[i])
		list[i] = rdma.Buf{}
	}
}

// keyOf is the key for b, which lies in the pool or in memory of a store.
func (s *shard) keyOf(b []byte) (uint32, bool) {
	if key, ok := s.pool.Lookup(b); ok {
		return key, true
	}
	return s.dev.regions.Lookup(b)
}

// registered tells whether the first n bytes of the pieces lie in registered memory.
func (s *shard) registered(pieces [][]byte, n uint32) bool {
	for _, p := range pieces {
		if n == 0 {
			break
		}
		p = p[:min(uint32(len(p)), n)]
		n -= uint32(len(p))
		if len(p) == 0 {
			continue
		}
		if _, ok := s.keyOf(p); !ok {
			return false
		}
	}
	return true
}

// memory is what RegisterMemory was given.
type memory struct{ regions [][]byte }

// register adds memory of a store; all or nothing. The caller holds the server's mu.
func (d *device) register(m *memory) error {
	var added []rdma.MR
	for _, b := range m.regions {
		if len(b) == 0 {
			continue
		}
		mr, err := d.pd.RegMR(b, 0) // the device only reads it
		if err != nil {
			for _, mr := range added {
				d.regions.Remove(mr)
				_ = mr.Close()
			}
			return err
		}
		added = append(added, mr)
		d.regions.Add(mr)
	}
	d.stores[m] = added
	return nil
}

func (d *device) unregister(m *memory) {
	d.closeRegions(d.stores[m])
	delete(d.stores, m)
}

func (d *device) closeRegions(list []rdma.MR) (err error) {
	for _, mr := range list {
		d.regions.Remove(mr)
		err = errors.Join(err, mr.Close())
	}
	return err
}
