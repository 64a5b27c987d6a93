package scsi

import (
	"bytes"

	"iserd/backstore"
)

// verifyChunk is how much VERIFY reads at a time: enough to keep a disk busy, small enough to hold one per command.
const verifyChunk = 256 << 10

// scratch is memory to read into.
type scratch struct {
	mem     [verifyChunk]byte
	buffers [1][]byte
}

// verifyState is how far a VERIFY has come.
type verifyState struct {
	scratch *scratch
	lu      *LogicalUnit
	// done and total are bytes of the medium. compare says that data-out is held against them; repeat, that data-out is
	// one block, which every block of the medium must equal.
	done, total     uint64
	compare, repeat bool
}

func (v *verifyState) drop() {
	v.lu.scratch.Put(v.scratch)
	*v = verifyState{}
}

// startVerify is VERIFY(10), (12) and (16). BYTCHK 00b reads the medium and compares nothing, and takes no data-out
// (known-faults B55); 01b compares with as much data-out; 11b compares every block with one block of data-out.
func startVerify(c *Command) Next {
	if !c.checkRange() {
		return NextDone
	}
	lu := c.LU
	c.verify = verifyState{lu: lu, total: c.blocks << lu.shift}
	v := &c.verify
	switch c.CDB[1] >> 1 & 3 {
	case 0:
		if v.total == 0 || lu.info.Inline {
			return c.good() // memory needs no verification
		}
		return NextExecute
	case 1:
		if !c.checkTransfer() {
			return NextDone
		}
		v.compare = true
		c.needOut = v.total
	case 3:
		if v.total == 0 {
			return c.good()
		}
		// The transfer is one block, but the work is as much as the range: one command must not keep a core for minutes.
		if !c.checkTransfer() {
			return NextDone
		}
		v.compare, v.repeat = true, true
		c.needOut = uint64(lu.blockSize)
	default: // 10b is reserved
		return c.invalidField(1)
	}
	return c.askDataOut()
}

func executeVerify(c *Command) Next {
	v := &c.verify
	if v.compare && !v.repeat {
		// No more can be compared than came.
		v.total = min(v.total, uint64(c.DataOutLength))
	}
	s, _ := c.LU.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	v.scratch = s
	return c.verifyNext()
}

func (c *Command) verifyNext() Next {
	v := &c.verify
	n := min(v.total-v.done, verifyChunk)
	v.scratch.buffers[0] = v.scratch.mem[:n]
	return c.submit(backstore.OpRead, c.lba<<c.LU.shift+v.done, n, v.scratch.buffers[:])
}

func finishVerify(c *Command) Next {
	v := &c.verify
	if c.req.Err != nil {
		return c.storeFailed()
	}
	medium := v.scratch.buffers[0]
	if v.compare && !c.verifyEqual(medium) {
		return c.Fail(Miscompare, MiscompareDuringVerify)
	}
	v.done += uint64(len(medium))
	if v.done == v.total {
		return c.good()
	}
	if c.Aborted.Load() {
		return c.Fail(AbortedCommand, NoAdditionalSense)
	}
	return c.verifyNext()
}

// verifyEqual holds a chunk of the medium against the data-out that belongs to it.
func (c *Command) verifyEqual(medium []byte) bool {
	v := &c.verify
	if !v.repeat {
		return equalAt(c.Data, v.done, medium)
	}
	block := uint64(c.LU.blockSize)
	for at := uint64(0); at < uint64(len(medium)); at += block {
		// Data-out may be shorter than the block if the initiator said so.
		if !equalAt(c.Data, 0, medium[at:at+min(block, uint64(c.DataOutLength))]) {
			return false
		}
	}
	return true
}

// equalAt compares want with the bytes at offset off of the concatenated pieces.
func equalAt(pieces [][]byte, off uint64, want []byte) bool {
	for _, p := range pieces {
		if off >= uint64(len(p)) {
			off -= uint64(len(p))
			continue
		}
		p = p[off:]
		off = 0
		n := min(len(p), len(want))
		if !bytes.Equal(p[:n], want[:n]) {
			return false
		}
		if want = want[n:]; len(want) == 0 {
			return true
		}
	}
	return len(want) == 0
}
