package tcp

import (
	"sync"

	"iserd/iscsi"
)

// classes are the sizes of task buffers. Go aligns allocations of these sizes to at least 4096 bytes, which stores that
// bypass the page cache need.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// reservePart of the memory is the reserve: with the default, a command of 1 MiB each for 256 connections.
const reservePart = 4

// minBufferMemory lets a few commands of the largest transfer run at the same time.
const minBufferMemory = 8 << 20

// bufferPool is the memory of all task buffers. Connections that find too little wait in line, each once, however many
// commands it has that wait; the first in line is told when memory came back, and until it has taken what it needs
// nobody else gets any.
//
// A reserve stands outside of the line. A connection that holds nothing takes from it when it would have to wait: initiators
// that ask for much and then take or send nothing can hold all the rest for as long as they like, and others still have a
// command at a time served (known-faults B77).
type bufferPool struct {
	limit, reserve int64

	mu       sync.Mutex
	inUse    int64 // without what is taken from the reserve
	reserved int64 // that
	total    int64 // both, and what lies in free
	free     [len(classes)][][]byte
	line     []*conn
	served   *conn // was told, has not taken yet
	came     bool  // memory came back since served was told
}

// nextPiece is the class to take a piece of for n bytes: what holds all of it, unless that would waste half.
func nextPiece(n int) int {
	for i, size := range classes {
		if size >= n {
			if i > 0 && n <= size/2 {
				return i - 1
			}
			return i
		}
	}
	return len(classes) - 1
}

func classOf(size int) int {
	for i, s := range classes {
		if s == size {
			return i
		}
	}
	return -1
}

// alloc appends pieces of n bytes in total to dst. Without success c stands in line.
func (p *bufferPool) alloc(c *conn, dst [][]byte, n int) ([][]byte, bool) {
	var need int64
	for rest := n; rest > 0; {
		size := classes[nextPiece(rest)]
		need += int64(size)
		rest -= size
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// One command larger than the limit runs when it is alone.
	enough := p.inUse+need <= p.limit || p.inUse == 0
	inTurn := p.served == c || p.served == nil && len(p.line) == 0
	switch {
	case enough && inTurn:
		p.inUse += need
	case c.memory.held == 0 && p.reserved+need <= p.reserve:
		p.reserved += need
		c.memory.reserved = need
	default:
		p.queue(c)
		return dst, false
	}
	c.memory.held += need
	for n > 0 {
		i := nextPiece(n)
		b := p.take(i)
		b = b[:min(n, len(b))]
		n -= len(b)
		dst = append(dst, b)
	}
	return dst, true
}

// share is what a connection has of the pool's memory. Guarded by the pool.
type share struct {
	held     int64
	reserved int64 // of that, from the reserve
}

// queue puts c in line: in front if it was served and found too little.
func (p *bufferPool) queue(c *conn) {
	for _, other := range p.line {
		if other == c {
			return
		}
	}
	if p.served == c {
		p.line = append(p.line, nil)
		copy(p.line[1:], p.line)
		p.line[0] = c
		return
	}
	p.line = append(p.line, c)
}

func (p *bufferPool) take(class int) []byte {
	size := int64(classes[class])
	if f := p.free[class]; len(f) > 0 {
		b := f[len(f)-1]
		p.free[class] = f[:len(f)-1]
		return b
	}
	// Idle pieces of other sizes make room, so that the total stays near the limit.
	for i := len(p.free) - 1; i >= 0 && p.total+size > p.limit+p.reserve; i-- {
		for f := p.free[i]; len(f) > 0 && p.total+size > p.limit+p.reserve; f = p.free[i] {
			f[len(f)-1] = nil
			p.free[i] = f[:len(f)-1]
			p.total -= int64(classes[i])
		}
	}
	p.total += size
	return make([]byte, size)
}

// release takes pieces back from c.
func (p *bufferPool) release(c *conn, pieces [][]byte) {
	p.mu.Lock()
	var size int64
	for _, b := range pieces {
		i := classOf(cap(b))
		size += int64(cap(b))
		p.free[i] = append(p.free[i], b[:cap(b)])
	}
	c.memory.held -= size
	// The reserve comes back first, so that it is there for the next in need.
	fromReserve := min(size, c.memory.reserved)
	c.memory.reserved -= fromReserve
	p.reserved -= fromReserve
	p.inUse -= size - fromReserve
	var next *conn
	if size > fromReserve {
		p.came = true
		next = p.serve()
	}
	poor := p.poorest()
	p.mu.Unlock()
	if next != nil {
		next.buffersCame()
	}
	if poor != nil && poor != next {
		poor.buffersCame()
	}
}

// poorest is the first in line that holds nothing, if there is something for it in the reserve. It keeps its place.
func (p *bufferPool) poorest() *conn {
	if p.reserved >= p.reserve {
		return nil
	}
	for _, c := range p.line {
		if c.memory.held == 0 {
			return c
		}
	}
	return nil
}

// serve picks who is told next.
func (p *bufferPool) serve() *conn {
	if p.served != nil || len(p.line) == 0 {
		return nil
	}
	p.served = p.line[0]
	copy(p.line, p.line[1:])
	p.line = p.line[:len(p.line)-1]
	p.came = false
	return p.served
}

// passOn says that c has taken what it needs, or found too little and is in line again, or is gone.
func (p *bufferPool) passOn(c *conn, gone bool) {
	p.mu.Lock()
	if gone {
		for i, other := range p.line {
			if other == c {
				p.line = append(p.line[:i], p.line[i+1:]...)
				break
			}
		}
	}
	var next *conn
	if p.served == c {
		p.served = nil
		if again := len(p.line) > 0 && p.line[0] == c; !again || p.came || p.inUse == 0 {
			next = p.serve()
		}
	}
	p.mu.Unlock()
	if next != nil {
		next.buffersCame()
	}
}

func (p *bufferPool) usage() (inUse, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse + p.reserved, p.total
}

// AllocateDataBuffers implements [iscsi.Datamover].
func (c *conn) AllocateDataBuffers(t *iscsi.Task, n uint32) ([][]byte, bool) {
	x := &c.xfers[t.Index]
	had := len(x.buffers)
	var ok bool
	if x.buffers, ok = c.srv.buffers.alloc(c, x.buffers, int(n)); !ok {
		c.srv.counters.bufferWaits.Add(1)
		return nil, false
	}
	return x.buffers[had:], true
}

// DeallocateTaskResources implements [iscsi.Datamover]. A transfer that is still under way is given up.
func (c *conn) DeallocateTaskResources(t *iscsi.Task) {
	x := &c.xfers[t.Index]
	for i := range c.completions {
		if c.completions[i].t == t {
			c.completions[i].t = nil
		}
	}
	c.reset(x)
	if i := int(t.Private[0]) - 1; i >= 0 && i < len(c.bursts) {
		// GetData was never called.
		if b := &c.bursts[i]; b.used && b.x == nil && b.itt == t.BHS.InitiatorTaskTag() {
			b.orphan, b.spill = true, nil
			c.dropBurst(b)
		}
	}
	if len(x.buffers) > 0 {
		c.srv.buffers.release(c, x.buffers)
		clear(x.buffers)
		x.buffers = x.buffers[:0]
	}
}
