package tcp

import (
	"net"
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string // part of the error; empty is none
	}{
		{Config{}, ""},
		{Config{BufferMemory: minBufferMemory, StallTimeout: time.Second, CloseTimeout: 1, KeepAlive: time.Hour}, ""},
		{Config{BufferMemory: -1}, "buffer memory"},
		{Config{BufferMemory: 1}, "buffer memory"},
		{Config{BufferMemory: minBufferMemory - 1}, "buffer memory"},
		{Config{StallTimeout: -1}, "stall timeout"},
		{Config{CloseTimeout: -time.Second}, "close timeout"},
		{Config{KeepAlive: -1}, "keep-alive time"},
	} {
		err := c.cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if New(nil, Config{BufferMemory: 1}).Serve(l) == nil {
		t.Error("a server with a bad configuration serves")
	}
}

func TestBufferPieces(t *testing.T) {
	p := &bufferPool{limit: 1 << 30}
	c := &conn{}
	for _, n := range []int{1, 512, 4096, 4097, 8192, 8193, 16384, 65536, 70000, 300 << 10, 1 << 20, 1<<20 + 1, 5 << 20} {
		pieces, ok := p.alloc(c, nil, n)
		if !ok {
			t.Fatalf("%d bytes: none", n)
		}
		total, memory := 0, 0
		for _, b := range pieces {
			total += len(b)
			memory += cap(b)
			if a := addressOf(b); a%4096 != 0 {
				t.Errorf("%d bytes: a piece at %#x", n, a)
			}
		}
		if total != n {
			t.Errorf("%d bytes: got %d", n, total)
		}
		if memory >= 2*max(n, 4096) && memory > 4096 {
			t.Errorf("%d bytes take %d", n, memory)
		}
		if len(pieces) > n>>20+4 {
			t.Errorf("%d bytes in %d pieces", n, len(pieces))
		}
		p.release(c, pieces)
	}
	if inUse, _ := p.usage(); inUse != 0 {
		t.Errorf("%d bytes in use", inUse)
	}
}

// TestBufferLine: who comes first is served first, nobody overtakes, the memory stays within the limit.
func TestBufferLine(t *testing.T) {
	p := &bufferPool{limit: 64 << 10}
	newWaiter := func() *conn {
		c := &conn{wake: make(chan struct{}, 1)}
		return c
	}
	told := func(c *conn) bool { return c.buffersFree.Swap(false) }
	a, b, d := newWaiter(), newWaiter(), newWaiter()
	held, ok := p.alloc(a, nil, 48<<10)
	if !ok {
		t.Fatal("the first gets nothing")
	}
	if _, ok := p.alloc(b, nil, 32<<10); ok {
		t.Fatal("more than the limit")
	}
	if _, ok := p.alloc(d, nil, 4<<10); ok {
		t.Fatal("the third overtakes the second")
	}
	if _, ok := p.alloc(b, nil, 4<<10); ok {
		t.Fatal("the second overtakes itself")
	}
	p.release(a, held)
	if !told(b) || told(d) {
		t.Fatal("the wrong one is told")
	}
	if _, ok := p.alloc(d, nil, 4<<10); ok {
		t.Fatal("the third takes what the second was told of")
	}
	second, ok := p.alloc(b, nil, 48<<10)
	if !ok {
		t.Fatal("told, but there is nothing")
	}
	p.passOn(b, false)
	if !told(d) {
		t.Fatal("the third is not told")
	}
	// It finds too little, and stays first.
	if _, ok := p.alloc(d, nil, 64<<10); ok {
		t.Fatal("more than the limit")
	}
	p.passOn(d, false)
	if _, ok := p.alloc(a, nil, 4<<10); ok {
		t.Fatal("overtaken")
	}
	p.release(b, second)
	if !told(d) {
		t.Fatal("not told when memory came back")
	}
	// It is gone instead; the next one is told.
	p.passOn(d, true)
	if !told(a) {
		t.Fatal("a connection that has gone blocks the line")
	}
	// One that is larger than the limit runs alone.
	large, ok := p.alloc(a, nil, 1<<20)
	if !ok {
		t.Fatal("a command larger than the limit never runs")
	}
	p.passOn(a, false)
	p.release(a, large)
	inUse, total := p.usage()
	if inUse != 0 || total > 1<<20+64<<10 || len(p.line) != 0 || p.served != nil {
		t.Errorf("in use %d, total %d, %d in line", inUse, total, len(p.line))
	}
}

// TestB77_GreedyInitiatorsDoNotStarveOthers: whoever holds nothing gets a command's memory although others hold all that
// the line gives and do not give it back.
func TestB77_GreedyInitiatorsDoNotStarveOthers(t *testing.T) {
	p := &bufferPool{limit: 64 << 10, reserve: 32 << 10}
	told := func(c *conn) bool { return c.buffersFree.Swap(false) }
	conns := make([]*conn, 5)
	for i := range conns {
		conns[i] = &conn{wake: make(chan struct{}, 1)}
	}
	greedy, a, b, d, large := conns[0], conns[1], conns[2], conns[3], conns[4]
	got := map[*conn][][]byte{}
	alloc := func(c *conn, n int) bool {
		pieces, ok := p.alloc(c, nil, n)
		got[c] = append(got[c], pieces...)
		return ok
	}
	release := func(c *conn) { p.release(c, got[c]); got[c] = nil }
	if !alloc(greedy, 64<<10) || alloc(greedy, 4<<10) {
		t.Fatal("the greedy one should get the limit, and no more: the reserve is for who has nothing")
	}
	if alloc(large, 64<<10) {
		t.Fatal("more than the reserve")
	}
	if !alloc(a, 16<<10) || !alloc(b, 16<<10) {
		t.Fatal("starved")
	}
	if alloc(a, 4<<10) || alloc(d, 16<<10) {
		t.Fatal("more than the reserve, or more than one command of it")
	}
	if inUse, _ := p.usage(); inUse != 96<<10 {
		t.Errorf("%d bytes in use", inUse)
	}
	// What comes back goes to one who has nothing, past those who wait for more than there is.
	release(b)
	if told(a) || told(b) || told(greedy) {
		t.Error("the wrong one is told")
	}
	if !told(large) || alloc(large, 64<<10) {
		t.Error("the first who has nothing is not told, or gets more than there is")
	}
	p.passOn(large, false)
	if !alloc(d, 16<<10) {
		t.Error("starved by one who waits for more than there is")
	}
	p.passOn(d, false)
	// In the end everybody is served, and everything is back.
	release(greedy)
	for range 20 {
		for _, c := range conns {
			if !told(c) {
				continue
			}
			if c == large && got[c] == nil {
				alloc(c, 64<<10)
			}
			p.passOn(c, false)
		}
		release(a)
		release(d)
	}
	if len(got[large]) == 0 {
		t.Error("the large one is never served")
	}
	release(large)
	if inUse, _ := p.usage(); inUse != 0 || p.reserved != 0 || len(p.line) != 0 {
		t.Errorf("in use %d, of the reserve %d, %d in line", inUse, p.reserved, len(p.line))
	}
	for i, c := range conns {
		if c.memory != (share{}) {
			t.Errorf("connection %d is left with %+v", i, c.memory)
		}
	}
}

// TestTransferTags: every tag finds its way back, and none is the reserved one.
func TestTransferTags(t *testing.T) {
	for _, slot := range []int{0, 1, 255, maxSlots - 1} {
		for number := range maxR2T {
			for _, generation := range []uint32{0, 1, 1<<tttGenBits - 1, 1 << tttGenBits, 0xffffffff} {
				ttt := makeTTT(slot, number, generation)
				if tttSlot(ttt) != slot || tttNumber(ttt) != number || ttt == 0xffffffff {
					t.Errorf("slot %d, number %d, generation %#x: %#x", slot, number, generation, ttt)
				}
			}
		}
	}
}

func TestPhaseNames(t *testing.T) {
	for p := phaseOpen; p <= phaseGone; p++ {
		if p.String() == "" {
			t.Errorf("phase %d has no name", p)
		}
	}
}
