package login

import (
	"strings"
	"testing"

	"iserd/internal/serial"
	"iserd/iscsi/pdu"
)

const (
	testInitiator = "iqn.2016-04.com.open-iscsi:client"
	testTarget    = "iqn.2026-01.net.example:disk"
)

// step is one request and what is expected of its response.
type step struct {
	csg, nsg pdu.Stage
	t, c     bool
	text     string // pairs parted by spaces
	raw      []byte // instead of text
	edit     func(*pdu.LoginRequest)
}

func allow(Names) Decision { return Decision{TargetPortalGroupTag: 1} }

func textOf(pairs string) []byte {
	var b []byte
	for _, f := range strings.Fields(pairs) {
		b = append(append(b, f...), 0)
	}
	return b
}

func (s step) request() (*pdu.LoginRequest, []byte) {
	var req pdu.LoginRequest
	req.Init()
	req.BHS().SetImmediate(true)
	req.SetTransit(s.t)
	req.SetContinue(s.c)
	req.SetCSG(s.csg)
	if s.t {
		req.SetNSG(s.nsg)
	}
	req.SetISID([6]byte{0x00, 0x02, 0x3d, 1, 0, 0})
	req.SetInitiatorTaskTag(0x11)
	req.SetCID(1)
	req.SetCmdSN(serial.New(7))
	data := s.raw
	if data == nil {
		data = textOf(s.text)
	}
	req.BHS().SetDataSegmentLength(len(data))
	if s.edit != nil {
		s.edit(&req)
	}
	return &req, data
}

func (s step) send(m *Machine) Result { return m.Request(s.request()) }

// answers makes a response's text readable: pairs parted by spaces.
func answers(t *testing.T, data []byte) string {
	t.Helper()
	var out []string
	if err := pdu.ParseKeys(data, func(k, v []byte) error {
		out = append(out, string(k)+"="+string(v))
		return nil
	}); err != nil {
		t.Fatalf("our own text: %v", err)
	}
	return strings.Join(out, " ")
}

const names = "InitiatorName=" + testInitiator + " TargetName=" + testTarget + " SessionType=Normal "
const discovery = "InitiatorName=" + testInitiator + " SessionType=Discovery "

// operational is a leading request that goes from the operational stage to full feature.
func operational(text string) step {
	return step{csg: 1, nsg: 3, t: true, text: text}
}

func TestTwoStageLoginLikeOpenISCSI(t *testing.T) {
	var got Names
	m := New(TransportTCP, DefaultLimits(), func(n Names) Decision {
		got = n
		return Decision{TargetPortalGroupTag: 3, TargetAlias: "disk"}
	})
	m.SetTSIH(0x1234)
	r := step{csg: 0, nsg: 1, t: true, text: names + "InitiatorAlias=box AuthMethod=None"}.send(m)
	if r.State != StateMore || !r.Response.Transit() || r.Response.NSG() != pdu.StageOperational || r.Response.CSG() != pdu.StageSecurity {
		t.Fatalf("security: %+v", r)
	}
	if a := answers(t, r.Data); a != "TargetPortalGroupTag=3 TargetAlias=disk AuthMethod=None" {
		t.Fatalf("security answers %q", a)
	}
	if r.Response.TSIH() != 0 {
		t.Fatal("TSIH before the end")
	}
	r = step{csg: 1, nsg: 3, t: true, text: "HeaderDigest=None DataDigest=None DefaultTime2Wait=2 DefaultTime2Retain=0 IFMarker=No " +
		"OFMarker=No ErrorRecoveryLevel=0 InitialR2T=No ImmediateData=Yes MaxBurstLength=16776192 FirstBurstLength=262144 " +
		"MaxOutstandingR2T=1 MaxConnections=1 DataPDUInOrder=Yes DataSequenceInOrder=Yes MaxRecvDataSegmentLength=262144"}.send(m)
	if r.State != StateComplete || r.Response.NSG() != pdu.StageFullFeature || r.Response.TSIH() != 0x1234 {
		t.Fatalf("operational: %+v", r)
	}
	want := "HeaderDigest=None DataDigest=None DefaultTime2Wait=2 DefaultTime2Retain=0 IFMarker=No OFMarker=No ErrorRecoveryLevel=0 " +
		"InitialR2T=No ImmediateData=Yes MaxBurstLength=16776192 MaxOutstandingR2T=1 MaxConnections=1 DataPDUInOrder=Yes " +
		"DataSequenceInOrder=Yes FirstBurstLength=262144 MaxRecvDataSegmentLength=262144"
	if a := answers(t, r.Data); a != want {
		t.Fatalf("operational answers\n%s\nwant\n%s", a, want)
	}
	p := m.Params()
	if p.MaxSendDataSegmentLength != 262144 || p.InitialR2T || !p.ImmediateData || p.MaxBurstLength != 16776192 || p.FirstBurstLength != 262144 || p.DefaultTime2Retain != 0 {
		t.Fatalf("params %+v", p)
	}
	if got.InitiatorName != testInitiator || got.TargetName != testTarget || got.InitiatorAlias != "box" || got.CID != 1 {
		t.Fatalf("names %+v", got)
	}
	if r = operational("").send(m); r.State != StateFailed || r.Status != StatusInvalidDuringLogin {
		t.Fatalf("after the end: %+v", r)
	}
}
