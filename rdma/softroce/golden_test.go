package softroce

import (
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rxePackets are packets that rdma_rxe sent: IPv4 headers and all.
func rxePackets(t testing.TB) map[string][]byte {
	files, err := filepath.Glob("testdata/rxe/*.hex")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(text), "\n")
		b, err := hex.DecodeString(strings.Join(strings.Fields(body), ""))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".hex")] = b
	}
	return out
}

// apart takes an IPv4 packet apart.
func apart(ip []byte) (f flow, id uint16, udp []byte) {
	f = flow{src: netip.AddrFrom4([4]byte(ip[12:16])), dst: netip.AddrFrom4([4]byte(ip[16:20])),
		srcPort: uint16(ip[20])<<8 | uint16(ip[21]), dstPort: uint16(ip[22])<<8 | uint16(ip[23])}
	return f, uint16(ip[4])<<8 | uint16(ip[5]), ip[28:]
}

// TestRxeICRC: what the kernel's implementation computes is what ours does, with its identification and without.
func TestRxeICRC(t *testing.T) {
	for name, ip := range rxePackets(t) {
		f, id, b := apart(ip)
		var c icrc
		if got, ok := c.check(&f, b); !ok || got.id != id || got.mayFragment != (ip[6]&0x40 == 0) {
			t.Errorf("%s: the ICRC is right with %+v, %t; the header has %#x, flags %#x", name, got, ok, id, ip[6])
		}
		again := append([]byte(nil), b...)
		clear(again[len(again)-icrcLen:])
		c.put(&f, again, id)
		if string(again) != string(b) {
			t.Errorf("%s: ICRC %x, rxe has %x", name, again[len(again)-icrcLen:], b[len(b)-icrcLen:])
		}
		// Every other bit counts, but those that the ICRC leaves out.
		passed, likely, n := 0, 0, 0
		for i := range len(b) * 8 {
			if i/8 == 4 {
				continue
			}
			n++
			b[i/8] ^= 1 << (i % 8)
			if got, ok := c.check(&f, b); ok {
				passed++
				if near := got.id - id; near < identAhead || -near <= identBack {
					likely++
				}
			}
			b[i/8] ^= 1 << (i % 8)
		}
		if passed > 1+n/10000 || likely > 0 {
			t.Errorf("%s: %d of %d damaged packets pass, %d with a likely identification", name, passed, n, likely)
		}
		for what, g := range map[string]flow{
			"source": {netip.MustParseAddr("192.168.77.9"), f.dst, f.srcPort, f.dstPort}, "port": {f.src, f.dst, f.srcPort ^ 1, f.dstPort}} {
			if _, ok := c.check(&g, b); ok {
				t.Errorf("%s: another %s passes", name, what)
			}
		}
	}
}

// TestIdentification: the check finds every identification, at any length.
func TestIdentification(t *testing.T) {
	f := flow{src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddr("10.0.0.2"), srcPort: 49152, dstPort: Port}
	var c icrc
	for _, n := range []int{20, 24, 284, 4128} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i * 7)
		}
		for id := 0; id < 1<<16; id += 251 {
			c.put(&f, b, uint16(id))
			if got, ok := c.check(&f, b); !ok || got != (ident{id: uint16(id)}) {
				t.Fatalf("length %d: identification %#x: %+v, %t", n, id, got, ok)
			}
		}
	}
	f6 := flow{src: netip.MustParseAddr("fd00::1"), dst: netip.MustParseAddr("fd00::2"), srcPort: 1, dstPort: Port}
	b := make([]byte, 64)
	c.put(&f6, b, 0)
	if _, ok := c.check(&f6, b); !ok {
		t.Error("IPv6: our own ICRC is refused")
	}
	b[63] ^= 1
	if _, ok := c.check(&f6, b); ok {
		t.Error("IPv6: a wrong ICRC passes")
	}
}

// TestRxeMessages: the connection manager's messages as the kernel writes them.
func TestRxeMessages(t *testing.T) {
	p := rxePackets(t)
	decode := func(name string) (m cmMessage) {
		_, _, b := apart(p[name])
		var pkt packet
		if !pkt.parse(b) || pkt.op != opUDSendOnly || pkt.destQP != gsiQP || pkt.qkey != gsiQKey || !m.decode(pkt.payload) {
			t.Fatalf("%s does not parse", name)
		}
		return m
	}
	req := decode("cm_req")
	src, dst, user, ok := req.ipHeader()
	if !ok || req.attr != cmREQ || src.Addr().String() != "192.168.77.1" || dst.String() != "192.168.77.2:7174" || len(user) != 56 {
		t.Errorf("REQ: %+v, from %s to %s, %d bytes", req, src, dst, len(user))
	}
	if req.mtu != 4096 || req.retryCount != 7 || req.responderResources != 1 || req.initiatorDepth != 1 || req.qpn == 0 || req.respTimeout != 20 ||
		req.localGID != src.Addr().As16() || req.remoteGID != dst.Addr().As16() {
		t.Errorf("REQ: %+v", req)
	}
	if rep := decode("cm_rep"); rep.attr != cmREP || rep.qpn == 0 || rep.psn == 0 || rep.remComm == 0 || rep.privateLen != 196 {
		t.Errorf("REP: %+v", rep)
	}
	if rtu := decode("cm_rtu"); rtu.attr != cmRTU || rtu.localComm != req.localComm || rtu.tid != req.tid {
		t.Errorf("RTU: %+v", rtu)
	}
	if dreq := decode("cm_dreq"); dreq.attr != cmDREQ || dreq.qpn == 0 || dreq.localComm == 0 {
		t.Errorf("DREQ: %+v", dreq)
	}
	// What we encode, we decode, in every kind.
	for attr := range privateData {
		m := cmMessage{attr: attr, tid: 1<<63 | 5, localComm: 0xfffffff1, serviceID: psTCP | 3260, localGUID: 9, qpn: 0xabcdef, psn: 0x123456,
			responderResources: 3, initiatorDepth: 250, retryCount: 6, rnrRetry: 7, mtu: 2048, ackTimeout: 31, respTimeout: 21, flowControl: true,
			srq: true, localGID: [16]byte{1}, remoteGID: [16]byte{15: 2}, reason: 28, rejected: 2}
		m.privateLen = copy(m.private[:], "private")
		var b, again [madLen]byte
		m.encode(b[:])
		var out cmMessage
		if !out.decode(b[:]) {
			t.Errorf("%#x does not decode", attr)
		}
		out.encode(again[:])
		if b != again || string(out.private[:7]) != "private" || out.attr != attr || out.localComm != m.localComm {
			t.Errorf("%#x comes back as %+v", attr, out)
		}
	}
	var m cmMessage
	for what, b := range map[string][]byte{"empty": nil, "short": make([]byte, 255), "long": make([]byte, 257), "zeros": make([]byte, 256)} {
		if m.decode(b) {
			t.Errorf("%s: decodes", what)
		}
	}
}

// TestParse: what is a packet and what is not.
func TestParse(t *testing.T) {
	bth := func(op opcode, flags byte, rest int) []byte {
		b := make([]byte, bthLen+rest+icrcLen)
		putBTH(b, op, 0, false, false, 17, 5)
		b[1] |= flags
		return b
	}
	for what, c := range map[string]struct {
		b  []byte
		ok bool
		n  int // payload
	}{
		"nothing":                     {nil, false, 0},
		"one byte less than a header": {make([]byte, bthLen+icrcLen-1), false, 0},
		"send only, no payload":       {bth(opSendOnly, 0, 0), true, 0},
		"send only, padded":           {bth(opSendOnly, 3<<4, 8), true, 5},
		"pad without payload":         {bth(opSendOnly, 1<<4, 0), false, 0},
		"payload of odd length":       {bth(opSendOnly, 0, 7), false, 0},
		"header version":              {bth(opSendOnly, 1, 4), false, 0},
		"reserved opcode":             {bth(0x15, 0, 4), false, 0},
		"reliable datagram":           {bth(0x44, 0, 16), false, 0},
		"write without RETH":          {bth(opWriteOnly, 0, 12), false, 0},
		"write":                       {bth(opWriteOnly, 0, 20), true, 4},
		"read request":                {bth(opReadRequest, 0, 16), true, 0},
		"read request too short":      {bth(opReadRequest, 0, 15), false, 0},
		"read request with data":      {bth(opReadRequest, 0, 20), false, 0},
		"read request with pad":       {bth(opReadRequest, 1<<4, 16), false, 0},
		"ack":                         {bth(opAcknowledge, 0, 4), true, 0},
		"ack too short":               {bth(opAcknowledge, 0, 0), false, 0},
		"ack with data":               {bth(opAcknowledge, 0, 8), false, 0},
		"send with inv too short":     {bth(opSendOnlyInv, 0, 3), false, 0},
		"send with inv":               {bth(opSendOnlyInv, 0, 8), true, 4},
		"compare and swap":            {bth(opCompareSwap, 0, 28), true, 0},
		"compare and swap short":      {bth(opCompareSwap, 0, 27), false, 0},
		"datagram short":              {bth(opUDSendOnly, 0, 7), false, 0},
		"CNP":                         {bth(opCNP, 0, 16), true, 16},
	} {
		var p packet
		if ok := p.parse(c.b); ok != c.ok || ok && len(p.payload) != c.n {
			t.Errorf("%s: %v, %d bytes", what, ok, len(p.payload))
		}
	}
}
