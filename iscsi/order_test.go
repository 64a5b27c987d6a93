package iscsi

import (
	"bytes"
	"testing"

	"iserd/backstore"
	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

func TestWindowArithmetic(t *testing.T) {
	w := newWindow(serial.New(0xfffffffe), 4) // across the wrap
	if w.max.Uint32() != 1 {
		t.Fatalf("MaxCmdSN %d, want 1", w.max.Uint32())
	}
	for i := range 4 {
		w.take()
		if w.max.Uint32() != 1 {
			t.Errorf("after %d commands: MaxCmdSN %d, want 1", i+1, w.max.Uint32())
		}
	}
	if w.exp.LessEq(w.max) {
		t.Error("the window is open with all commands unanswered")
	}
	for i := range 4 {
		w.answer()
		if w.max.Uint32() != uint32(i+2) {
			t.Errorf("after %d answers: MaxCmdSN %d, want %d", i+1, w.max.Uint32(), i+2)
		}
	}
	w.deepen(2) // never back
	if w.max.Uint32() != 5 {
		t.Errorf("MaxCmdSN went back to %d", w.max.Uint32())
	}
}

func TestWindowIsHeldTo(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	base := p.cmdSN
	w.store.Hang(backstore.OpRead)
	for i := range 8 {
		p.read(uint32(i), 1)
	}
	ignored := w.node.Stats().Ignored
	p.read(8, 1)                     // beyond MaxCmdSN
	p.cmdSN = base.Add(^uint32(0))   // before ExpCmdSN
	p.read(9, 1)                     //
	p.cmdSN = base                   // a duplicate
	p.read(10, 1)                    //
	p.cmdSN = base.Add(1 << 31)      // nowhere
	p.read(11, 1)                    //
	p.cmdSN = base.Add(uint32(1000)) // far ahead
	p.read(12, 1)
	p.nothing()
	if n := w.node.Stats().Ignored - ignored; n != 5 {
		t.Errorf("%d commands ignored, want 5", n)
	}
	p.cmdSN = base.Add(8)
	p.ping(nil, true)
	w.store.Release()
	for range 8 {
		p.response()
	}
	p.ready()
}

// Commands that come in the wrong order are worked on in the right one.
func TestCommandsOutOfOrder(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	base := p.cmdSN
	data := pattern(512, 9)
	p.cmdSN = base.Add(2)
	read := p.read(5, 1)
	p.cmdSN = base.Add(1)
	write := p.write(5, data, 512, true)
	p.cmdSN = base.Add(1)
	p.read(6, 1) // a duplicate of one that is held
	p.nothing()
	p.cmdSN = base
	first := p.command(0, "00", 0, nil)
	p.good(first)
	p.good(write)
	p.good(read)
	if !bytes.Equal(p.dataIn(read), data) {
		t.Error("the read overtook the write")
	}
	p.cmdSN = base.Add(3)
	p.ready()
	// What is held when the connection ends goes with it.
	p.cmdSN = p.cmdSN.Add(1)
	p.write(5, data, 512, true)
	p.lose(nil)
	p.await("the end", func() bool { return p.gone })
}

// B17: an ExpStatSN that is stale, or nonsense, is nobody's business.
func TestB17_ExpStatSN(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, v := range []uint32{0, 1, 1 << 31, 0xffffffff} {
		p.good(p.command(0, "00", 0, func(r *pdu.SCSICommand) { r.SetExpStatSN(serial.New(v)) }))
	}
}

func TestImmediateCommands(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	w.store.Hang(backstore.OpRead)
	immediate := func(r *pdu.SCSICommand) { r.BHS().SetImmediate(true) }
	exp := p.c.win.exp
	for range immediateAllowance {
		p.command(0, rw10(0x28, 0, 1), 512, immediate)
	}
	p.nothing()
	if p.c.win.exp != exp {
		t.Error("immediate commands advanced ExpCmdSN")
	}
	p.command(0, rw10(0x28, 0, 1), 512, immediate)
	if s := p.expect(pdu.OpReject); s.bhs.Reject().Reason() != pdu.RejectImmediateCommand {
		t.Errorf("%v", s.bhs.Reject().Reason())
	}
	w.store.Release()
	for range immediateAllowance {
		p.response()
	}
	p.good(p.command(0, "00", 0, immediate))
}

func TestRejects(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, c := range []struct {
		name   string
		change func(b *pdu.BHS)
		reason pdu.RejectReason
	}{
		{"unknown opcode", func(b *pdu.BHS) { b.SetOpcode(0x1f) }, pdu.RejectCommandNotSupported},
		{"a target's opcode", func(b *pdu.BHS) { b.SetOpcode(pdu.OpSCSIResponse) }, pdu.RejectCommandNotSupported},
		{"B96: unknown opcode with AHS length 1020", func(b *pdu.BHS) { b.SetOpcode(0x1c); b[4] = 0xff }, pdu.RejectCommandNotSupported},
		{"SNACK", func(b *pdu.BHS) { b.SNACK().Init() }, pdu.RejectSNACK},
		{"login in full feature phase", func(b *pdu.BHS) { b.LoginRequest().Init() }, pdu.RejectProtocolError},
		{"logout with an unknown reason", func(b *pdu.BHS) {
			b.LogoutRequest().Init()
			b.LogoutRequest().SetReason(9)
			b.SetImmediate(true)
			b.SetInitiatorTaskTag(1)
		}, pdu.RejectInvalidPDUField},
		{"text with F and C", func(b *pdu.BHS) {
			r := b.TextRequest()
			r.Init()
			r.SetFinal(true)
			r.SetContinue(true)
			b.SetImmediate(true)
			b.SetInitiatorTaskTag(1)
		}, pdu.RejectProtocolError},
		{"B128: NOP-Out without a tag that is not immediate", func(b *pdu.BHS) {
			b.NOPOut().Init()
			b.SetInitiatorTaskTag(pdu.ReservedTag)
		}, pdu.RejectProtocolError},
	} {
		var b pdu.BHS
		c.change(&b)
		b.SCSICommand().SetCmdSN(p.cmdSN)
		p.turn(func() { p.c.ControlNotify(&Control{BHS: &b}) })
		s := p.expect(pdu.OpReject)
		r := s.bhs.Reject()
		if r.Reason() != c.reason || s.bhs.InitiatorTaskTag() != pdu.ReservedTag || !bytes.Equal(s.data, b[:]) {
			t.Errorf("%s: reason %v, want %v; header %x", c.name, r.Reason(), c.reason, s.data)
		}
		p.ping(nil, true)
	}
	// Data-Out belongs to the datamover; one too many is dropped.
	var b pdu.BHS
	b.DataOut().Init()
	p.send(&b, nil)
	p.nothing()
}

func TestDataDigestErrors(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	damaged := func(immediate bool) {
		var b pdu.BHS
		b.NOPOut().Init()
		b.SetImmediate(immediate)
		b.SetInitiatorTaskTag(4)
		p.number(&b)
		p.sendAHS(&b, nil, pattern(16, 0), true)
		if s := p.expect(pdu.OpReject); s.bhs.Reject().Reason() != pdu.RejectDataDigestError {
			t.Errorf("%v", s.bhs.Reject().Reason())
		}
	}
	damaged(true)
	p.ping(nil, false)
	damaged(false) // leaves a hole in the order that error recovery level 0 cannot fill
	p.closed()
}

func TestNOP(t *testing.T) {
	for _, info := range []ConnInfo{tcpInfo(), iserInfo()} {
		w := newWorld(t, nil)
		p := w.connect(info).login(names(hostA, 1))
		p.ready()
		for _, immediate := range []bool{false, true} {
			for _, n := range []int{0, 1, 127, 128, 129, 4096} {
				data := pattern(n, 0)
				s := p.ping(data, immediate)
				want := data[:min(n, p.maxSend)]
				if !bytes.Equal(s.data, want) || s.bhs.InitiatorTaskTag() != p.tag || s.bhs.NOPIn().TargetTransferTag() != pdu.ReservedTag {
					t.Errorf("%v, %d bytes: %d came back, tag %d", info.Transport, n, len(s.data), s.bhs.InitiatorTaskTag())
				}
			}
		}
	}
}

// B128: a NOP-Out that is neither ping nor answer, with data and odd tags, is nothing.
func TestB128_OddNOP(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, ttt := range []uint32{pdu.ReservedTag, 0, 77} {
		for _, n := range []int{0, 1, 4096} {
			var b pdu.BHS
			b.NOPOut().Init()
			b.SetImmediate(true)
			b.SetInitiatorTaskTag(pdu.ReservedTag)
			b.NOPOut().SetTargetTransferTag(ttt)
			p.number(&b)
			p.send(&b, pattern(n, 0))
			p.nothing()
		}
	}
	p.ready()
}

func TestDiscoverySessionHasNoSCSI(t *testing.T) {
	w := newWorld(t, nil)
	p := w.connect(tcpInfo()).login(discoveryNames(hostA))
	p.command(0, "00", 0, nil)
	if s := p.expect(pdu.OpReject); s.bhs.Reject().Reason() != pdu.RejectProtocolError {
		t.Errorf("%v", s.bhs.Reject().Reason())
	}
	p.tmf(pdu.TMTargetColdReset, 0, nil)
	p.expect(pdu.OpReject)
	p.ping([]byte("x"), false)
}

func TestSenseFitsISER(t *testing.T) {
	w := newWorld(t, nil)
	p := w.connect(iserInfo()).login(names(hostA, 1))
	p.ready()
	s := p.checkCondition(p.read(1<<20, 1), scsi.IllegalRequest, scsi.LBAOutOfRange)
	if len(s.data) > 128 {
		t.Errorf("%d bytes", len(s.data))
	}
	_ = login.TransportISER
}
