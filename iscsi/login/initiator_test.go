package login

import (
	"errors"
	"strings"
	"testing"

	"iserd/internal/serial"
	"iserd/iscsi/pdu"
)

// run lets an initiator log in to a machine.
func run(i *Initiator, m *Machine) error {
	for range 2 * maxRequests {
		req, data := i.Next()
		req.SetCmdSN(serial.New(1))
		r := m.Request(&req, data)
		if done, err := i.Response(&r.Response, r.Data); done || err != nil {
			return err
		}
	}
	return errors.New("no end")
}

func testNames(s SessionType) Names {
	n := Names{InitiatorName: testInitiator, SessionType: s, ISID: [6]byte{0x80, 1, 2, 3, 4, 5}, CID: 1}
	if s == SessionNormal {
		n.TargetName = testTarget
	}
	return n
}

// TestBothSides: whatever is offered on whatever transport, both sides have the same idea of the outcome.
func TestBothSides(t *testing.T) {
	odd := DefaultLimits()
	odd.FirstBurstLength, odd.MaxBurstLength, odd.TargetRecvDataSegmentLength = 1024, 4096, 512
	odd.ImmediateData, odd.Digests, odd.InitialR2T = false, false, true
	long, _ := manyKeys(900)
	var many []KeyValue
	for k := range strings.FieldsSeq(long) {
		many = append(many, KeyValue{strings.TrimSuffix(k, "="), ""})
	}
	for _, tt := range []struct {
		name string
		keys []KeyValue
	}{
		{"usual", nil},
		{"none", []KeyValue{}},
		{"digests", []KeyValue{{"HeaderDigest", "CRC32C,None"}, {"DataDigest", "CRC32C"}, {"MaxRecvDataSegmentLength", "0x8000"}}},
		{"large", []KeyValue{{"MaxBurstLength", "16777215"}, {"FirstBurstLength", "16777215"}, {"MaxOutstandingR2T", "65535"}, {"MaxConnections", "4"}, {"DefaultTime2Wait", "30"}}},
		{"small", []KeyValue{{"MaxBurstLength", "512"}, {"FirstBurstLength", "512"}, {"InitialR2T", "No"}, {"ImmediateData", "No"}}},
		{"long", many},
	} {
		for _, on := range []Transport{TransportTCP, TransportISER} {
			for _, st := range []SessionType{SessionNormal, SessionDiscovery} {
				for _, l := range []Limits{DefaultLimits(), odd} {
					for _, security := range []bool{false, true} {
						i := &Initiator{Transport: on, Names: testNames(st), Keys: tt.keys, Security: security, Tag: 5}
						if on == TransportISER && st == SessionNormal && tt.keys != nil {
							i.Keys = append([]KeyValue{{"RDMAExtensions", "Yes"}, {"InitiatorRecvDataSegmentLength", "4096"}}, tt.keys...)
						}
						m := New(on, l, allow)
						m.SetTSIH(77)
						if err := run(i, m); err != nil {
							t.Errorf("%s, %v, %v, security %v: %v", tt.name, on, st, security, err)
							continue
						}
						theirs, ours := i.Params(), m.Params()
						theirs.MaxSendDataSegmentLength, theirs.MaxRecvDataSegmentLength = theirs.MaxRecvDataSegmentLength, theirs.MaxSendDataSegmentLength
						if theirs != ours {
							t.Errorf("%s, %v, %v, security %v:\ninitiator %+v\n   target %+v", tt.name, on, st, security, theirs, ours)
						}
						if i.TSIH != 77 || st == SessionNormal && i.Answers["TargetPortalGroupTag"] != "1" {
							t.Errorf("TSIH %d, answers %v", i.TSIH, i.Answers)
						}
					}
				}
			}
		}
	}
}

func TestInitiatorRefused(t *testing.T) {
	i := &Initiator{Names: testNames(SessionNormal)}
	err := run(i, New(TransportTCP, DefaultLimits(), func(Names) Decision {
		return Decision{Status: StatusMovedTemporarily, Cause: "moved", RedirectAddress: "10.0.0.2:3260"}
	}))
	var refused *RefusedError
	if !errors.Is(err, ErrRefused) || !errors.As(err, &refused) || refused.Status != StatusMovedTemporarily || i.Answers["TargetAddress"] != "10.0.0.2:3260" {
		t.Errorf("%v, %v", err, i.Answers)
	}
}

// TestInitiatorGuards feeds an initiator what no target should say.
func TestInitiatorGuards(t *testing.T) {
	good := func(i *Initiator) *pdu.LoginResponse {
		var r pdu.LoginResponse
		r.Init()
		r.SetISID(i.Names.ISID)
		r.SetInitiatorTaskTag(i.Tag)
		r.SetTSIH(1)
		r.SetTransit(true)
		r.SetCSG(pdu.StageOperational)
		r.SetNSG(pdu.StageFullFeature)
		return &r
	}
	rdma := "RDMAExtensions=Yes "
	for _, tt := range []struct {
		name string
		on   Transport
		text string
		edit func(*pdu.LoginResponse)
		ok   bool
	}{
		{"fine", TransportTCP, "MaxBurstLength=8192 FirstBurstLength=8192", nil, true},
		{"fine over iSER", TransportISER, rdma, nil, true},
		{"B22 first burst above burst", TransportTCP, "MaxBurstLength=4096 FirstBurstLength=8192", nil, false},
		{"no RDMAExtensions", TransportISER, "", nil, false},
		{"RDMAExtensions=No", TransportISER, "RDMAExtensions=No", nil, false},
		{"burst out of range", TransportTCP, "MaxBurstLength=16777216", nil, false},
		{"burst no number", TransportTCP, "MaxBurstLength=x", nil, false},
		{"boolean", TransportTCP, "InitialR2T=maybe", nil, false},
		{"declared too short", TransportTCP, "MaxRecvDataSegmentLength=1", nil, false},
		{"no TSIH", TransportTCP, "", func(r *pdu.LoginResponse) { r.SetTSIH(0) }, false},
		{"another task", TransportTCP, "", func(r *pdu.LoginResponse) { r.SetInitiatorTaskTag(9) }, false},
		{"another ISID", TransportTCP, "", func(r *pdu.LoginResponse) { r.SetISID([6]byte{9}) }, false},
		{"T and C", TransportTCP, "", func(r *pdu.LoginResponse) { r.SetContinue(true) }, false},
		{"stage back", TransportTCP, "", func(r *pdu.LoginResponse) { r.SetNSG(pdu.StageOperational) }, false},
		{"no text", TransportTCP, "nonsense", nil, false},
	} {
		i := &Initiator{Transport: tt.on, Names: testNames(SessionNormal), Tag: 5}
		r := good(i)
		if _, err := i.Response(r, nil); !errors.Is(err, ErrNegotiation) {
			t.Errorf("%s: a response before the request: %v", tt.name, err)
		}
		i.Next()
		if tt.edit != nil {
			tt.edit(r)
		}
		_, err := i.Response(r, textOf(tt.text))
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
