package iscsi

import (
	"bytes"
	"errors"
	"testing"

	"iserd/backstore"
	"iserd/backstore/null"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

func kv(k, v string) login.KeyValue { return login.KeyValue{Key: k, Value: v} }

func usual(t login.Transport, more ...login.KeyValue) []login.KeyValue {
	keys := login.DefaultKeys(t, login.SessionNormal)
	for _, m := range more {
		for i := range keys {
			if keys[i].Key == m.Key {
				keys[i] = m
				m.Key = ""
				break
			}
		}
		if m.Key != "" {
			keys = append(keys, m)
		}
	}
	return keys
}

// Every way that data comes to a write, read back.
func TestWriteThenRead(t *testing.T) {
	for _, async := range []bool{false, true} {
		w := newWorld(t, nil)
		w.store.Async(async)
		p := w.session(hostA, 1)
		for i, c := range []struct {
			name  string
			n     int
			imm   int
			final bool
		}{
			{"no immediate data", 4096, 0, true},
			{"all immediate", 4096, 4096, true},
			{"some immediate", 8192, 1536, true},
			{"immediate ends between the buffers", 6144, 2048, true},
			{"immediate and unsolicited", 65536, 4096, false},
			{"unsolicited alone", 65536, 0, false},
			{"one block", 512, 512, true},
		} {
			data := pattern(c.n, byte(i))
			p.good(p.write(uint32(i*128), data, c.imm, c.final))
			itt := p.read(uint32(i*128), uint16(c.n/512))
			p.good(itt)
			if !bytes.Equal(p.dataIn(itt), data) {
				t.Errorf("async %v, %s: what was read is not what was written", async, c.name)
			}
		}
	}
}

func TestDataThatMustNotCome(t *testing.T) {
	w := newWorld(t, nil)
	small := pattern(1024, 1)
	cases := []struct {
		name   string
		keys   []login.KeyValue
		length uint32
		imm    int
		final  bool
		code   scsi.AdditionalSense
		drops  int
	}{
		{"immediate data without leave", []login.KeyValue{kv("ImmediateData", "No")}, 1024, 1024, true, scsi.UnexpectedUnsolicitedData, 0},
		{"immediate data beyond FirstBurstLength", []login.KeyValue{kv("FirstBurstLength", "512")}, 1024, 1024, true, scsi.UnexpectedUnsolicitedData, 0},
		{"unsolicited data without leave", []login.KeyValue{kv("InitialR2T", "Yes")}, 1024, 0, false, scsi.UnexpectedUnsolicitedData, 1},
	}
	for i, c := range cases {
		p := w.session(hostA, byte(i+1), usual(login.TransportTCP, c.keys...)...)
		var b pdu.BHS
		r := b.SCSICommand()
		r.Init()
		r.SetFinal(c.final)
		r.SetWrite(true)
		r.SetExpectedDataTransferLength(c.length)
		*r.CDB() = cdb(rw10(0x2a, 0, 2))
		b.SetInitiatorTaskTag(77)
		p.number(&b)
		p.send(&b, small[:c.imm])
		s := p.checkCondition(77, scsi.AbortedCommand, c.code)
		if got := s.bhs.SCSIResponse(); !got.Underflow() || got.ResidualCount() != c.length {
			t.Errorf("%s: residual %d (underflow %v), want %d", c.name, got.ResidualCount(), got.Underflow(), c.length)
		}
		if p.discarded != c.drops {
			t.Errorf("%s: unsolicited data was thrown away %d times, want %d", c.name, p.discarded, c.drops)
		}
		p.ping(nil, false)
	}
}

// A refused write with unsolicited data on its way is answered after that data, not before.
func TestResponseWaitsForUnsolicitedData(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	p.turn(func() { p.holdData = true })
	itt := p.write(1<<20, pattern(65536, 0), 512, false) // LBA out of range
	p.nothing()
	if len(p.gets) != 1 || p.gets[0].length != 0 {
		t.Fatalf("GetData calls %+v, want one that throws away", p.gets)
	}
	p.finishData(nil)
	p.checkCondition(itt, scsi.IllegalRequest, scsi.LBAOutOfRange)
}

func TestDataErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code scsi.AdditionalSense
	}{
		{ErrDataDigest, scsi.ProtocolServiceCRCError},
		{ErrDataSequence, scsi.NotEnoughUnsolicitedData},
		{ErrUnexpectedData, scsi.UnexpectedUnsolicitedData},
		{errors.New("RDMA read failed"), scsi.DataPhaseError},
	} {
		w := newWorld(t, nil)
		p := w.session(hostA, 1)
		p.turn(func() { p.holdData = true })
		itt := p.write(0, pattern(4096, 0), 0, true)
		p.finishData(c.err)
		s := p.checkCondition(itt, scsi.AbortedCommand, c.code)
		if r := s.bhs.SCSIResponse(); r.ResidualCount() != 4096 || !r.Underflow() {
			t.Errorf("%v: residual %d", c.err, r.ResidualCount())
		}
		if w.store.Seen(backstore.OpWrite) != 0 {
			t.Errorf("%v: damaged data was written", c.err)
		}
	}
}

func TestB53_Residuals(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	p.good(p.write(0, pattern(4096, 3), 4096, true))
	for _, c := range []struct {
		name      string
		cdb       string
		expect    uint32
		status    scsi.Status
		under     bool
		over      bool
		residual  uint32
		transfers int
	}{
		{"INQUIRY shorter than expected", "120000006000", 4096, 0, true, false, 4096 - 96, 96},
		{"READ longer than expected", rw10(0x28, 0, 2), 512, 0, false, true, 512, 512},
		{"READ of what is expected", rw10(0x28, 0, 2), 1024, 0, false, false, 0, 1024},
		{"failed READ", rw10(0x28, 1<<20, 2), 1024, scsi.StatusCheckCondition, true, false, 1024, 0},
		{"INQUIRY with allocation length 0", "120000000000", 0, 0, false, false, 0, 0},
	} {
		itt := p.command(0, c.cdb, c.expect, nil)
		s := p.response()
		r := s.bhs.SCSIResponse()
		if scsi.Status(r.Status()) != c.status || r.Underflow() != c.under || r.Overflow() != c.over || r.ResidualCount() != c.residual {
			t.Errorf("%s: status %#x U %v O %v residual %d, want %#x %v %v %d", c.name, r.Status(), r.Underflow(), r.Overflow(), r.ResidualCount(),
				uint8(c.status), c.under, c.over, c.residual)
		}
		if n := len(p.dataIn(itt)); n != c.transfers {
			t.Errorf("%s: %d bytes moved, want %d", c.name, n, c.transfers)
		}
	}
}

func TestCommandsRefusedByHeader(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, c := range []struct {
		name   string
		change func(b *pdu.BHS)
		ahs    []byte
		data   []byte
		reason pdu.RejectReason
	}{
		{"data without W", func(*pdu.BHS) {}, nil, pattern(512, 0), pdu.RejectProtocolError},
		{"not final without W", func(b *pdu.BHS) { b.SetFinal(false) }, nil, nil, pdu.RejectProtocolError},
		{"attribute 7", func(b *pdu.BHS) { b[1] |= 7 }, nil, nil, pdu.RejectInvalidPDUField},
		{"reserved task tag", func(b *pdu.BHS) { b.SetInitiatorTaskTag(pdu.ReservedTag) }, nil, nil, pdu.RejectInvalidPDUField},
		{"AHS of length 0", func(*pdu.BHS) {}, []byte{0, 0, 1, 0}, nil, pdu.RejectInvalidPDUField},
		{"AHS longer than it is", func(*pdu.BHS) {}, []byte{0, 9, 1, 0}, nil, pdu.RejectInvalidPDUField},
		{"two extended CDBs", func(*pdu.BHS) {}, []byte{0, 5, 1, 0, 1, 2, 3, 4, 0, 5, 1, 0, 1, 2, 3, 4}, nil, pdu.RejectInvalidPDUField},
	} {
		var b pdu.BHS
		r := b.SCSICommand()
		r.Init()
		r.SetFinal(true)
		b.SetInitiatorTaskTag(5)
		c.change(&b)
		p.number(&b)
		p.sendAHS(&b, c.ahs, c.data, false)
		s := p.expect(pdu.OpReject)
		if got := s.bhs.Reject().Reason(); got != c.reason {
			t.Errorf("%s: %v, want %v", c.name, got, c.reason)
		}
		if len(s.data) != pdu.BHSLength {
			t.Errorf("%s: a Reject of %d bytes, want the header", c.name, len(s.data))
		}
	}
	// Each was in its place in the order: the window is as it was.
	p.ready()
	if p.c.win.unanswered != 0 {
		t.Errorf("%d commands count as unanswered", p.c.win.unanswered)
	}
}

func TestBidirectionalIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	itt := p.command(0, "5300", 512, func(r *pdu.SCSICommand) { r.SetWrite(true) })
	p.checkCondition(itt, scsi.IllegalRequest, scsi.InvalidFieldInInformationUnit)
}

func TestExtendedCDB(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	var b pdu.BHS
	r := b.SCSICommand()
	r.Init()
	r.SetFinal(true)
	*r.CDB() = cdb("7f000000000000180009") // READ(32)
	b.SetInitiatorTaskTag(9)
	p.number(&b)
	ahs := make([]byte, 20)
	ahs[1], ahs[2] = 17, 1
	p.sendAHS(&b, ahs, nil, false)
	p.checkCondition(9, scsi.IllegalRequest, scsi.InvalidCommandOperationCode)
}

func TestB88_MissingLUN(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	for _, lun := range []uint64{scsi.EncodeLUN(1), scsi.EncodeLUN(255), scsi.EncodeLUN(256), scsi.EncodeLUN(16383), ^uint64(0)} {
		itt := p.command(lun, "00", 0, nil)
		p.checkCondition(itt, scsi.IllegalRequest, scsi.LogicalUnitNotSupported)
	}
	for _, f := range []pdu.TMFunction{pdu.TMAbortTask, pdu.TMAbortTaskSet, pdu.TMClearACA, pdu.TMClearTaskSet, pdu.TMLogicalUnitReset} {
		p.tmf(f, scsi.EncodeLUN(9), nil)
		p.tmfResponse(pdu.TMLUNDoesNotExist)
	}
}

// Memory is short: tasks wait in order of arrival and all of them end.
func TestB100_WaitForBuffers(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	p.bufferLimit = 1
	p.turn(func() { p.holdRelease = true })
	first := p.read(0, 8)
	p.good(first)
	tags := []uint32{p.read(8, 8), p.write(16, pattern(4096, 1), 512, true), p.write(24, pattern(65536, 2), 4096, false), p.read(16, 8)}
	p.nothing()
	if n := w.node.Stats().BufferWaits; n != 4 {
		t.Errorf("%d waits, want 4", n)
	}
	for _, itt := range tags {
		p.turn(func() {
			held := p.held
			p.held = nil
			for _, h := range held {
				p.release(h)
			}
		})
		p.good(itt)
	}
	if got := p.dataIn(tags[3]); !bytes.Equal(got, pattern(4096, 1)) {
		t.Error("the data of a write that waited was lost")
	}
}

func TestNoSlotIsBusy(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	p.turn(func() { p.holdRelease = true })
	slots := p.resources.Tasks
	for range slots {
		p.good(p.command(0, "00", 0, nil))
	}
	p.command(0, rw10(0x28, 0, 1), 512, nil)
	if s := p.response(); scsi.Status(s.bhs.SCSIResponse().Status()) != scsi.StatusBusy || s.bhs.SCSIResponse().ResidualCount() != 512 {
		t.Errorf("status %#x, want BUSY", s.bhs.SCSIResponse().Status())
	}
}

func TestStoreErrorsAreSense(t *testing.T) {
	w := newWorld(t, nil)
	for _, async := range []bool{false, true} {
		w.store.Async(async)
		p := w.session(hostA, 1)
		w.store.Fail(backstore.OpRead, 1, backstore.ErrIO)
		p.checkCondition(p.read(0, 1), scsi.MediumError, scsi.UnrecoveredReadError)
		w.store.Fail(backstore.OpWrite, 1, backstore.ErrNoSpace)
		p.checkCondition(p.write(0, pattern(512, 0), 512, true), scsi.DataProtect, scsi.SpaceAllocationFailed)
	}
}

// A store that completes elsewhere: many commands, one wake-up per batch is enough, order of the list kept.
func TestAsynchronousStore(t *testing.T) {
	w := newWorld(t, nil)
	w.store.Hang(backstore.OpWrite)
	p := w.session(hostA, 1)
	want := map[uint32]bool{}
	for i := range 8 {
		want[p.write(uint32(i*8), pattern(4096, byte(i)), 4096, true)] = true
	}
	p.nothing()
	if len(p.retained) != 8 {
		t.Errorf("%d receive buffers are retained, want 8", len(p.retained))
	}
	w.store.Release()
	for range 8 {
		s := p.response()
		if !want[s.bhs.InitiatorTaskTag()] {
			t.Fatalf("an answer for %d", s.bhs.InitiatorTaskTag())
		}
		delete(want, s.bhs.InitiatorTaskTag())
	}
	p.await("receive buffers", func() bool { return len(p.retained) == 0 })
}

func TestHotPathAllocatesNothing(t *testing.T) {
	store, err := null.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, nil)
	_, dev := newUnit(t, store, iqnOther)
	w.addTarget(iqnOther, dev, nil)
	n := names(hostA, 1)
	n.TargetName = iqnOther
	p := w.connect(tcpInfo()).login(n)
	p.ready()
	p.discard, p.reuse = true, true
	p.held = make([]*Task, 0, 16)
	data := pattern(4096, 0)
	for _, c := range []struct {
		name    string
		cdb     string
		in, out uint32
		imm     int
	}{
		{"TEST UNIT READY", "00", 0, 0, 0},
		{"READ(10)", rw10(0x28, 0, 8), 4096, 0, 0},
		{"WRITE(10), immediate", rw10(0x2a, 0, 8), 0, 4096, 4096},
		{"WRITE(10), solicited", rw10(0x2a, 0, 8), 0, 4096, 0},
		{"WRITE(10), both", rw10(0x2a, 0, 8), 0, 4096, 512},
	} {
		p.turn(func() { p.holdData = true })
		p.gets = make([]get, 0, 16)
		var b pdu.BHS
		r := b.SCSICommand()
		r.Init()
		r.SetFinal(true)
		r.SetRead(c.in > 0)
		r.SetWrite(c.out > 0)
		r.SetExpectedDataTransferLength(max(c.in, c.out))
		*r.CDB() = cdb(c.cdb)
		ctl := &Control{BHS: &b, Data: data[:c.imm]}
		b.SetDataSegmentLength(c.imm)
		run := func() {
			r.SetCmdSN(p.cmdSN)
			p.cmdSN = p.cmdSN.Next()
			ctl.Retain = false
			p.mu.Lock()
			p.inTurn = true
			p.c.ControlNotify(ctl)
			for _, g := range p.gets {
				p.c.DataCompletionNotify(g.t, nil)
			}
			p.gets = p.gets[:0]
			if len(p.held) != 1 {
				t.Fatalf("%s: %d responses", c.name, len(p.held))
			}
			for _, h := range p.held {
				p.c.TaskReleased(h)
			}
			p.held = p.held[:0]
			p.inTurn = false
			p.mu.Unlock()
		}
		if n := testing.AllocsPerRun(200, run); n != 0 {
			t.Errorf("%s: %v allocations per command", c.name, n)
		}
	}
}

// deferredStore finishes requests when the test says so.
type deferredStore struct {
	backstore.Store
	out []*backstore.Request
}

func (s *deferredStore) Submit(r *backstore.Request) bool { s.out = append(s.out, r); return false }
func (s *deferredStore) Info() backstore.Info {
	i := s.Store.Info()
	i.Inline = false
	return i
}

func TestAsynchronousPathAllocatesNothing(t *testing.T) {
	inner, err := null.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	store := &deferredStore{Store: inner, out: make([]*backstore.Request, 0, 16)}
	w := newWorld(t, nil)
	_, dev := newUnit(t, store, iqnOther)
	w.addTarget(iqnOther, dev, nil)
	n := names(hostA, 1)
	n.TargetName = iqnOther
	p := w.connect(tcpInfo()).login(n)
	p.ready()
	p.discard, p.reuse = true, true
	p.held = make([]*Task, 0, 16)
	var b pdu.BHS
	r := b.SCSICommand()
	r.Init()
	r.SetFinal(true)
	r.SetRead(true)
	r.SetExpectedDataTransferLength(4096)
	*r.CDB() = cdb(rw10(0x28, 0, 8))
	ctl := &Control{BHS: &b}
	run := func() {
		p.mu.Lock()
		p.inTurn = true
		for range 4 {
			r.SetCmdSN(p.cmdSN)
			p.cmdSN = p.cmdSN.Next()
			p.c.ControlNotify(ctl)
		}
		for _, q := range store.out {
			q.Done(q)
		}
		store.out = store.out[:0]
		p.c.Turn()
		if len(p.held) != 4 {
			t.Errorf("%d responses to 4 reads", len(p.held))
		}
		for i, h := range p.held {
			if h.BHS.SCSICommand().CmdSN() != p.cmdSN.Add(uint32(i-4)) {
				t.Error("the order of completion was lost")
			}
			p.c.TaskReleased(h)
		}
		p.held = p.held[:0]
		p.inTurn = false
		p.mu.Unlock()
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

func BenchmarkRead4K(b *testing.B) {
	store, _ := null.New(1 << 30)
	w := newWorld(b, nil)
	_, dev := newUnit(b, store, iqnOther)
	w.addTarget(iqnOther, dev, nil)
	n := names(hostA, 1)
	n.TargetName = iqnOther
	p := w.connect(tcpInfo()).login(n)
	p.ready()
	p.discard, p.reuse = true, true
	p.held = make([]*Task, 0, 16)
	var h pdu.BHS
	r := h.SCSICommand()
	r.Init()
	r.SetFinal(true)
	r.SetRead(true)
	r.SetExpectedDataTransferLength(4096)
	*r.CDB() = cdb(rw10(0x28, 0, 8))
	ctl := &Control{BHS: &h}
	p.mu.Lock()
	p.inTurn = true
	b.ReportAllocs()
	for b.Loop() {
		r.SetCmdSN(p.cmdSN)
		p.cmdSN = p.cmdSN.Next()
		p.c.ControlNotify(ctl)
		p.c.TaskReleased(p.held[0])
		p.held = p.held[:0]
	}
	p.inTurn = false
	p.mu.Unlock()
}
