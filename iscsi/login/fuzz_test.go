package login

import (
	"encoding/binary"
	"testing"

	"iserd/iscsi/pdu"
)

// fuzzRecord packs a request for FuzzLogin: flags byte, length, text. Bits 7 and 6 of the flags byte are T and C, 3-2 and
// 1-0 the stages, 5 spoils the rest of the header with the first text bytes.
func fuzzRecord(s step) []byte {
	req, data := s.request()
	b := append([]byte{req[1]}, 0, 0)
	binary.BigEndian.PutUint16(b[1:], uint16(len(data)))
	return append(b, data...)
}

// FuzzLogin sends sequences of requests to a machine and holds every answer against what must always be true.
func FuzzLogin(f *testing.F) {
	seed := func(mode byte, steps ...step) {
		b := []byte{mode}
		for _, s := range steps {
			b = append(b, fuzzRecord(s)...)
		}
		f.Add(b)
	}
	security := step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=CHAP,None"}
	op := operational("HeaderDigest=CRC32C,None MaxBurstLength=16776192 FirstBurstLength=262144 InitialR2T=No MaxRecvDataSegmentLength=65536")
	long, _ := manyKeys(900)
	seed(0, security, op)
	seed(1, security, operational("RDMAExtensions=Yes TargetRecvDataSegmentLength=512"))
	seed(2, security, step{csg: 0, text: "CHAP_A=5"}, step{csg: 0, nsg: 1, t: true, text: "CHAP_N=user CHAP_R=0xaa"}, op)
	seed(4, operational(names), operational("FirstBurstLength=4096"))
	seed(0, step{csg: 1, c: true, text: names + "Max"}, operational("BurstLength=1"))
	seed(0, operational(discovery+long), operational(""), operational(""))
	seed(0, operational(names+"IFMarkInt=1~2 X-a=b MaxBurstLength=0x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		mode := data[0]
		data = data[1:]
		on, l := TransportTCP, DefaultLimits()
		var auth Authenticator
		if mode&1 != 0 {
			on = TransportISER
		}
		if mode&2 != 0 {
			auth = &passphrase{methods: []string{"CHAP"}}
		}
		if mode&4 != 0 {
			l.FirstBurstLength, l.TargetRecvDataSegmentLength, l.ImmediateData = 4096, 1024, mode&8 == 0
		}
		asked := 0
		m := New(on, l, func(n Names) Decision {
			if asked++; n.InitiatorName == "" || n.TargetName == "" && n.SessionType == SessionNormal {
				t.Fatalf("asked for %+v", n)
			}
			return Decision{TargetPortalGroupTag: 1, Authenticator: auth}
		})
		m.SetTSIH(1)
		over := false
		var text []byte
		for n := 0; len(data) >= 3 && n < 2*maxRequests; n++ {
			size := min(int(binary.BigEndian.Uint16(data[1:])), len(data)-3)
			s := step{raw: data[3 : 3+size : 3+size]}
			req, body := s.request()
			req[1] = data[0] &^ 0x20
			if data[0]&0x20 != 0 {
				copy(req[2:], body[:min(len(body), 46)])
			}
			data = data[3+size:]
			r := m.Request(req, body)
			if over && r.State != StateFailed {
				t.Fatal("a login that is over goes on")
			}
			over = r.State != StateMore
			resp := &r.Response
			wire := Status(resp.StatusClass())<<8 | Status(resp.StatusDetail())
			switch {
			case len(r.Data) > MaxSegment || resp.BHS().DataSegmentLength() != len(r.Data):
				t.Fatalf("%d bytes of data, header %d", len(r.Data), resp.BHS().DataSegmentLength())
			case resp.BHS().Opcode() != pdu.OpLoginResponse || resp.InitiatorTaskTag() != req.InitiatorTaskTag() || resp.ISID() != req.ISID():
				t.Fatalf("response % x", resp[:])
			case wire != r.Status || (r.State == StateFailed) != (r.Status != StatusSuccess):
				t.Fatalf("%v: %v, on the wire %v", r.State, r.Status, wire)
			case r.State == StateFailed && (r.Cause == "" || resp.Transit()):
				t.Fatalf("a failure without a cause, or with T: %+v", r)
			case resp.Transit() && (resp.Continue() || !req.Transit() || resp.NSG() != req.NSG() || resp.CSG() != req.CSG()):
				t.Fatalf("T to %v after request % x", resp.NSG(), req[:2])
			case (r.State == StateComplete) != (resp.Transit() && resp.NSG() == pdu.StageFullFeature):
				t.Fatalf("%v with T=%v NSG=%v", r.State, resp.Transit(), resp.NSG())
			}
			if r.State == StateFailed {
				continue
			}
			text = append(text, r.Data...)
			if !resp.Continue() {
				seen := map[string]bool{}
				if err := pdu.ParseKeys(text, func(k, _ []byte) error {
					if seen[string(k)] {
						t.Fatalf("%s twice in %q", k, text)
					}
					seen[string(k)] = true
					return nil
				}); err != nil {
					t.Fatalf("our text: %v", err)
				}
				text = nil
			}
			if r.State == StateComplete {
				checkOutcome(t, m, l, auth != nil)
			}
		}
		if asked > 1 {
			t.Fatalf("the resolver was asked %d times", asked)
		}
	})
}

func checkOutcome(t *testing.T, m *Machine, l Limits, secured bool) {
	p := m.Params()
	lengths := []uint32{p.MaxSendDataSegmentLength, p.MaxRecvDataSegmentLength, p.MaxBurstLength, p.FirstBurstLength,
		p.InitiatorRecvDataSegmentLength, p.TargetRecvDataSegmentLength}
	for _, v := range lengths {
		if v < minSegment || v > maxSegment {
			t.Fatalf("a length out of range: %+v", p)
		}
	}
	iserSession := p.Transport == TransportISER && p.SessionType == SessionNormal
	switch {
	case p.FirstBurstLength > p.MaxBurstLength:
		t.Fatal("first burst above burst")
	case p.MaxConnections != 1 || p.ErrorRecoveryLevel != 0 || !p.DataPDUInOrder || !p.DataSequenceInOrder:
		t.Fatalf("what we cannot do: %+v", p)
	case iserSession != p.RDMAExtensions:
		t.Fatalf("RDMAExtensions: %+v", p)
	case (p.HeaderDigest || p.DataDigest) && (p.Transport == TransportISER || p.SessionType == SessionDiscovery):
		t.Fatalf("digests: %+v", p)
	case p.Transport == TransportISER && !p.InitialR2T:
		t.Fatalf("unsolicited data over iSER: %+v", p)
	case p.MaxOutstandingR2T < 1 || p.MaxOutstandingR2T > l.MaxOutstandingR2T:
		t.Fatalf("R2Ts: %+v", p)
	case secured && m.AuthMethod() != "CHAP":
		t.Fatal("in without a proof")
	}
}
