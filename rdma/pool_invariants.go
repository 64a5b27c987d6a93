//go:build invariants

package rdma

import "fmt"

// invariantSet knows which buffers are out, and overwrites those that come back.
type invariantSet struct{ out []bool }

// releasedByte is what every byte of a released buffer becomes.
const releasedByte = 0xDB

func (s *invariantSet) grow(n int) { s.out = append(s.out, make([]bool, n-len(s.out))...) }

func (s *invariantSet) take(i int) {
	if s.out[i] {
		panic(fmt.Sprintf("rdma: buffer %d given out twice", i))
	}
	s.out[i] = true
}

func (s *invariantSet) release(i int, mem []byte) {
	if !s.out[i] {
		panic(fmt.Sprintf("rdma: buffer %d put back twice", i))
	}
	s.out[i] = false
	for j := range mem {
		mem[j] = releasedByte
	}
}
