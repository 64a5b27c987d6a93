package tcp_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/tcpclient"
	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/iscsi/tcp"
)

// dial connects without logging in.
func (r *rig) dial() *tcpclient.Conn {
	r.t.Helper()
	c, err := tcpclient.Dial(r.addr)
	check(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// alive proves that a session still works.
func (r *rig) alive(c *tcpclient.Conn) {
	r.t.Helper()
	data := noise(8192)
	r.write(c, lunRAM, 30000, data)
	r.expect(c, lunRAM, 30000, data)
	r.write(c, lunAsync, 30000, data)
	r.expect(c, lunAsync, 30000, data)
}

func (r *rig) noConnections() {
	r.t.Helper()
	eventually(r.t, "every connection gone", func() bool { return r.srv.Stats().Connections == 0 })
}

// TestB10_LoginSegmentTooLong: a data segment that login does not allow ends the connection at once, before its data.
func TestB10_LoginSegmentTooLong(t *testing.T) {
	r := newRig(t, options{})
	other := r.login()
	for _, n := range []byte{0, 0x20} { // 0x00ffff, 0x20ffff
		c := r.dial()
		var h pdu.BHS
		h.LoginRequest().Init()
		h[5], h[6], h[7] = n, 0xff, 0xff
		check(t, c.SendBytes(h[:]))
		check(t, c.AwaitClose())
	}
	// The longest that is allowed is taken: it is refused for what it says, in a response.
	c := r.dial()
	var h pdu.BHS
	l := h.LoginRequest()
	l.Init()
	l.SetTransit(true)
	l.SetCSG(pdu.StageOperational)
	l.SetNSG(pdu.StageFullFeature)
	check(t, c.Send(&h, nil, bytes.Repeat([]byte{'x'}, 8192)))
	p, err := c.Receive()
	check(t, err)
	if p.BHS.Opcode() != pdu.OpLoginResponse || p.BHS.LoginResponse().StatusClass() != 2 {
		t.Errorf("%s, class %d", p.BHS.Opcode(), p.BHS.LoginResponse().StatusClass())
	}
	check(t, c.AwaitClose())
	r.alive(other)
}

// TestB77_SegmentTooLong: a data segment above what the target declared ends the session and costs no memory.
func TestB77_SegmentTooLong(t *testing.T) {
	r := newRig(t, options{})
	other := r.login()
	for _, op := range []pdu.Opcode{pdu.OpNOPOut, pdu.OpSCSICommand, pdu.OpDataOut, pdu.OpTextRequest, 0x1e} {
		c := r.login()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var h pdu.BHS
		h.SetOpcode(op)
		h.SetImmediate(true)
		h.SetDataSegmentLength(1<<24 - 1)
		check(t, c.SendBytes(h[:]))
		if _, err := c.Receive(); err == nil {
			t.Errorf("%s: an answer", op)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d bytes were allocated", op, n)
		}
	}
	r.alive(other)
}

// TestB87_LUNInDataOut: the field is reserved there, and copied into R2Ts (the client checks that).
func TestB87_LUNInDataOut(t *testing.T) {
	r := newRig(t, options{})
	c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
	data := noise(16384)
	r.do(c, &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(0, 32), Out: data, DataOutLUN: 1<<64 - 1})
	r.expect(c, lunAsync, 0, data)
}

// TestB96_LongAHSOfUnknownOpcode: it is taken off the stream and rejected.
func TestB96_LongAHSOfUnknownOpcode(t *testing.T) {
	r := newRig(t, options{})
	for _, digest := range []string{"None", "CRC32C"} {
		c := r.login(keys("HeaderDigest", digest, "DataDigest", digest)...)
		for _, data := range [][]byte{nil, noise(511)} {
			var h pdu.BHS
			h.SetOpcode(0x1e)
			h.SetImmediate(true)
			h.SetInitiatorTaskTag(77)
			check(t, c.Send(&h, noise(255*4), data))
			p, err := c.Receive()
			check(t, err)
			if p.BHS.Opcode() != pdu.OpReject {
				t.Errorf("%s instead of a Reject", p.BHS.Opcode())
			}
			if !bytes.Equal(p.Data, h[:]) {
				t.Error("the Reject does not carry the header")
			}
		}
		r.alive(c)
	}
}

// TestB98_R2TUsesNoStatSN: the client checks every StatSN; R2Ts carry the next one.
func TestB98_R2TUsesNoStatSN(t *testing.T) {
	r := newRig(t, options{})
	c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No", "MaxBurstLength", "4096")...)
	res := r.write(c, lunRAM, 0, noise(3*4096))
	if res.R2Ts != 3 {
		t.Errorf("%d R2Ts, want 3", res.R2Ts)
	}
	_, err := c.Ping(nil)
	check(t, err)
}

// TestB99_DataDigestError: the PDU is rejected, its command fails, the session goes on.
func TestB99_DataDigestError(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	old := noise(32768)
	for _, how := range []struct {
		name string
		keys []login.KeyValue
	}{
		{"solicited", keys("InitialR2T", "Yes", "ImmediateData", "No", "DataDigest", "CRC32C", "HeaderDigest", "CRC32C")},
		{"unsolicited", keys("InitialR2T", "No", "ImmediateData", "No", "DataDigest", "CRC32C")},
		{"after immediate", keys("InitialR2T", "No", "ImmediateData", "Yes", "DataDigest", "CRC32C")},
	} {
		for bad := range 3 {
			c := r.login(how.keys...)
			r.write(c, lunRAM, 0, old)
			cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 64), Out: noise(len(old))}
			cmd.Corrupt = func(n int, raw []byte) {
				if n == bad {
					raw[len(raw)-10] ^= 0x40
				}
			}
			res, err := c.Do(cmd)
			check(t, err)
			if key, asc := res.SenseKey(); res.Status != 2 || key != 0xb || asc != 0x4705 {
				t.Errorf("%s, PDU %d: status %d sense %x/%04x", how.name, bad, res.Status, key, asc)
			}
			if len(c.Unsolicited) != 1 || c.Unsolicited[0].BHS.Opcode() != pdu.OpReject || c.Unsolicited[0].BHS.Reject().Reason() != pdu.RejectDataDigestError {
				t.Errorf("%s, PDU %d: no Reject", how.name, bad)
			}
			r.expect(c, lunRAM, 0, old)
			r.alive(c)
		}
	}
}

// TestHeaderDigestError: nothing after it can be believed.
func TestHeaderDigestError(t *testing.T) {
	r := newRig(t, options{})
	c := r.login(keys("HeaderDigest", "CRC32C")...)
	var h pdu.BHS
	h.NOPOut().Init()
	h.SetImmediate(true)
	raw := c.Append(nil, &h, nil, nil)
	raw[20] ^= 1
	check(t, c.SendBytes(raw))
	check(t, c.AwaitClose())
	if r.srv.Stats().DigestErrors != 1 {
		t.Error("not counted")
	}
}

// TestDataOutFaults sends sequences of Data-Out PDUs that break the rules: the command fails, the session goes on.
func TestDataOutFaults(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	edit := func(f func(*pdu.DataOut)) func(int, []byte) {
		return func(n int, raw []byte) {
			if n == 1 {
				f((*pdu.DataOut)((*pdu.BHS)(raw)))
			}
		}
	}
	for _, f := range []struct {
		name    string
		corrupt func(int, []byte)
	}{
		{"offset too low", edit(func(d *pdu.DataOut) { d.SetBufferOffset(d.BufferOffset() - 512) })},
		{"offset too high", edit(func(d *pdu.DataOut) { d.SetBufferOffset(d.BufferOffset() + 512) })},
		{"offset far away", edit(func(d *pdu.DataOut) { d.SetBufferOffset(0xfffffff0) })},
		{"DataSN skips", edit(func(d *pdu.DataOut) { d.SetDataSN(2) })},
		{"DataSN repeats", edit(func(d *pdu.DataOut) { d.SetDataSN(0) })},
	} {
		for _, initialR2T := range []string{"Yes", "No"} {
			c := r.login(keys("InitialR2T", initialR2T, "ImmediateData", "No", "MaxBurstLength", "16384", "FirstBurstLength", "16384")...)
			old := noise(16384)
			r.write(c, lunRAM, 0, old)
			cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 32), Out: noise(16384), Corrupt: f.corrupt}
			res, err := c.Do(cmd)
			check(t, err)
			if key, _ := res.SenseKey(); res.Status != 2 || key != 0xb {
				t.Errorf("%s, InitialR2T=%s: status %d, key %x", f.name, initialR2T, res.Status, key)
			}
			r.expect(c, lunRAM, 0, old)
			r.alive(c)
		}
	}
}

// TestF bits: a solicited sequence that ends too early or not at all.
func TestSolicitedFinalBit(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	for _, early := range []bool{true, false} {
		c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
		cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 16), Out: noise(8192)}
		cmd.Corrupt = func(n int, raw []byte) {
			d := (*pdu.DataOut)((*pdu.BHS)(raw))
			d.SetFinal(early && n == 0)
		}
		res, err := c.Do(cmd)
		check(t, err)
		if key, _ := res.SenseKey(); res.Status != 2 || key != 0xb {
			t.Errorf("early=%v: status %d, key %x", early, res.Status, key)
		}
		r.alive(c)
	}
}

// TestUnexpectedUnsolicitedData sends more than FirstBurstLength, and data where there may be none.
func TestUnexpectedUnsolicitedData(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	for _, lun := range []uint64{lunRAM, lunAsync} {
		for _, what := range []string{"too much", "none allowed", "much too much"} {
			initial := map[bool]string{true: "Yes", false: "No"}[what == "none allowed"]
			c := r.login(keys("InitialR2T", initial, "ImmediateData", "Yes", "FirstBurstLength", "8192")...)
			negotiated := c.Params
			switch what {
			case "too much":
				c.Params.FirstBurstLength = 16384
			case "none allowed":
				c.Params.InitialR2T = false
			case "much too much":
				c.Params.FirstBurstLength = 32768
			}
			cmd := &tcpclient.Command{LUN: lun, CDB: tcpclient.Write10(0, 64), Out: noise(32768)}
			res, err := c.Do(cmd)
			check(t, err)
			if key, asc := res.SenseKey(); res.Status != 2 || key != 0xb || asc != 0x0c0c {
				t.Errorf("%s: status %d, sense %x/%04x", what, res.Status, key, asc)
			}
			c.Params = negotiated
			r.alive(c)
		}
	}
}

// TestUnknownTransferTag: data that nobody waits for is thrown away, and nothing happens.
func TestUnknownTransferTag(t *testing.T) {
	r := newRig(t, options{})
	c := r.login()
	for _, ttt := range []uint32{0, 1, 0xfffe, 0xffff, 0x10000, 0xfffffffe, pdu.ReservedTag} {
		h := tcpclient.DataOut(12345, ttt, 0, 0, true)
		check(t, c.Send(&h, nil, noise(1000)))
	}
	r.alive(c)
	if n := r.srv.Stats().Discarded; n != 7 {
		t.Errorf("%d PDUs discarded, want 7", n)
	}
}

// TestAbortDuringDataOut aborts a write that waits for its data; what comes for it later is thrown away, though its
// slot may serve another command by then.
func TestAbortDuringDataOut(t *testing.T) {
	r := newRig(t, options{})
	for _, lun := range []uint64{lunRAM, lunAsync} {
		for _, half := range []bool{false, true} {
			c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No", "MaxBurstLength", "65536")...)
			cmd := &tcpclient.Command{LUN: lun, CDB: tcpclient.Write10(0, 64), Out: noise(32768)}
			var res tcpclient.Result
			ref := c.CmdSN
			itt, err := c.Start(cmd, &res)
			check(t, err)
			p, err := c.ReceiveReply(itt)
			check(t, err)
			ttt := p.BHS.R2T().TargetTransferTag()
			h := tcpclient.DataOut(itt, ttt, 0, 0, true)
			raw := c.Append(nil, &h, nil, cmd.Out)
			rest := raw
			if half {
				// The abort comes while a PDU is half read: here only after its end, the stream is in order.
				h = tcpclient.DataOut(itt, ttt, 0, 0, false)
				check(t, c.Send(&h, nil, cmd.Out[:512]))
				h = tcpclient.DataOut(itt, ttt, 1, 512, true)
				rest = c.Append(nil, &h, nil, cmd.Out[512:])
			}
			answer, err := c.TMF(pdu.TMAbortTask, lun, itt, ref)
			check(t, err)
			if answer != pdu.TMFunctionComplete {
				t.Errorf("%s", answer)
			}
			check(t, c.SendBytes(rest))
			r.alive(c)
		}
	}
	if n := r.srv.Stats().Discarded; n != 4 {
		t.Errorf("%d PDUs discarded, want 4", n)
	}
}

// TestAbortInsidePDU: another connection resets the target while a Data-Out PDU is half here.
func TestAbortInsidePDU(t *testing.T) {
	r := newRig(t, options{})
	a, b := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...), r.login()
	cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 64), Out: noise(32768)}
	var res tcpclient.Result
	itt, err := a.Start(cmd, &res)
	check(t, err)
	p, err := a.ReceiveReply(itt)
	check(t, err)
	h := tcpclient.DataOut(itt, p.BHS.R2T().TargetTransferTag(), 0, 0, true)
	raw := a.Append(nil, &h, nil, cmd.Out)
	check(t, a.SendBytes(raw[:20000]))
	answer, err := b.TMF(pdu.TMLogicalUnitReset, lunRAM, pdu.ReservedTag, b.CmdSN)
	check(t, err)
	if answer != pdu.TMFunctionComplete {
		t.Error(answer)
	}
	check(t, a.SendBytes(raw[20000:]))
	_, err = a.Ping([]byte("still here"))
	check(t, err)
	for _, c := range []*tcpclient.Conn{a, b} { // the unit attention of the reset
		_, err = c.Do(&tcpclient.Command{LUN: lunRAM, CDB: make([]byte, 6)})
		check(t, err)
		r.alive(c)
	}
}

// TestB100_FewBuffers: more commands than there is memory for, over several sessions, with and without unsolicited data.
func TestB100_FewBuffers(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	r.srv.SetBufferLimit(64 << 10)
	r.fault.Delay(backstore.OpWrite, time.Millisecond)
	var wg sync.WaitGroup
	for i, how := range [][]login.KeyValue{
		keys("InitialR2T", "No", "ImmediateData", "Yes", "FirstBurstLength", "512"),
		keys("InitialR2T", "No", "ImmediateData", "No", "FirstBurstLength", "8192"),
		keys("InitialR2T", "Yes", "ImmediateData", "No", "MaxBurstLength", "16384"),
		keys("InitialR2T", "No", "ImmediateData", "Yes", "FirstBurstLength", "65536", "DataDigest", "CRC32C"),
	} {
		c := r.login(how...)
		wg.Go(func() {
			const depth, size = 24, 64 << 10
			base := uint32(i * 6144)
			cmds, results := map[uint32]*tcpclient.Command{}, map[uint32]*tcpclient.Result{}
			for k := range depth {
				cmd := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(base+uint32(k*size/512), size/512), Out: bytes.Repeat([]byte{byte(i), byte(k)}, size/2)}
				res := &tcpclient.Result{}
				itt, err := c.Start(cmd, res)
				if err != nil {
					t.Error(err)
					return
				}
				cmds[itt], results[itt] = cmd, res
			}
			for len(cmds) > 0 {
				p, err := c.Receive()
				if err != nil {
					t.Error(err)
					return
				}
				itt := p.BHS.InitiatorTaskTag()
				done, err := c.Step(cmds[itt], results[itt], p)
				if err != nil {
					t.Error(err)
					return
				}
				if done {
					if results[itt].Status != 0 {
						t.Errorf("status %d", results[itt].Status)
					}
					delete(cmds, itt)
				}
			}
			for k := range depth {
				res, err := c.Do(&tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(base+uint32(k*size/512), size/512), In: size})
				if err != nil || !bytes.Equal(res.Data, bytes.Repeat([]byte{byte(i), byte(k)}, size/2)) {
					t.Errorf("session %d, command %d: other data comes back (%v)", i, k, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if r.srv.Stats().BufferWaits == 0 {
		t.Error("nobody had to wait: the test tests nothing")
	}
}

// TestB103_PeerGoesUnderIO: the peer vanishes with reads and writes in the store, and with data half here.
func TestB103_PeerGoesUnderIO(t *testing.T) {
	r := newRig(t, options{})
	for round := range 20 {
		c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
		r.fault.Hang(backstore.OpRead)
		for k := range 64 {
			cmd := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(uint32(k), 8), In: 4096}
			if k%2 == 1 {
				cmd = &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(uint32(k), 8), Out: noise(4096)}
			}
			_, err := c.Start(cmd, &tcpclient.Result{})
			check(t, err)
		}
		eventually(t, "reads in the store", func() bool { return r.fault.Held() == 32 })
		if round%2 == 0 {
			check(t, c.Conn.(*net.TCPConn).SetLinger(0)) // a reset instead of an end
		}
		check(t, c.Close())
		r.fault.Release()
		r.noConnections()
	}
	if n := r.srv.Stats().BufferBytes; n != 0 {
		t.Errorf("%d bytes of buffers are missing", n)
	}
}

// TestProbes: port scans and other protocols end quietly and leave nothing.
func TestProbes(t *testing.T) {
	var probes atomic.Int32
	var o options
	o.node.LoginTimeout = 300 * time.Millisecond
	o.node.Events.Probe = func(iscsi.ProbeEvent) { probes.Add(1) }
	r := newRig(t, o)
	other := r.login()
	tls := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise(506)...)
	rnd := rand.New(rand.NewPCG(7, 7))
	random := make([]byte, 48)
	for i := range random {
		random[i] = byte(rnd.Uint32())
	}
	random[0] = 0x1f // never a request
	for _, b := range [][]byte{nil, {1}, random, tls, []byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n\r\n"), make([]byte, 47), bytes.Repeat([]byte{0xff}, 4096)} {
		c := r.dial()
		check(t, c.SendBytes(b))
		if len(b) == 0 {
			check(t, c.Close())
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := c.Read(make([]byte, 100)); err == nil {
			t.Errorf("%d bytes of answer to %x", n, b[:1])
		}
	}
	eventually(t, "probes gone", func() bool { return r.srv.Stats().Connections == 1 })
	if probes.Load() != 7 {
		t.Errorf("%d probes told, want 7", probes.Load())
	}
	r.alive(other)
}

// TestB138_AcceptFails: an accept that fails again and again pauses, and goes on when it can.
func TestB138_AcceptFails(t *testing.T) {
	r := newRig(t, options{})
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	check(t, err)
	l := &failingListener{Listener: inner}
	l.failing.Store(true)
	srv := tcp.New(r.node, tcp.Config{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	time.Sleep(300 * time.Millisecond)
	if n := l.calls.Load(); n < 3 || n > 20 {
		t.Errorf("%d accepts in 300 ms", n)
	}
	l.failing.Store(false)
	c, err := tcpclient.Open(inner.Addr().String(), tcpclient.Login{Target: targetName})
	check(t, err)
	check(t, c.Logout())
	check(t, srv.Close())
	check(t, <-done)
}

type failingListener struct {
	net.Listener
	failing atomic.Bool
	calls   atomic.Int32
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.calls.Add(1)
	if l.failing.Load() {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestRefusalArrives: the response that refuses a login is not destroyed by what the initiator sent after its request.
func TestRefusalArrives(t *testing.T) {
	r := newRig(t, options{})
	for range 20 {
		c := r.dial()
		var h pdu.BHS
		l := h.LoginRequest()
		l.Init()
		l.SetTransit(true)
		l.SetCSG(pdu.StageOperational)
		l.SetNSG(pdu.StageFullFeature)
		text := pdu.AppendKey(pdu.AppendKey(nil, "InitiatorName", "iqn.2026-01.test:i"), "TargetName", "iqn.2026-01.test:nothing")
		raw := c.Append(nil, &h, nil, text)
		check(t, c.SendBytes(append(raw, make([]byte, 100_000)...)))
		p, err := c.Receive()
		check(t, err)
		if r := p.BHS.LoginResponse(); r.StatusClass() != 2 || r.StatusDetail() != 3 {
			t.Errorf("status %d/%d", r.StatusClass(), r.StatusDetail())
		}
		check(t, c.AwaitClose())
		check(t, c.Close())
	}
	r.noConnections()
}

// TestSilentPeer: a peer that asks and does not read costs bounded memory, and is given up when it takes nothing for too
// long; one that reads late gets everything.
func TestSilentPeer(t *testing.T) {
	for _, reads := range []bool{true, false} {
		stall := 400 * time.Millisecond
		if reads {
			stall = 20 * time.Second
		}
		r := newRig(t, options{tcp: tcp.Config{StallTimeout: stall}})
		other := r.login()
		c := r.login(keys("MaxRecvDataSegmentLength", "262144")...)
		c.Timeout = 20 * time.Second
		ping := noise(8192)
		var sent atomic.Int32
		var wg sync.WaitGroup
		wg.Go(func() {
			var h pdu.BHS
			n := h.NOPOut()
			n.Init()
			h.SetImmediate(true)
			n.SetTargetTransferTag(pdu.ReservedTag)
			for k := range 4000 { // 32 MiB, more than the sockets hold
				n.SetInitiatorTaskTag(uint32(k))
				if c.Send(&h, nil, ping) != nil {
					return
				}
				sent.Add(1)
			}
		})
		if reads {
			time.Sleep(100 * time.Millisecond)
			for k := range 4000 {
				p, err := c.Receive()
				check(t, err)
				if p.BHS.InitiatorTaskTag() != uint32(k) || !bytes.Equal(p.Data, ping) {
					t.Fatalf("answer %d is another one", k)
				}
			}
			wg.Wait()
			if r.srv.Stats().Blocked == 0 {
				t.Error("the socket was never full: the test tests nothing")
			}
		} else {
			eventually(t, "the silent one given up", func() bool { return r.srv.Stats().Connections == 1 })
			wg.Wait()
			if sent.Load() == 4000 {
				t.Error("everything was taken")
			}
		}
		r.alive(other)
	}
}

// TestReadsUnread: data-in that does not leave is no reason to stall others, and comes whole in the end.
func TestReadsUnread(t *testing.T) {
	r := newRig(t, options{})
	other, c := r.login(), r.login()
	data := noise(1 << 20)
	r.write(c, lunRAM, 0, data)
	var itts []uint32
	cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0, 2048), In: 1 << 20}
	for range 32 {
		itt, err := c.Start(cmd, &tcpclient.Result{})
		check(t, err)
		itts = append(itts, itt)
	}
	eventually(t, "a full socket", func() bool { return r.srv.Stats().Blocked > 0 })
	r.alive(other)
	for _, itt := range itts {
		res := &tcpclient.Result{}
		check(t, c.Finish(cmd, res, itt))
		if !bytes.Equal(res.Data, data) {
			t.Fatal("other data")
		}
	}
}

// TestB115_ManyLogins: 200 at once.
func TestB115_ManyLogins(t *testing.T) {
	r := newRig(t, options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c, err := tcpclient.Open(r.addr, tcpclient.Login{Target: targetName, ISID: [6]byte{0x80, 1, byte(i)}})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Ping(nil); err != nil {
				t.Error(err)
			}
			if err := c.Logout(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.noConnections()
}

// TestReinstatement: the old connection ends when its initiator comes back, with a command in the store.
func TestReinstatement(t *testing.T) {
	r := newRig(t, options{})
	old := r.login()
	r.fault.Hang(backstore.OpRead)
	_, err := old.Start(&tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(0, 8), In: 4096}, &tcpclient.Result{})
	check(t, err)
	eventually(t, "a read in the store", func() bool { return r.fault.Held() == 1 })
	time.AfterFunc(50*time.Millisecond, r.fault.Release)
	r.isid--
	c := r.login()
	r.alive(c)
	_ = old.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, old.Conn); errors.Is(err, syscall.ETIMEDOUT) {
		t.Error(err)
	}
	eventually(t, "one connection", func() bool { return r.srv.Stats().Connections == 1 })
}

// TestDiscovery: SendTargets over a discovery session, with a long answer in pieces and an end without logout.
func TestDiscovery(t *testing.T) {
	r := newRig(t, options{})
	for _, logout := range []bool{true, false} {
		c, err := tcpclient.Open(r.addr, tcpclient.Login{Discovery: true, Keys: keys("HeaderDigest", "CRC32C,None", "MaxRecvDataSegmentLength", "512")})
		check(t, err)
		text, err := c.Text(pdu.AppendKey(nil, "SendTargets", "All"))
		check(t, err)
		want := "TargetName=" + targetName + "\x00TargetAddress=" + r.addr + ",1\x00"
		if string(text) != want {
			t.Errorf("%q, want %q", text, want)
		}
		if logout {
			check(t, c.Logout())
		} else {
			check(t, c.Close())
		}
		r.noConnections()
	}
}
