package iscsi

import (
	"math/rand/v2"
	"testing"

	"iserd/backstore"
	"iserd/iscsi/pdu"
)

// FuzzConnection gives the engine any sequence of PDUs and of events of the datamover. The mover checks the contract of
// the seam, StatSN, and the window; here it is checked that every request has one answer, and that all comes to an end.
//
// The input is a list of steps: one byte says what happens, the rest of the step fills in a header.
func FuzzConnection(f *testing.F) {
	command := func(flags byte, cdb ...byte) []byte { return append([]byte{0x01, flags}, cdb...) }
	f.Add(true, []byte{})
	f.Add(false, command(0x80, 0x00))
	f.Add(true, append(command(0xc0, 0x28), command(0xa0, 0x2a)...))
	f.Add(true, []byte{0x42, 0x81, 0, 0x44, 0x80, 0, 0x46, 0x80})
	f.Add(true, []byte{0x50, 1, 0x51, 2, 0x52, 3, 0x53, 4, 0x54, 5, 0x55, 6})
	f.Fuzz(func(t *testing.T, loggedIn bool, in []byte) {
		if len(in) <= 2048 {
			sequence(t, loggedIn, in)
		}
	})
}

// TestRandomSequences is the fuzz target over inputs that mostly make sense, which the fuzzer takes long to find.
func TestRandomSequences(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range n {
		var in []byte
		for range r.IntN(60) {
			switch r.IntN(8) {
			case 0, 1:
				in = append(in, byte(0x50+r.IntN(7)), byte(r.IntN(4)))
				continue
			case 2:
				if r.IntN(10) == 0 {
					in = append(in, byte(0x57+r.IntN(3)))
					continue
				}
			}
			op := []byte{0x01, 0x01, 0x01, 0x01, 0x41, 0x00, 0x40, 0x02, 0x42, 0x42, 0x04, 0x44, 0x46, 0x10, 0x1f, 0x03}[r.IntN(16)]
			flags := byte(0x80)
			blocks := byte(r.IntN(16))
			cdb := [10]byte{0x00}
			switch op & 0x3f {
			case 0x01:
				cdb[8] = blocks
				switch r.IntN(5) {
				case 0, 1:
					cdb[0], flags = 0x28, 0xc0
				case 2, 3:
					cdb[0], flags = 0x2a, 0xa0
					if r.IntN(3) == 0 {
						flags = 0x20
					}
				}
			case 0x02:
				flags = byte(0x80 | r.IntN(10))
			case 0x04:
				flags = byte(r.IntN(4) << 6)
			}
			in = append(in, op, flags)
			in = append(in, cdb[:]...)
			imm := byte(0)
			if cdb[0] == 0x2a && r.IntN(2) == 0 {
				imm = byte(r.IntN(int(blocks)*16 + 1))
			}
			sn := byte(0)
			if r.IntN(8) == 0 {
				sn = byte(1 | r.IntN(4)<<4)
			}
			in = append(in, byte(r.IntN(20)/19), byte(r.IntN(40)/39), byte(r.IntN(30)), blocks, sn, imm, 0, byte(r.IntN(0xef)))
		}
		sequence(t, true, in)
		if t.Failed() {
			t.Fatalf("input %x", in)
		}
	}
}

// sequence runs one input.
func sequence(t *testing.T, loggedIn bool, in []byte) {
	w := newWorld(t, nil)
	w.quick = true
	defer w.store.Release()
	p := w.connect(tcpInfo())
	if loggedIn {
		p.login(names(hostA, 1))
	}
	take := func(n int) []byte {
		b := make([]byte, n)
		in = in[copy(b, in):]
		return b
	}
	open := map[uint32]int{} // requests by task tag that await an answer
	next := func() byte { return take(1)[0] }
	for tag := uint32(1000); len(in) > 0; tag++ {
		what := next()
		switch what {
		case 0x50:
			p.turn(func() { p.holdData = !p.holdData })
		case 0x51:
			p.finishData([]error{nil, ErrDataDigest, ErrDataSequence, ErrUnexpectedData}[next()%4])
		case 0x52:
			p.turn(func() { p.holdRelease = !p.holdRelease })
		case 0x53:
			p.turn(func() {
				held := p.held
				p.held = nil
				for _, h := range held {
					p.release(h)
				}
			})
		case 0x54:
			w.store.Hang(backstore.OpRead)
			w.store.Hang(backstore.OpWrite)
		case 0x55:
			w.store.Release()
		case 0x56:
			p.bufferLimit = int(next() % 4)
		case 0x57:
			p.turn(func() { p.c.MalformedNotify("fuzz") })
		case 0x58:
			w.node.Target(iqn).RemoveSessions("fuzz")
		case 0x59:
			p.turn(func() { p.c.Turn() })
		default:
			var b pdu.BHS
			b[0] = what
			b[1] = next()
			copy(b[32:], take(10))
			b[15] = next() & 1 // LUN
			b[13] = next() & 1
			b.SetInitiatorTaskTag(tag)
			if next()&7 == 0 {
				b.SetInitiatorTaskTag(pdu.ReservedTag)
			}
			c := b.SCSICommand()
			c.SetExpectedDataTransferLength(uint32(next()) * 512)
			p.mu.Lock()
			sn := p.c.win.exp
			p.mu.Unlock()
			if d := next(); d&0xf == 1 {
				sn = sn.Add(uint32(d >> 4))
			}
			c.SetCmdSN(sn)
			if b.Opcode() == pdu.OpTextRequest && b[1]&1 == 0 {
				b.TextRequest().SetTargetTransferTag(pdu.ReservedTag)
			}
			data := make([]byte, int(next())*32)
			ahs := take(int(next()&3) * 4)
			open[b.InitiatorTaskTag()]++
			p.sendAHS(&b, ahs, data, next() == 0xee)
		}
	}
	// Let everything come back.
	w.store.Release()
	p.turn(func() { p.holdData = false })
	p.turn(func() { p.holdRelease = false })
	p.finishData(nil)
	p.turn(func() {
		held := p.held
		p.held = nil
		for _, h := range held {
			p.release(h)
		}
	})
	p.await("the tasks", func() bool {
		return p.notified || p.c.busy == 0 && len(p.c.tmfs) == 0 && p.c.inStore == 0
	})
	p.mu.Lock()
	if p.c.phase == phaseFull && p.c.win.unanswered != 0 {
		t.Errorf("%d commands are unanswered", p.c.win.unanswered)
	}
	for _, s := range p.sent {
		switch s.op() {
		case pdu.OpReject, pdu.OpAsyncMessage:
			continue // names no task
		case pdu.OpLoginResponse, pdu.OpTextResponse:
			continue // may answer several
		}
		tag := s.bhs.InitiatorTaskTag()
		if open[tag]--; open[tag] < 0 {
			t.Errorf("%v: a second answer for task %d", s.op(), tag)
		}
	}
	p.mu.Unlock()
}
