//go:build invariants

package rdma

import "testing"

func TestPoolInvariants(t *testing.T) {
	p := newTestPool(t, &heapPD{}, PoolConfig{ArenaSize: 1 << 20})
	keep, _ := p.Get(1) // so that the slab stays with its class
	b, _ := p.Get(1)
	clear(b.Bytes())
	p.Put(b)
	for i, x := range b.Bytes() {
		if x != releasedByte {
			t.Fatalf("byte %d survived", i)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a double Put goes unnoticed")
			}
		}()
		p.Put(b)
	}()
	p.Put(keep)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
