package login

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"iserd/iscsi/pdu"
)

func wantMore(t *testing.T, r Result, answer string) {
	t.Helper()
	if r.State != StateMore || r.Response.Transit() {
		t.Fatalf("%v, T=%v: %v %s", r.State, r.Response.Transit(), r.Status, r.Cause)
	}
	if got := answers(t, r.Data); got != answer {
		t.Fatalf("answers %q, want %q", got, answer)
	}
}

func wantStage(t *testing.T, r Result, s pdu.Stage, answer string) {
	t.Helper()
	if r.State == StateFailed || !r.Response.Transit() || r.Response.NSG() != s || (r.State == StateComplete) != (s == pdu.StageFullFeature) {
		t.Fatalf("%v, T=%v to %v: %v %s", r.State, r.Response.Transit(), r.Response.NSG(), r.Status, r.Cause)
	}
	if got := answers(t, r.Data); got != answer {
		t.Fatalf("answers %q, want %q", got, answer)
	}
}

// TestB16_AuthMethodNone: None is echoed and the T bit honoured, whichever place None has in the list.
func TestB16_AuthMethodNone(t *testing.T) {
	for _, list := range []string{"None", "CHAP,None", "KRB5,SRP,CHAP,None", "None,CHAP"} {
		m := New(TransportTCP, DefaultLimits(), allow)
		wantStage(t, step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=" + list}.send(m), pdu.StageOperational, "TargetPortalGroupTag=1 AuthMethod=None")
		if m.AuthMethod() != "None" || m.Stage() != pdu.StageOperational {
			t.Errorf("%s: %s, %v", list, m.AuthMethod(), m.Stage())
		}
	}
}

// TestB6_RepeatedNames: names that come again unchanged are borne, as are keys, also with the value that was answered.
func TestB6_RepeatedNames(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	wantStage(t, step{csg: 0, nsg: 1, t: true, text: names + names + "AuthMethod=None"}.send(m), pdu.StageOperational, "TargetPortalGroupTag=1 AuthMethod=None")
	wantMore(t, step{csg: 1, text: names + "MaxBurstLength=16777215 X-a=1"}.send(m),
		"MaxBurstLength=16776192 X-a=NotUnderstood MaxRecvDataSegmentLength=262144")
	wantMore(t, step{csg: 1, text: names + "MaxBurstLength=16776192 X-a=1"}.send(m), "MaxBurstLength=16776192 X-a=NotUnderstood")
	wantStage(t, step{csg: 1, nsg: 3, t: true, text: names + "MaxBurstLength=16777215"}.send(m), pdu.StageFullFeature, "MaxBurstLength=16776192")
}

func TestEmptyRequests(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	wantMore(t, step{csg: 0, text: names}.send(m), "TargetPortalGroupTag=1")
	wantMore(t, step{csg: 0}.send(m), "")
	wantStage(t, step{csg: 0, nsg: 1, t: true}.send(m), pdu.StageOperational, "")
	wantMore(t, step{csg: 1}.send(m), "MaxRecvDataSegmentLength=262144")
	wantStage(t, step{csg: 1, nsg: 3, t: true}.send(m), pdu.StageFullFeature, "")
}

// TestSecurityToFullFeature skips the operational stage: nothing is negotiated.
func TestSecurityToFullFeature(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	wantStage(t, step{csg: 0, nsg: 3, t: true, text: names}.send(m), pdu.StageFullFeature, "TargetPortalGroupTag=1")
	if m.Params() != defaultParams(TransportTCP) {
		t.Errorf("%+v", m.Params())
	}
}

// TestEarlyOperationalKeys is boot firmware that says everything in the security stage.
func TestEarlyOperationalKeys(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	wantStage(t, step{csg: 0, nsg: 3, t: true, text: names + "AuthMethod=None MaxRecvDataSegmentLength=65536 InitialR2T=No"}.send(m),
		pdu.StageFullFeature, "TargetPortalGroupTag=1 InitialR2T=No AuthMethod=None MaxRecvDataSegmentLength=262144")
	if p := m.Params(); p.MaxSendDataSegmentLength != 65536 || p.InitialR2T || p.MaxRecvDataSegmentLength != 262144 {
		t.Errorf("%+v", p)
	}
}

// TestRequestInParts cuts the text of a request anywhere, also inside of keys.
func TestRequestInParts(t *testing.T) {
	text := textOf(names + "MaxBurstLength=65536 FirstBurstLength=8192")
	for cut := range len(text) + 1 {
		m := New(TransportTCP, DefaultLimits(), allow)
		r := step{csg: 1, c: true, raw: text[:cut:cut]}.send(m)
		if r.Response.Continue() {
			t.Fatal("C in an answer to a part")
		}
		wantMore(t, r, "")
		wantStage(t, step{csg: 1, nsg: 3, t: true, raw: append([]byte{}, text[cut:]...)}.send(m), pdu.StageFullFeature,
			"TargetPortalGroupTag=1 MaxBurstLength=65536 FirstBurstLength=8192 MaxRecvDataSegmentLength=262144")
	}
}

// manyKeys is text whose answers need more than one response.
func manyKeys(n int) (text, want string) {
	var in, out []string
	for i := range n {
		in = append(in, "X-"+strconv.Itoa(i)+"=")
		out = append(out, "X-"+strconv.Itoa(i)+"=NotUnderstood")
	}
	return strings.Join(in, " "), strings.Join(out, " ")
}

func TestAnswerInParts(t *testing.T) {
	text, want := manyKeys(900)
	m := New(TransportTCP, DefaultLimits(), allow)
	r := step{csg: 1, nsg: 3, t: true, text: names + text}.send(m)
	var all []byte
	parts := 1
	for ; r.Response.Continue(); parts++ {
		if r.State != StateMore || r.Response.Transit() || len(r.Data) != MaxSegment {
			t.Fatalf("part of %d bytes: %v", len(r.Data), r.State)
		}
		all = append(all, r.Data...)
		r = step{csg: 1, nsg: 3, t: true}.send(m)
	}
	all = append(all, r.Data...)
	if r.State != StateComplete || parts < 3 || answers(t, all) != "TargetPortalGroupTag=1 "+want+" MaxRecvDataSegmentLength=262144" {
		t.Fatalf("%d parts, %v, %d bytes", parts, r.State, len(all))
	}

	// Text instead of fetching is an error; fetching without T keeps the stage.
	m = New(TransportTCP, DefaultLimits(), allow)
	step{csg: 1, nsg: 3, t: true, text: names + text}.send(m)
	if r := (step{csg: 1, text: "X-a=1"}).send(m); r.Status != StatusInitiatorError {
		t.Errorf("%v", r.Status)
	}
	m = New(TransportTCP, DefaultLimits(), allow)
	r = step{csg: 1, nsg: 3, t: true, text: names + text}.send(m)
	for r.Response.Continue() {
		r = step{csg: 1}.send(m)
	}
	if r.State != StateMore || r.Response.Transit() {
		t.Fatalf("T that was not asked for: %v", r.State)
	}
	wantStage(t, step{csg: 1, nsg: 3, t: true}.send(m), pdu.StageFullFeature, "")
}

func TestAnswerTooLong(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	var r Result
	text, _ := manyKeys(6000)
	raw := textOf(names + text)
	for len(raw) > MaxSegment {
		if r = (step{csg: 1, c: true, raw: raw[:MaxSegment]}).send(m); r.State != StateMore {
			t.Fatal(r.Cause)
		}
		raw = raw[MaxSegment:]
	}
	if r = (step{csg: 1, raw: raw}).send(m); r.Status != StatusInitiatorError {
		t.Fatalf("%d bytes of answer: %v", len(r.Data), r.Status)
	}
}

func TestB116_FullSegment(t *testing.T) {
	text := textOf(names)
	text = append(text, make([]byte, MaxSegment-len(text))...)
	m := New(TransportISER, DefaultLimits(), allow)
	wantMore(t, step{csg: 1, raw: text}.send(m), "TargetPortalGroupTag=1")
}

// TestProposals: what the initiator does not bring up and whose default is more than we can do.
func TestProposals(t *testing.T) {
	l := DefaultLimits()
	l.FirstBurstLength, l.TargetRecvDataSegmentLength = 4096, 2048
	tcpAnswer := "TargetPortalGroupTag=1 MaxRecvDataSegmentLength=262144 FirstBurstLength=4096"
	iserKeys := names + "RDMAExtensions=Yes"
	iserAnswer := "TargetPortalGroupTag=1 RDMAExtensions=Yes FirstBurstLength=4096 TargetRecvDataSegmentLength=2048"
	for _, tt := range []struct {
		name        string
		on          Transport
		first, then string
		answer      string
		want        Status
		burst, recv uint32
	}{
		{"agreed", TransportTCP, names, "FirstBurstLength=4096", tcpAnswer, 0, 4096, 262144},
		{"agreed in hexadecimal", TransportTCP, names, "FirstBurstLength=0x1000", tcpAnswer, 0, 4096, 262144},
		{"less", TransportTCP, names, "FirstBurstLength=1024", tcpAnswer, 0, 1024, 262144},
		{"not answered", TransportTCP, names, "", tcpAnswer, 0, 4096, 262144},
		{"refused", TransportTCP, names, "FirstBurstLength=Reject", tcpAnswer, 0, 4096, 262144},
		{"widened", TransportTCP, names, "FirstBurstLength=65536", tcpAnswer, StatusInitiatorError, 0, 0},
		{"nonsense", TransportTCP, names, "FirstBurstLength=few", tcpAnswer, StatusInitiatorError, 0, 0},
		{"iSER", TransportISER, iserKeys, "FirstBurstLength=4096 TargetRecvDataSegmentLength=512", iserAnswer, 0, 4096, 512},
		{"iSER not answered", TransportISER, iserKeys, "", iserAnswer, 0, 4096, 2048},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := New(tt.on, l, allow)
			wantMore(t, operational(tt.first).send(m), tt.answer)
			r := operational(tt.then).send(m)
			if r.Status != tt.want {
				t.Fatalf("%v %s", r.Status, r.Cause)
			}
			if tt.want != StatusSuccess {
				return
			}
			wantStage(t, r, pdu.StageFullFeature, "")
			if p := m.Params(); p.FirstBurstLength != tt.burst || p.MaxRecvDataSegmentLength != tt.recv {
				t.Errorf("%+v", p)
			}
		})
	}
	// Nothing is proposed in a discovery session, nor without unsolicited data.
	m := New(TransportTCP, l, allow)
	wantStage(t, operational(discovery).send(m), pdu.StageFullFeature, "MaxRecvDataSegmentLength=262144")
	m = New(TransportTCP, l, allow)
	wantStage(t, operational(names+"ImmediateData=No InitialR2T=Yes").send(m), pdu.StageFullFeature,
		"TargetPortalGroupTag=1 ImmediateData=No InitialR2T=Yes MaxRecvDataSegmentLength=262144")
}

func TestParamsOverISER(t *testing.T) {
	m := New(TransportISER, DefaultLimits(), allow)
	operational(names + "RDMAExtensions=Yes MaxRecvDataSegmentLength=65536 InitiatorRecvDataSegmentLength=512 TargetRecvDataSegmentLength=1024 " +
		"ImmediateData=Yes InitialR2T=No MaxOutstandingUnexpectedPDUs=16 iSERHelloRequired=Yes TaggedBufferForSolicitedDataOnly=Yes MaxAHSLength=0").send(m)
	p := m.Params()
	want := defaultParams(TransportISER)
	want.MaxSendDataSegmentLength, want.InitiatorRecvDataSegmentLength = 512, 512
	want.MaxRecvDataSegmentLength, want.TargetRecvDataSegmentLength = 1024, 1024
	want.RDMAExtensions, want.MaxOutstandingUnexpectedPDUs, want.ISERHelloRequired = true, 16, true
	want.TaggedBufferForSolicitedDataOnly, want.MaxAHSLength = true, 0
	if p != want {
		t.Errorf("%+v\nwant\n%+v", p, want)
	}
	// An initiator's buffers in a discovery session stay those of login, whatever it declares.
	m = New(TransportISER, DefaultLimits(), allow)
	operational(discovery + "MaxRecvDataSegmentLength=262144").send(m)
	if p := m.Params(); p.MaxSendDataSegmentLength != MaxSegment || p.MaxRecvDataSegmentLength != MaxSegment || p.SessionType != SessionDiscovery {
		t.Errorf("%+v", p)
	}
}

// TestEngineFails turns a result into a refusal.
func TestEngineFails(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	s := operational(names)
	if r := s.send(m); r.State != StateComplete {
		t.Fatal(r.Cause)
	}
	r := m.Fail(StatusOutOfResources, "no memory")
	checkRefusal(t, s, r, StatusOutOfResources)
	// known-faults B1: something else than a login comes first.
	r = New(TransportTCP, DefaultLimits(), allow).Fail(StatusInvalidDuringLogin, "NOP-Out before login")
	if r.State != StateFailed || r.Response.BHS().Opcode() != pdu.OpLoginResponse || r.Response.StatusClass() != 2 || r.Response.StatusDetail() != 0x0b {
		t.Errorf("%+v", r)
	}
}

// TestB11_ISID: session matching sees the bytes of the ISID.
func TestB11_ISID(t *testing.T) {
	var got Names
	m := New(TransportTCP, DefaultLimits(), func(n Names) Decision { got = n; return Decision{} })
	s := operational("InitiatorName=IQN.2016-04.com.Open-iSCSI:Client TargetName=" + strings.ToUpper(testTarget))
	s.edit = func(r *pdu.LoginRequest) { r.SetISID([6]byte{1, 2, 3, 4, 5, 6}); r.SetTSIH(9); r.SetCID(0xfffe) }
	s.send(m)
	want := Names{InitiatorName: testInitiator, TargetName: testTarget, ISID: [6]byte{1, 2, 3, 4, 5, 6}, TSIH: 9, CID: 0xfffe}
	if got != want || m.Names() != want {
		t.Errorf("%+v", got)
	}
}

// passphrase is an authenticator of two steps: it asks a question and wants the right answer, and proves itself then.
type passphrase struct {
	methods []string
	calls   []string
}

func (p *passphrase) Methods() []string { return p.methods }

func (p *passphrase) Step(method string, keys []KeyValue) ([]KeyValue, bool, Status, string) {
	var said []string
	for _, kv := range keys {
		said = append(said, kv.Key+"="+kv.Value)
	}
	p.calls = append(p.calls, method+":"+strings.Join(said, ","))
	switch strings.Join(said, ",") {
	case "":
		return nil, false, StatusSuccess, ""
	case "CHAP_A=5":
		return []KeyValue{{"CHAP_A", "5"}, {"CHAP_I", "7"}, {"CHAP_C", "0x0102"}}, false, StatusSuccess, ""
	case "CHAP_N=user,CHAP_R=0xaa":
		return nil, true, StatusSuccess, ""
	case "CHAP_N=user,CHAP_R=0xaa,CHAP_I=9,CHAP_C=0x03":
		return []KeyValue{{"CHAP_N", "disk"}, {"CHAP_R", "0xbb"}}, true, StatusSuccess, ""
	}
	return nil, false, StatusAuthenticationFailure, "wrong secret"
}

func secured(a Authenticator) func(Names) Decision {
	return func(Names) Decision { return Decision{TargetPortalGroupTag: 1, Authenticator: a} }
}

// TestB20_MutualAuthentication goes through four steps; no answer has anything of the one before it.
func TestB20_MutualAuthentication(t *testing.T) {
	for _, on := range []Transport{TransportTCP, TransportISER} {
		a := &passphrase{methods: []string{"CHAP"}}
		m := New(on, DefaultLimits(), secured(a))
		wantMore(t, step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=CHAP,None"}.send(m), "TargetPortalGroupTag=1 AuthMethod=CHAP")
		wantMore(t, step{csg: 0, text: "CHAP_A=5"}.send(m), "CHAP_A=5 CHAP_I=7 CHAP_C=0x0102")
		if m.AuthMethod() != "None" {
			t.Error("proven too early")
		}
		wantStage(t, step{csg: 0, nsg: 1, t: true, text: "CHAP_N=user CHAP_R=0xaa CHAP_I=9 CHAP_C=0x03"}.send(m), pdu.StageOperational, "CHAP_N=disk CHAP_R=0xbb")
		if m.AuthMethod() != "CHAP" {
			t.Error(m.AuthMethod())
		}
		want := "RDMAExtensions=Yes"
		if on == TransportTCP {
			want = "RDMAExtensions=No MaxRecvDataSegmentLength=262144"
		}
		wantStage(t, operational("RDMAExtensions=Yes").send(m), pdu.StageFullFeature, want)
		if len(a.calls) != 3 || a.calls[0] != "CHAP:" {
			t.Errorf("calls %q", a.calls)
		}
	}
}

func TestAuthenticationRefusals(t *testing.T) {
	offer := step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=CHAP"}
	for name, steps := range map[string][]step{
		"B35 no security stage":         {operational(names)},
		"B35 discovery without":         {operational(discovery)},
		"B41 only None":                 {{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=None"}},
		"no AuthMethod":                 {{csg: 0, nsg: 1, t: true, text: names}},
		"no AuthMethod, later":          {{csg: 0, text: names}, {csg: 0, nsg: 3, t: true}},
		"other methods":                 {{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=KRB5,SRP"}},
		"wrong answer":                  {offer, {csg: 0, text: "CHAP_A=5"}, {csg: 0, nsg: 1, t: true, text: "CHAP_N=user CHAP_R=0xab"}},
		"answer before the question":    {offer, {csg: 0, nsg: 1, t: true, text: "CHAP_R=0xaa"}},
		"None after CHAP was agreed on": {{csg: 0, text: names + "AuthMethod=CHAP"}, {csg: 0, nsg: 1, t: true, text: "AuthMethod=None"}},
	} {
		m := New(TransportTCP, DefaultLimits(), secured(&passphrase{methods: []string{"CHAP"}}))
		var r Result
		for i, s := range steps {
			if r = s.send(m); r.State == StateFailed && i != len(steps)-1 || r.Response.Transit() {
				t.Errorf("%s: request %d: %v %s", name, i+1, r.State, r.Cause)
			}
		}
		want := StatusAuthenticationFailure
		if strings.HasPrefix(name, "None after") {
			want = StatusInitiatorError
		}
		if r.State != StateFailed || r.Status != want {
			t.Errorf("%s: %v %v %s", name, r.State, r.Status, r.Cause)
		}
	}
	// T is withheld as long as nothing is proven.
	m := New(TransportTCP, DefaultLimits(), secured(&passphrase{methods: []string{"CHAP"}}))
	wantMore(t, offer.send(m), "TargetPortalGroupTag=1 AuthMethod=CHAP")
	wantMore(t, step{csg: 0, nsg: 3, t: true}.send(m), "")
	// Proof that may be given need not be.
	m = New(TransportTCP, DefaultLimits(), secured(&passphrase{methods: []string{"CHAP", "None"}}))
	wantStage(t, step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=None,CHAP"}.send(m), pdu.StageOperational, "TargetPortalGroupTag=1 AuthMethod=None")
	m = New(TransportTCP, DefaultLimits(), secured(&passphrase{methods: []string{"CHAP", "None"}}))
	wantMore(t, step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=CHAP,None"}.send(m), "TargetPortalGroupTag=1 AuthMethod=CHAP")
}

func TestFullFeatureKey(t *testing.T) {
	for _, tt := range []struct {
		on         Transport
		id         string
		key, value string
		answer     string
		send       uint32
	}{
		{TransportTCP, names, "MaxRecvDataSegmentLength", "65536", "", 65536},
		{TransportTCP, names, "MaxRecvDataSegmentLength", "4294967296", "", 1<<24 - 1},
		{TransportTCP, names, "MaxRecvDataSegmentLength", "100", "Reject", 16384},
		{TransportTCP, names, "MaxRecvDataSegmentLength", "x", "Reject", 16384},
		{TransportTCP, names, "MaxRecvDataSegmentLength", strings.Repeat("1", 300), "Reject", 16384},
		{TransportTCP, names, "InitiatorAlias", "box", "", 16384},
		{TransportTCP, names, "MaxBurstLength", "512", "Reject", 16384},
		{TransportTCP, names, "HeaderDigest", "CRC32C", "Reject", 16384},
		{TransportTCP, names, "TargetName", "x", "Reject", 16384},
		{TransportTCP, names, "CHAP_A", "5", "Reject", 16384},
		{TransportTCP, names, "X-a", "1", "NotUnderstood", 16384},
		{TransportTCP, names, "X-a", "NotUnderstood", "", 16384},
		{TransportTCP, discovery, "MaxRecvDataSegmentLength", "65536", "", 65536},
		{TransportISER, names + "RDMAExtensions=Yes InitiatorRecvDataSegmentLength=1024 ", "MaxRecvDataSegmentLength", "65536", "", 1024},
		{TransportISER, discovery, "MaxRecvDataSegmentLength", "65536", "", 8192},
		{TransportISER, discovery, "MaxRecvDataSegmentLength", "4096", "", 4096},
	} {
		m := New(tt.on, DefaultLimits(), allow)
		if r := operational(tt.id + "MaxRecvDataSegmentLength=16384").send(m); r.State != StateComplete {
			t.Fatal(r.Cause)
		}
		if a := m.FullFeatureKey(tt.key, []byte(tt.value)); a != tt.answer || m.Params().MaxSendDataSegmentLength != tt.send {
			t.Errorf("%v %s=%.20s: %q, %d", tt.on, tt.key, tt.value, a, m.Params().MaxSendDataSegmentLength)
		}
	}
}

// TestDataIsKept: the caller may reuse what it gave.
func TestDataIsKept(t *testing.T) {
	m := New(TransportTCP, DefaultLimits(), allow)
	req, data := step{csg: 1, c: true, text: names + "Max"}.request()
	data = data[:len(data)-1]
	m.Request(req, data)
	copy(data, bytes.Repeat([]byte{'!'}, len(data)))
	wantStage(t, step{csg: 1, nsg: 3, t: true, raw: []byte("BurstLength=512\x00")}.send(m), pdu.StageFullFeature,
		"TargetPortalGroupTag=1 MaxBurstLength=512 MaxRecvDataSegmentLength=262144")
}
