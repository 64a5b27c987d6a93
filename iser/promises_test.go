package iser

import (
	"encoding/binary"
	"testing"
	"time"

	"iserd/iscsi/pdu"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

// TestRemoteInvalidation: only who asked for it, only the STag of this very command, only on the response.
func TestRemoteInvalidation(t *testing.T) {
	for _, tt := range []struct {
		private []byte
		cfg     RemoteInvalidation
		reply   byte
		used    bool
	}{
		{[]byte{0x80, 0, 0, 0}, InvalidateAuto, 0x80, true},
		{[]byte{0x80, 0, 0, 0}, InvalidateOff, 0xc0, false},
		{[]byte{0xc0, 0, 0, 0}, InvalidateAuto, 0xc0, false},
		{[]byte{}, InvalidateAuto, 0xc0, false}, // arrives as zeros
		{[]byte{0x40, 0, 0, 0}, InvalidateAuto, 0xc0, false},
	} {
		f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
		_, addr := stubServer(t, f, newStubNode(), Config{RemoteInvalidation: tt.cfg})
		i := mustDial(t, f.peer, addr, dialOptions{private: tt.private})
		if len(i.reply) == 0 || i.reply[0] != tt.reply {
			t.Errorf("% x, %v: reply % x", tt.private, tt.cfg, i.reply)
		}
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		// A region for each command, as it dies with the response.
		one := func(h Header, c *pdu.BHS, data []byte, want uint32) {
			t.Helper()
			if err := i.sendPDU(h, c, data); err != nil {
				t.Fatal(err)
			}
			r, err := i.next(5 * time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !tt.used {
				want = 0
			}
			if r.inv != want {
				t.Errorf("% x, %v: STag %#x invalidated, want %#x", tt.private, tt.cfg, r.inv, want)
			}
			_ = i.done(r)
		}
		b, a := i.data(0, 4096)
		pattern(b, 0)
		var regs []rdma.MR
		reg := func() rdma.MR {
			mr, err := i.pd.RegMR(b, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			regs = append(regs, mr)
			return mr
		}
		mr := reg()
		one(Header{RSV: true, ReadSTag: mr.RKey(), ReadBaseOffset: a}, command(1, 1, cdb(0x28, 0), 4096, 0, 0), nil, mr.RKey())
		mr = reg()
		pattern(b, 0)
		one(Header{WSV: true, WriteSTag: mr.RKey(), WriteBaseOffset: a}, command(2, 2, cdb(0x2a, 0), 0, 4096, 0), nil, mr.RKey())
		// All immediate: no STag, with and without WSV (quirk 5).
		one(Header{}, command(3, 3, cdb(0x2a, 0), 0, 512, 512), b[:512], 0)
		one(Header{WSV: true}, command(4, 4, cdb(0x2a, 0), 0, 512, 512), b[:512], 0)
		var nop pdu.BHS
		nop.SetOpcode(pdu.OpNOPOut)
		one(Header{}, &nop, nil, 0)
		for _, mr := range regs {
			_ = mr.Close()
		}
		i.close()
	}
}

// TestMissingSTag: data without an STag to move it by is a refused command, or the end of the connection; never an
// RDMA request.
func TestMissingSTag(t *testing.T) {
	f := memFabric(t, rdmatest.Config{Misuse: misuse(t)}, nil)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	for k, h := range []Header{{}, {WSV: true}, {WriteSTag: 77}, {RSV: true, ReadSTag: 77}} {
		i := mustDial(t, f.peer, addr, dialOptions{})
		if err := i.logIn(); err != nil {
			t.Fatal(err)
		}
		if err := i.sendPDU(h, command(1, 1, cdb(0x2a, 0), 0, 4096, 0), nil); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil || r.bhs[3] != 2 {
			t.Errorf("write %d: %v, % x", k, err, r.bhs)
		}
		if err := i.sendPDU(Header{RSV: k == 3, WSV: true, WriteSTag: 5}, command(2, 2, cdb(0x28, 0), 4096, 0, 0), nil); err != nil {
			t.Fatal(err)
		}
		if err := i.waitDisconnected(5 * time.Second); err != nil {
			t.Errorf("read %d: %v", k, err)
		}
		i.close()
	}
	atRest(t, s, before)
	if st := total(s); st.RDMAReads+st.RDMAWrites > 0 {
		t.Errorf("%d reads, %d writes", st.RDMAReads, st.RDMAWrites)
	}
}

// TestReceives holds the number of receives: one in login, the window and its allowance after it, never fewer than the
// initiator may use however slow the store is (B117, B124).
func TestB117_B124_Receives(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	n.hold.Store(true)
	s, addr := stubServer(t, f, n, Config{})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	if got := total(s).RecvPosted; got != 1 {
		t.Errorf("%d receives posted in login", got)
	}
	var b pdu.BHS
	b.SetOpcode(pdu.OpLoginRequest)
	for range 3 { // several requests; B116: as long as they may be
		if err := i.sendPDU(Header{}, &b, make([]byte, loginData)); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil || len(r.data) != loginData {
			t.Fatalf("%v, %d bytes", err, len(r.data))
		}
		if err := i.done(r); err != nil {
			t.Fatal(err)
		}
		if got := total(s).RecvPosted; got != 1 {
			t.Errorf("%d receives posted between two login requests", got)
		}
	}
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	want := uint64(n.res.Window + n.res.Immediate + 1)
	for tag := range uint32(n.res.Window) {
		_, a := i.data(0, 4096)
		c := command(tag, tag, cdb(0x28, 0), 4096, 0, 0)
		if err := i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: a}, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "commands at the store, receives posted", func() bool {
		return total(s).RecvPosted == want && func() (ok bool) {
			s.eachConn(func(*conn) { ok = len(n.last().held) == n.res.Window })
			return ok
		}()
	})
	n.last().releases.Add(int64(n.res.Window))
	n.last().dm.Wake()
	for range n.res.Window {
		if _, err := i.next(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRetain: a receive buffer that the engine keeps is not posted until it lets go, and the data in it stays.
func TestRetain(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	before := total(s)
	i := mustDial(t, f.peer, addr, dialOptions{})
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	full := total(s).RecvPosted
	b, _ := i.data(0, 512)
	for tag := range uint32(5) {
		c := cdb(0x2a, 0)
		c[1] = 1
		if err := i.sendPDU(Header{}, command(tag, tag, c, 0, 512, 512), b); err != nil {
			t.Fatal(err)
		}
		r, err := i.response(tag)
		if err != nil {
			t.Fatal(err)
		}
		_ = i.done(r)
	}
	if got := total(s).RecvPosted; got != full-5 {
		t.Errorf("%d receives posted, want %d", got, full-5)
	}
	s.eachConn(func(c *conn) {
		e := n.last()
		for _, h := range e.retained[:3] {
			c.ReleaseControl(h)
			c.ReleaseControl(h) // harmless
		}
		e.retained = e.retained[3:]
	})
	if got := total(s).RecvPosted; got != full-2 {
		t.Errorf("%d receives posted, want %d", got, full-2)
	}
	i.close()
	atRest(t, s, before)
}

// TestHelloAnswered: a Hello gets its reply in login and after it.
func TestHelloAnswered(t *testing.T) {
	f := newFabric(t)
	s, addr := stubServer(t, f, newStubNode(), Config{})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	hello := golden(t, "hello.hex")
	for k := range 2 {
		if err := i.send(hello); err != nil {
			t.Fatal(err)
		}
		r, err := i.next(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.raw) != 12 || opcodeOf(r.raw) != OpHelloReply || r.raw[0]&helloREJ != 0 || binary.BigEndian.Uint16(r.raw[2:]) != 4 {
			t.Errorf("reply % x", r.raw)
		}
		_ = i.done(r)
		if k == 0 {
			if err := i.logIn(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := i.send([]byte{0x20, 0x32, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	r, err := i.next(5 * time.Second)
	if err != nil || r.raw[0] != byte(OpHelloReply)<<4|helloREJ {
		t.Errorf("version 2 to 3: %v, % x", err, r.raw)
	}
	if err := i.waitDisconnected(5 * time.Second); err != nil {
		t.Error(err)
	}
	if total(s).Hellos != 3 {
		t.Errorf("%d Hellos counted", total(s).Hellos)
	}
}
