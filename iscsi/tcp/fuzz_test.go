package tcp_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"iserd/internal/tcpclient"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// How the bytes of FuzzStream are used.
const (
	fuzzLogin    = 1 << iota // before login instead of after it
	fuzzDigests              // with digests
	fuzzRaw                  // as they are; otherwise they are made PDUs with true lengths, digests and CmdSN
	fuzzSolicits             // InitialR2T=Yes, ImmediateData=No
	fuzzCut                  // in small segments
)

// FuzzStream sends anything to a live connection. The connection must end when the peer does, whatever it was sent, and
// the server must go on serving.
func FuzzStream(f *testing.F) {
	r := newRig(f, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	for _, s := range fuzzSeeds() {
		f.Add(s.how, s.stream)
	}
	other := r.login()
	runs := 0
	f.Fuzz(func(t *testing.T, how uint8, stream []byte) {
		if len(stream) > 64<<10 {
			return
		}
		c, err := tcpclient.Dial(r.addr)
		check(t, err)
		defer func() { _ = c.Close() }()
		if how&fuzzLogin == 0 {
			k := keys("InitialR2T", "No", "ImmediateData", "Yes", "FirstBurstLength", "16384", "MaxBurstLength", "8192", "MaxOutstandingR2T", "3")
			if how&fuzzSolicits != 0 {
				k = keys("InitialR2T", "Yes", "ImmediateData", "No", "MaxBurstLength", "512")
			}
			if how&fuzzDigests != 0 {
				k = append(k, keys("HeaderDigest", "CRC32C", "DataDigest", "CRC32C")...)
			}
			check(t, c.Login(tcpclient.Login{Target: targetName, Keys: k, ISID: [6]byte{0x80, 9, 9, 9, 9, 9}}))
		}
		if how&fuzzCut != 0 {
			c.Segment = 1 + len(stream)%61
		}
		if how&fuzzRaw == 0 {
			stream = frame(c, stream)
		}
		// The peer may be gone by the time that everything is sent.
		_ = c.SendBytes(stream)
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, c.Conn); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatal("the connection does not end")
			}
		}
		if runs++; runs%64 == 0 {
			if got, err := other.Ping([]byte("ping")); err != nil || string(got) != "ping" {
				t.Fatalf("another session suffers: %q, %v", got, err)
			}
		}
	})
}

// frame makes PDUs of arbitrary bytes: each 48 are a header, whose lengths are cut to what there is.
func frame(c *tcpclient.Conn, b []byte) []byte {
	var out []byte
	for len(b) >= pdu.BHSLength {
		h := pdu.BHS(b)
		b = b[pdu.BHSLength:]
		ahs := b[:min(len(b)&^3, h.TotalAHSLength(), 64)]
		b = b[len(ahs):]
		data := b[:min(len(b), h.DataSegmentLength())]
		b = b[len(data):]
		if !h.Immediate() && h.Opcode() != pdu.OpDataOut && h.Opcode() != pdu.OpSNACK {
			binary.BigEndian.PutUint32(h[24:], c.CmdSN.Uint32())
			c.CmdSN = c.CmdSN.Next()
		}
		out = c.Append(out, &h, ahs, data)
	}
	return append(out, b...)
}

type fuzzSeed struct {
	how    uint8
	stream []byte
}

// fuzzSeeds are the ordinary life of a session and some of its accidents.
func fuzzSeeds() []fuzzSeed {
	var c tcpclient.Conn
	one := func(h *pdu.BHS, data []byte) []byte { return c.Append(nil, h, nil, data) }
	command := func(cdb []byte, in int, out []byte, imm int, final bool) []byte {
		h := c.Header(&tcpclient.Command{LUN: lunRAM, CDB: cdb, In: in, Out: out}, imm, final)
		return one(&h, out[:imm])
	}
	dataOut := func(itt, ttt, sn, offset uint32, final bool, n int) []byte {
		h := tcpclient.DataOut(itt, ttt, sn, offset, final)
		return one(&h, make([]byte, n))
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	var nop, tmf, text, logout, lgn pdu.BHS
	nop.NOPOut().Init()
	nop.SetImmediate(true)
	nop.NOPOut().SetTargetTransferTag(pdu.ReservedTag)
	tmf.TaskManagementRequest().Init()
	tmf.SetImmediate(true)
	tmf.TaskManagementRequest().SetFunction(pdu.TMLogicalUnitReset)
	text.TextRequest().Init()
	text.TextRequest().SetFinal(true)
	text.TextRequest().SetTargetTransferTag(pdu.ReservedTag)
	logout.LogoutRequest().Init()
	lgn.LoginRequest().Init()
	lgn.LoginRequest().SetTransit(true)
	lgn.LoginRequest().SetCSG(pdu.StageOperational)
	lgn.LoginRequest().SetNSG(pdu.StageFullFeature)
	names := join([]byte("InitiatorName=iqn.2026-01.test:f\x00TargetName=" + targetName + "\x00"))
	write := make([]byte, 16384)
	session := join(one(&nop, []byte("abc")), command(make([]byte, 6), 0, nil, 0, true), command(tcpclient.Read10(0, 8), 4096, nil, 0, true),
		command(tcpclient.Write10(0, 2), 0, write[:1024], 1024, true))
	c.ITT = 0x100
	unsolicited := join(command(make([]byte, 6), 0, nil, 0, true), command(tcpclient.Write10(0, 32), 0, write, 4096, false),
		dataOut(0x102, pdu.ReservedTag, 0, 4096, false, 4096), dataOut(0x102, pdu.ReservedTag, 1, 8192, true, 4096))
	tags := join(command(make([]byte, 6), 0, nil, 0, true), command(tcpclient.Write10(0, 32), 0, write, 0, true),
		dataOut(0x104, 1<<18, 0, 0, false, 512), dataOut(0x104, 1<<18, 1, 512, true, 512), dataOut(9, 9, 9, 9, true, 5))
	return []fuzzSeed{
		{0, session},
		{fuzzDigests, session},
		{fuzzCut, session},
		{0, unsolicited},
		{fuzzDigests | fuzzCut, unsolicited},
		{fuzzSolicits, unsolicited},
		{fuzzSolicits, tags},
		{0, join(unsolicited, one(&tmf, nil), one(&text, []byte("SendTargets=\x00")), one(&logout, nil))},
		{fuzzLogin, join(one(&lgn, names), session)},
		{fuzzLogin | fuzzRaw, []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}},
		{fuzzLogin | fuzzRaw, one(&nop, nil)},
		{fuzzRaw, append(make([]byte, 5), 0xff, 0xff, 0xff)},
	}
}
