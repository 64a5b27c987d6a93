package login

import (
	"fmt"
	"strings"
	"testing"

	"iserd/iscsi/pdu"
)

// TestKeys offers keys in the one request of a login that goes straight to full feature, and looks at the answers.
func TestKeys(t *testing.T) {
	small := DefaultLimits()
	small.MaxBurstLength, small.FirstBurstLength, small.MaxOutstandingR2T = 65536, 32768, 2
	small.InitialR2T, small.ImmediateData, small.Digests = true, false, false
	small.DefaultTime2Wait, small.DefaultTime2Retain = 5, 10
	small.InitiatorRecvDataSegmentLength = 4096
	const tcp, iser = TransportTCP, TransportISER
	const declared = " MaxRecvDataSegmentLength=262144"
	rdma := "RDMAExtensions=Yes "
	for _, tt := range []struct {
		name     string
		on       Transport
		limits   *Limits
		identity string // names if empty
		keys     string
		want     string // after the portal group tag
	}{
		{"nothing", tcp, nil, "", "", declared},
		{"B4 declared once the initiator declared", tcp, nil, "", "MaxRecvDataSegmentLength=8192", declared},
		{"B4 discovery too", tcp, nil, discovery, "", declared},
		{"B19 clamped to our maximum", tcp, &small, "", "ImmediateData=No MaxBurstLength=16777215", "ImmediateData=No MaxBurstLength=65536" + declared},
		{"B19 16 MiB, more than the standard's maximum", tcp, nil, "", "MaxBurstLength=16777216", "MaxBurstLength=16776192" + declared},
		{"B19 64 bits", tcp, nil, "", "MaxBurstLength=0xffffffffffffffff", "MaxBurstLength=16776192" + declared},
		{"B22 first burst bounded by burst before it", tcp, nil, "", "MaxBurstLength=8192 FirstBurstLength=65536", "MaxBurstLength=8192 FirstBurstLength=8192" + declared},
		{"B22 first burst bounded by burst after it", tcp, nil, "", "FirstBurstLength=65536 MaxBurstLength=8192", "MaxBurstLength=8192 FirstBurstLength=8192" + declared},
		{"B22 first burst bounded by the default burst", tcp, nil, "", "FirstBurstLength=16777215", "FirstBurstLength=262144" + declared},
		{"too short a burst", tcp, nil, "", "MaxBurstLength=511", "MaxBurstLength=Reject" + declared},
		{"no number", tcp, nil, "", "MaxBurstLength=lots FirstBurstLength=", "MaxBurstLength=Reject FirstBurstLength=Reject" + declared},
		{"a range is no number", tcp, nil, "", "MaxBurstLength=512~1024", "MaxBurstLength=Reject" + declared},
		{"hexadecimal", tcp, nil, "", "MaxOutstandingR2T=0x4", "MaxOutstandingR2T=4" + declared},
		{"R2Ts", tcp, &small, "", "ImmediateData=No MaxOutstandingR2T=64", "ImmediateData=No MaxOutstandingR2T=2" + declared},
		{"no R2T at all", tcp, nil, "", "MaxOutstandingR2T=0", "MaxOutstandingR2T=Reject" + declared},
		{"InitialR2T or", tcp, nil, "", "InitialR2T=No", "InitialR2T=No" + declared},
		{"InitialR2T or yes", tcp, nil, "", "InitialR2T=Yes", "InitialR2T=Yes" + declared},
		{"InitialR2T ours", tcp, &small, "", "ImmediateData=Yes InitialR2T=No", "ImmediateData=No InitialR2T=Yes" + declared},
		{"no boolean", tcp, nil, "", "InitialR2T=yes ImmediateData=1", "InitialR2T=Reject ImmediateData=Reject" + declared},
		{"ImmediateData and", tcp, nil, "", "ImmediateData=No", "ImmediateData=No" + declared},
		{"ImmediateData proposed", tcp, &small, "", "", declared + " ImmediateData=No"},
		{"order", tcp, nil, "", "DataPDUInOrder=No DataSequenceInOrder=No", "DataPDUInOrder=Yes DataSequenceInOrder=Yes" + declared},
		{"one connection, no recovery", tcp, nil, "", "MaxConnections=8 ErrorRecoveryLevel=2", "MaxConnections=1 ErrorRecoveryLevel=0" + declared},
		{"recovery level 3", tcp, nil, "", "ErrorRecoveryLevel=3", "ErrorRecoveryLevel=0" + declared},
		{"times", tcp, &small, "", "ImmediateData=No DefaultTime2Wait=2 DefaultTime2Retain=20", "ImmediateData=No DefaultTime2Wait=5 DefaultTime2Retain=10" + declared},
		{"longer wait", tcp, nil, "", "DefaultTime2Wait=60", "DefaultTime2Wait=60" + declared},
		{"too long a wait", tcp, nil, "", "DefaultTime2Wait=3601", "DefaultTime2Wait=Reject" + declared},
		{"digest, theirs first", tcp, nil, "", "HeaderDigest=CRC32C,None DataDigest=None,CRC32C", "HeaderDigest=CRC32C DataDigest=None" + declared},
		{"digest unknown first", tcp, nil, "", "HeaderDigest=SHA,CRC32C", "HeaderDigest=CRC32C" + declared},
		{"digest not wanted", tcp, &small, "", "ImmediateData=No HeaderDigest=CRC32C,None", "ImmediateData=No HeaderDigest=None" + declared},
		{"digest none fits", tcp, &small, "", "ImmediateData=No HeaderDigest=CRC32C DataDigest=", "ImmediateData=No HeaderDigest=Reject DataDigest=Reject" + declared},
		{"B5 no digest in discovery", tcp, nil, discovery, "HeaderDigest=CRC32C,None DataDigest=CRC32C,None", "HeaderDigest=None DataDigest=None" + declared},
		{"B5 no digest in discovery, nothing else", tcp, nil, discovery, "HeaderDigest=CRC32C", "HeaderDigest=Reject" + declared},
		{"session keys in discovery", tcp, nil, discovery, "MaxConnections=1 InitialR2T=No ImmediateData=Yes MaxBurstLength=8192 FirstBurstLength=8192 MaxOutstandingR2T=1 ErrorRecoveryLevel=0",
			"MaxConnections=Irrelevant InitialR2T=Irrelevant ImmediateData=Irrelevant MaxBurstLength=Irrelevant MaxOutstandingR2T=Irrelevant ErrorRecoveryLevel=0 FirstBurstLength=Irrelevant" + declared},
		{"obsolete", tcp, nil, "", "IFMarker=Yes OFMarker=No IFMarkInt=2048~8192 OFMarkInt=2048", "IFMarker=No OFMarker=No IFMarkInt=Reject OFMarkInt=Reject" + declared},
		{"unknown", tcp, nil, "", "X-com.example=1 Nonsense=2", "X-com.example=NotUnderstood Nonsense=NotUnderstood" + declared},
		{"answers to nothing are not answered", tcp, nil, "", "X-a=NotUnderstood TargetAlias=NotUnderstood MaxBurstLength=Irrelevant ImmediateData=Reject", declared},
		{"a target's keys", tcp, nil, "", "TargetAlias=me TargetAddress=1.2.3.4:3260,1 TargetPortalGroupTag=1", "TargetAlias=Reject TargetAddress=Reject TargetPortalGroupTag=Reject" + declared},
		{"full feature's key", tcp, nil, "", "SendTargets=All", "SendTargets=Reject" + declared},
		{"declarations", tcp, nil, "", "NodeArchitecture=x InitiatorAlias=y", declared},
		{"later standards", tcp, nil, "", "TaskReporting=FastAbort,RFC3720 iSCSIProtocolLevel=2", "TaskReporting=RFC3720 iSCSIProtocolLevel=1" + declared},
		{"twice the same", tcp, nil, "", "MaxBurstLength=8192 MaxBurstLength=8192 X-a=1 X-a=1", "MaxBurstLength=8192 X-a=NotUnderstood" + declared},
		{"RDMA on TCP", tcp, nil, "", "RDMAExtensions=Yes InitiatorRecvDataSegmentLength=8192 TargetRecvDataSegmentLength=8192 MaxAHSLength=0 MaxOutstandingUnexpectedPDUs=4 iSERHelloRequired=No TaggedBufferForSolicitedDataOnly=Yes",
			"RDMAExtensions=No InitiatorRecvDataSegmentLength=Irrelevant TargetRecvDataSegmentLength=Irrelevant" + declared},
		{"chap at the operational stage", tcp, nil, "", "CHAP_A=5", "CHAP_A=Irrelevant" + declared},
		{"AuthMethod at the operational stage", tcp, nil, "", "AuthMethod=None", "AuthMethod=None" + declared},

		{"iSER like ib_iser", iser, nil, "", rdma + "InitialR2T=No ImmediateData=Yes MaxBurstLength=16776192 FirstBurstLength=262144 InitiatorRecvDataSegmentLength=262144 TargetRecvDataSegmentLength=8192",
			"RDMAExtensions=Yes InitialR2T=Yes ImmediateData=Yes MaxBurstLength=16776192 InitiatorRecvDataSegmentLength=262144 TargetRecvDataSegmentLength=8192 FirstBurstLength=262144"},
		{"iSER like libiscsi", iser, nil, "", "HeaderDigest=None,CRC32C DataDigest=None " + rdma + "MaxRecvDataSegmentLength=8192 InitiatorRecvDataSegmentLength=8192 TargetRecvDataSegmentLength=8192 IFMarker=No",
			"HeaderDigest=None DataDigest=None RDMAExtensions=Yes InitiatorRecvDataSegmentLength=8192 TargetRecvDataSegmentLength=8192 IFMarker=No"},
		{"iSER clamps the segments", iser, &small, "", rdma + "ImmediateData=Yes InitiatorRecvDataSegmentLength=16777215 TargetRecvDataSegmentLength=16777215", "RDMAExtensions=Yes ImmediateData=No InitiatorRecvDataSegmentLength=4096 TargetRecvDataSegmentLength=8192"},
		{"B18 512 bytes", iser, nil, "", rdma + "InitiatorRecvDataSegmentLength=512 TargetRecvDataSegmentLength=512", "RDMAExtensions=Yes InitiatorRecvDataSegmentLength=512 TargetRecvDataSegmentLength=512"},
		{"B18 not named at all", iser, nil, "", rdma, "RDMAExtensions=Yes"},
		{"iSER has no digest", iser, nil, "", rdma + "HeaderDigest=CRC32C DataDigest=CRC32C,None", "RDMAExtensions=Yes HeaderDigest=Reject DataDigest=None"},
		{"iSER declarations", iser, nil, "", rdma + "MaxOutstandingUnexpectedPDUs=8 MaxAHSLength=0 TaggedBufferForSolicitedDataOnly=Yes iSERHelloRequired=Yes", "RDMAExtensions=Yes"},
		{"iSER bad declarations", iser, nil, "", rdma + "MaxOutstandingUnexpectedPDUs=-1 MaxAHSLength=4294967296 iSERHelloRequired=maybe", "RDMAExtensions=Yes MaxOutstandingUnexpectedPDUs=Reject MaxAHSLength=Reject iSERHelloRequired=Reject"},
		{"C12 discovery over iSER has no RDMA key", iser, nil, discovery, "MaxRecvDataSegmentLength=32768 HeaderDigest=None DataDigest=None", "HeaderDigest=None DataDigest=None"},
		{"discovery over iSER with RDMA keys", iser, nil, discovery, rdma + "TargetRecvDataSegmentLength=512", "RDMAExtensions=Irrelevant TargetRecvDataSegmentLength=Irrelevant"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := DefaultLimits()
			if tt.limits != nil {
				l = *tt.limits
			}
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
			id := tt.identity
			if id == "" {
				id = names
			}
			m := New(tt.on, l, allow)
			r := operational(id + tt.keys).send(m)
			got := strings.TrimSpace(strings.TrimPrefix(answers(t, r.Data), "TargetPortalGroupTag=1"))
			// A number that we propose needs an answer; here only whether one is missing matters.
			if r.State == StateMore {
				got = strings.TrimSpace(strings.Replace(got, "FirstBurstLength=32768", "", 1))
				r = operational("").send(m)
			}
			if r.State != StateComplete {
				t.Fatalf("%v: %v %s", r.State, r.Status, r.Cause)
			}
			if got != strings.TrimSpace(tt.want) {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if p := m.Params(); p.FirstBurstLength > p.MaxBurstLength {
				t.Errorf("FirstBurstLength %d, MaxBurstLength %d", p.FirstBurstLength, p.MaxBurstLength)
			}
		})
	}
}

// TestRefusals has logins that end, at the latest, with the last of their requests.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", 224-len("iqn.2001-04.com.example:"))
	security := func(text string) step { return step{csg: 0, nsg: 1, t: true, text: text} }
	change := func(s step, f func(*pdu.LoginRequest)) step { s.edit = f; return s }
	first := step{csg: 0, text: names}
	manySmall := func(n int) []step {
		var all []step
		for range n {
			all = append(all, step{csg: 0, c: true, text: "A=1"})
		}
		return all
	}
	big := make([]byte, 8192)
	for i := range big {
		big[i] = 'A'
	}
	for _, tt := range []struct {
		name  string
		on    Transport
		steps []step
		want  Status
	}{
		{"no text", TransportTCP, []step{security("")}, StatusMissingParameter},
		{"no InitiatorName", TransportTCP, []step{security("TargetName=" + testTarget)}, StatusMissingParameter},
		{"empty InitiatorName", TransportTCP, []step{security("InitiatorName= TargetName=" + testTarget)}, StatusMissingParameter},
		{"no TargetName", TransportTCP, []step{security("InitiatorName=" + testInitiator)}, StatusMissingParameter},
		{"TargetName in the second request", TransportTCP, []step{{csg: 0, text: "InitiatorName=" + testInitiator}}, StatusMissingParameter},
		{"session type", TransportTCP, []step{security(names[:strings.Index(names, "SessionType")] + "SessionType=Weird")}, StatusSessionTypeUnsupported},
		{"version", TransportTCP, []step{change(security(names), func(r *pdu.LoginRequest) { r.SetVersionMin(1); r.SetVersionMax(1) })}, StatusUnsupportedVersion},
		{"B9 InitiatorName of 224 bytes", TransportTCP, []step{security("InitiatorName=iqn.2001-04.com.example:" + long + " TargetName=" + testTarget)}, StatusInitiatorError},
		{"B9 TargetName of 224 bytes", TransportTCP, []step{security("InitiatorName=" + testInitiator + " TargetName=iqn.2001-04.com.example:" + long)}, StatusInitiatorError},
		{"B9 value of 256 bytes", TransportTCP, []step{security(names + "InitiatorAlias=" + strings.Repeat("a", 256))}, StatusInitiatorError},
		{"B9 number of 300 digits", TransportTCP, []step{operational(names + "MaxBurstLength=" + strings.Repeat("1", 300))}, StatusInitiatorError},
		{"name with control character", TransportTCP, []step{{csg: 0, raw: []byte("InitiatorName=iqn.\n\x00TargetName=a\x00")}}, StatusInitiatorError},
		{"name not UTF-8", TransportTCP, []step{{csg: 0, raw: []byte("InitiatorName=iqn.\xff\x00TargetName=a\x00")}}, StatusInitiatorError},
		{"alias with line end", TransportTCP, []step{{csg: 0, raw: []byte("InitiatorName=a\x00TargetName=b\x00InitiatorAlias=x\ny\x00")}}, StatusInitiatorError},
		{"text without equals", TransportTCP, []step{security(names + "Nonsense")}, StatusInitiatorError},
		{"random bytes", TransportTCP, []step{{csg: 0, raw: []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")}}, StatusInitiatorError},
		{"B6 another InitiatorName", TransportTCP, []step{first, security("InitiatorName=iqn.2001-04.com.example:b")}, StatusInitiatorError},
		{"B6 another InitiatorName at once", TransportTCP, []step{security(names + "InitiatorName=iqn.2001-04.com.example:b")}, StatusInitiatorError},
		{"another TargetName", TransportTCP, []step{first, security("TargetName=iqn.2001-04.com.example:b")}, StatusInitiatorError},
		{"another SessionType", TransportTCP, []step{{csg: 0, text: "InitiatorName=a TargetName=b"}, security("SessionType=Discovery")}, StatusInitiatorError},
		{"contradiction", TransportTCP, []step{operational(names + "MaxBurstLength=8192 MaxBurstLength=4096")}, StatusInitiatorError},
		{"contradiction later", TransportTCP, []step{{csg: 1, text: names + "InitialR2T=Yes"}, operational("InitialR2T=No")}, StatusInitiatorError},
		{"two declarations", TransportTCP, []step{{csg: 1, text: names + "MaxRecvDataSegmentLength=8192"}, operational("MaxRecvDataSegmentLength=4096")}, StatusInitiatorError},
		{"declared too short", TransportTCP, []step{operational(names + "MaxRecvDataSegmentLength=100")}, StatusInitiatorError},
		{"declared nonsense", TransportTCP, []step{operational(names + "MaxRecvDataSegmentLength=big")}, StatusInitiatorError},
		{"B10 DataSegmentLength of 64 KiB", TransportTCP, []step{change(security(names), func(r *pdu.LoginRequest) { r.BHS().SetDataSegmentLength(0xffff) })}, StatusInitiatorError},
		{"B10 8193 bytes", TransportTCP, []step{{csg: 0, raw: make([]byte, 8193)}}, StatusInitiatorError},
		{"additional header", TransportTCP, []step{change(security(names), func(r *pdu.LoginRequest) { r.BHS().SetTotalAHSLength(4) })}, StatusInitiatorError},
		{"T and C", TransportTCP, []step{{csg: 0, nsg: 1, t: true, c: true, text: names}}, StatusInitiatorError},
		{"CSG 2", TransportTCP, []step{{csg: 2, nsg: 3, t: true, text: names}}, StatusInitiatorError},
		{"CSG 3", TransportTCP, []step{{csg: 3, text: names}}, StatusInitiatorError},
		{"NSG 0", TransportTCP, []step{{csg: 0, nsg: 0, t: true, text: names}}, StatusInitiatorError},
		{"NSG 2", TransportTCP, []step{{csg: 0, nsg: 2, t: true, text: names}}, StatusInitiatorError},
		{"NSG back", TransportTCP, []step{{csg: 1, nsg: 0, t: true, text: names}}, StatusInitiatorError},
		{"NSG the same", TransportTCP, []step{{csg: 1, nsg: 1, t: true, text: names}}, StatusInitiatorError},
		{"stage back", TransportTCP, []step{{csg: 1, text: names}, {csg: 0}}, StatusInitiatorError},
		{"stage forward without T", TransportTCP, []step{first, {csg: 1}}, StatusInitiatorError},
		{"stage kept after it was left", TransportTCP, []step{security(names), {csg: 0}}, StatusInitiatorError},
		{"ISID", TransportTCP, []step{first, change(security(""), func(r *pdu.LoginRequest) { r.SetISID([6]byte{1}) })}, StatusInitiatorError},
		{"TSIH", TransportTCP, []step{first, change(security(""), func(r *pdu.LoginRequest) { r.SetTSIH(1) })}, StatusInitiatorError},
		{"CID", TransportTCP, []step{first, change(security(""), func(r *pdu.LoginRequest) { r.SetCID(2) })}, StatusInitiatorError},
		{"task tag", TransportTCP, []step{first, change(security(""), func(r *pdu.LoginRequest) { r.SetInitiatorTaskTag(2) })}, StatusInitiatorError},
		{"CmdSN", TransportTCP, []step{first, change(security(""), func(r *pdu.LoginRequest) { r.SetCmdSN(r.CmdSN().Next()) })}, StatusInitiatorError},
		{"CHAP wanted, no CHAP here", TransportTCP, []step{security(names + "AuthMethod=CHAP")}, StatusAuthenticationFailure},
		{"endless continuation", TransportTCP, manySmall(maxRequests + 1), StatusInitiatorError},
		{"text of 72 KiB", TransportTCP, []step{{csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big},
			{csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}, {csg: 0, c: true, raw: big}}, StatusInitiatorError},
		{"B22 burst after first burst", TransportTCP, []step{{csg: 1, text: names + "FirstBurstLength=65536"}, operational("MaxBurstLength=8192")}, StatusInitiatorError},
		{"iSER without RDMAExtensions", TransportISER, []step{operational(names)}, StatusInitiatorError},
		{"iSER with RDMAExtensions=No", TransportISER, []step{operational(names + "RDMAExtensions=No")}, StatusInitiatorError},
		{"iSER from security to full feature", TransportISER, []step{{csg: 0, nsg: 3, t: true, text: names}}, StatusInitiatorError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := New(tt.on, DefaultLimits(), allow)
			for i, s := range tt.steps {
				r := s.send(m)
				if r.State == StateFailed {
					checkRefusal(t, s, r, tt.want)
					if i != len(tt.steps)-1 {
						t.Errorf("failed at request %d of %d: %s", i+1, len(tt.steps), r.Cause)
					}
					if again := first.send(m); again.State != StateFailed {
						t.Error("a refused login goes on")
					}
					return
				}
				if r.State == StateComplete {
					t.Fatal("complete")
				}
			}
			t.Fatal("not refused")
		})
	}
}

func checkRefusal(t *testing.T, s step, r Result, want Status) {
	t.Helper()
	req, _ := s.request()
	resp := &r.Response
	got := Status(uint16(resp.StatusClass())<<8 | uint16(resp.StatusDetail()))
	if r.Status != want || got != want || r.Cause == "" {
		t.Errorf("%v, on the wire %v (%s), want %v", r.Status, got, r.Cause, want)
	}
	if resp.BHS().Opcode() != pdu.OpLoginResponse || resp.Transit() || resp.Continue() ||
		resp.InitiatorTaskTag() != req.InitiatorTaskTag() || resp.ISID() != req.ISID() || resp.BHS().DataSegmentLength() != len(r.Data) {
		t.Errorf("response % x", resp[:])
	}
	if len(r.Cause) > 400 || strings.ContainsFunc(r.Cause, func(c rune) bool { return c < ' ' }) {
		t.Errorf("cause %q", r.Cause)
	}
}

func TestDecisions(t *testing.T) {
	for _, d := range []Decision{
		{Status: StatusNotFound, Cause: "no such target"},
		{Status: StatusAuthorizationFailure, Cause: "ACL"},
		{Status: StatusTooManyConnections, Cause: "MaxConnections"},
		{Status: StatusSessionDoesNotExist, Cause: "TSIH"},
		{Status: StatusServiceUnavailable, Cause: "offline"},
		{Status: StatusMovedTemporarily, Cause: "moved", RedirectAddress: "10.0.0.2:3260"},
		{Status: StatusMovedPermanently, Cause: "moved", RedirectAddress: "[2001:db8::1]:3260,2"},
	} {
		asked := 0
		m := New(TransportTCP, DefaultLimits(), func(Names) Decision { asked++; return d })
		s := step{csg: 0, nsg: 1, t: true, text: names + "AuthMethod=None"}
		r := s.send(m)
		checkRefusal(t, s, r, d.Status)
		want := ""
		if d.Status.Redirect() {
			want = "TargetAddress=" + d.RedirectAddress
		}
		if got := answers(t, r.Data); got != want || asked != 1 || r.State != StateFailed {
			t.Errorf("%v: %q, asked %d times", d.Status, got, asked)
		}
	}
}

func TestStatusStrings(t *testing.T) {
	for s := range statusNames {
		if !strings.Contains(s.String(), fmt.Sprintf("(%02x/%02x)", s.Class(), s.Detail())) {
			t.Errorf("%q", s)
		}
	}
	if s := Status(0x0299).String(); s != "status 02/99" {
		t.Error(s)
	}
}

func TestLimitsValidate(t *testing.T) {
	for name, f := range map[string]func(*Limits){
		"zero":       func(l *Limits) { *l = Limits{} },
		"recv":       func(l *Limits) { l.MaxRecvDataSegmentLength = 511 },
		"recv high":  func(l *Limits) { l.MaxRecvDataSegmentLength = 1 << 24 },
		"initiator":  func(l *Limits) { l.InitiatorRecvDataSegmentLength = 0 },
		"target":     func(l *Limits) { l.TargetRecvDataSegmentLength = 1 << 24 },
		"burst":      func(l *Limits) { l.MaxBurstLength = 1 },
		"first":      func(l *Limits) { l.FirstBurstLength = 1 << 25 },
		"first more": func(l *Limits) { l.FirstBurstLength, l.MaxBurstLength = 8192, 4096 },
		"no R2T":     func(l *Limits) { l.MaxOutstandingR2T = 0 },
		"R2T":        func(l *Limits) { l.MaxOutstandingR2T = 65536 },
		"wait":       func(l *Limits) { l.DefaultTime2Wait = 3601 },
		"retain":     func(l *Limits) { l.DefaultTime2Retain = 3601 },
	} {
		l := DefaultLimits()
		if l.Validate() != nil {
			t.Fatal(l.Validate())
		}
		if f(&l); l.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}
