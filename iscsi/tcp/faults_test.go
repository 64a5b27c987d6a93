package tcp_test

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/tcpclient"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
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

// TestSolicitedFinalBit: a solicited sequence that ends too early or not at all.
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
