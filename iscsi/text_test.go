package iscsi

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

func TestSendTargets(t *testing.T) {
	w := newWorld(t, nil)
	_, dev := newUnit(t, w.store, iqnOther)
	w.addTarget(iqnOther, dev, func(c *TargetConfig) {
		// B29: who may log in finds it, who may not does not.
		c.Authorize = func(i Initiator) *Refusal {
			if i.Name != hostA {
				return &Refusal{Cause: "not in the list"}
			}
			return nil
		}
	})
	w.node.SetPortals([]Portal{{Addr: addr("0.0.0.0:3261"), Tag: 1, TCP: true, ISER: true}})
	one := "TargetName=" + iqn + "\x00TargetAddress=10.0.0.1:3261,1\x00"
	two := "TargetName=" + iqnOther + "\x00TargetAddress=10.0.0.1:3261,1\x00"
	rejected := "SendTargets=Reject\x00"
	for _, c := range []struct {
		who       string
		discovery bool
		ask, want string
	}{
		{hostA, true, "SendTargets=All", one + two},
		{hostB, true, "SendTargets=All", one},
		{hostA, true, "SendTargets=" + iqnOther, two},
		{hostB, true, "SendTargets=" + iqnOther, ""},
		{hostA, true, "SendTargets=iqn.2026-01.test:none", ""},
		{hostA, true, "SendTargets=", rejected},
		{hostA, true, "SendTargets=All\x00SendTargets=All\x00", one + two + rejected},
		{hostA, false, "SendTargets=", one},
		{hostA, false, "SendTargets=" + iqn, one},
		{hostA, false, "SendTargets=" + iqnOther, ""},
		{hostA, false, "SendTargets=All", rejected},
		{hostA, false, "", ""},
		{hostA, false, "X-com.example.key=1\x00", "X-com.example.key=NotUnderstood\x00"},
		{hostA, false, "HeaderDigest=CRC32C\x00", "HeaderDigest=Reject\x00"},
	} {
		for _, info := range []ConnInfo{tcpInfo(), iserInfo()} {
			n := names(c.who, 1)
			if c.discovery {
				n = discoveryNames(c.who)
			}
			p := w.connect(info).login(n)
			if got := p.fetch(c.ask); got != c.want {
				t.Errorf("%v, discovery %v: %q gives %q, want %q", info.Transport, c.discovery, c.ask, got, c.want)
			}
			p.logout(pdu.LogoutCloseSession, 0)
		}
	}
}

// B25, B27, B28, B32: the addresses that are offered.
func TestPortalAddresses(t *testing.T) {
	port := func(a string) Portal { return Portal{Addr: addr(a), Tag: 1, TCP: true, ISER: true} }
	for _, c := range []struct {
		name          string
		local, remote string
		portals       []Portal
		iser          bool
		want          string
	}{
		{"no portals known", "10.0.0.1:3260", "10.0.0.9:1", nil, false, "10.0.0.1:3260,1"},
		{"wildcard", "10.0.0.1:3261", "10.0.0.9:1", []Portal{port("0.0.0.0:3261")}, false, "10.0.0.1:3261,1"},
		{"IPv6 wildcard, IPv6 peer", "[2001:db8::1]:3260", "[2001:db8::9]:1", []Portal{port("[::]:3260")}, false, "[2001:db8::1]:3260,1"},
		{"IPv6 wildcard, IPv4 peer", "[::ffff:10.0.0.1]:3260", "[::ffff:10.0.0.9]:1", []Portal{port("[::]:3260")}, false, "10.0.0.1:3260,1"},
		{"both wildcards", "10.0.0.1:3260", "10.0.0.9:1", []Portal{port("0.0.0.0:3260"), port("[::]:3260")}, false, "10.0.0.1:3260,1"},
		{"IPv4 wildcard seen from IPv6", "[2001:db8::1]:3260", "[2001:db8::9]:1", []Portal{port("0.0.0.0:3260"), port("[2001:db8::1]:3260")}, false, "[2001:db8::1]:3260,1"},
		{"zone", "[fe80::1%eth0]:3260", "[fe80::9%eth0]:1", []Portal{port("[fe80::1%eth0]:3260")}, false, "[fe80::1]:3260,1"},
		{"link-local from elsewhere", "10.0.0.1:3260", "10.0.0.9:1", []Portal{port("[fe80::1%eth0]:3260"), port("10.0.0.1:3260")}, false, "10.0.0.1:3260,1"},
		{"link-local of another link", "[fe80::1%eth0]:3260", "[fe80::9%eth0]:1", []Portal{port("[fe80::2%eth1]:3260"), port("[fe80::1%eth0]:3260")}, false, "[fe80::1]:3260,1"},
		{"loopback from elsewhere", "10.0.0.1:3260", "10.0.0.9:1", []Portal{port("127.0.0.1:3260"), port("10.0.0.1:3260")}, false, "10.0.0.1:3260,1"},
		{"loopback", "127.0.0.1:3260", "127.0.0.1:1", []Portal{port("127.0.0.1:3260")}, false, "127.0.0.1:3260,1"},
		{"own portal first", "10.0.1.1:3260", "10.0.1.9:1", []Portal{port("10.0.0.1:3260"), port("10.0.1.1:3260")}, false, "10.0.1.1:3260,1 10.0.0.1:3260,1"},
		{"other group", "10.0.0.1:3260", "10.0.0.9:1", []Portal{{Addr: addr("10.0.2.1:3260"), Tag: 2, TCP: true}, port("10.0.0.1:3260")}, false, "10.0.0.1:3260,1"},
		{"TCP only, asked over iSER", "10.0.0.1:3260", "10.0.0.9:1", []Portal{{Addr: addr("10.0.2.1:3260"), Tag: 1, TCP: true}, port("10.0.0.1:3260")}, true, "10.0.0.1:3260,1"},
		{"iSER only, asked over TCP", "10.0.0.1:3260", "10.0.0.9:1", []Portal{{Addr: addr("10.0.2.1:3260"), Tag: 1, ISER: true}}, false, "10.0.2.1:3260,1"},
	} {
		w := newWorld(t, nil)
		w.node.SetPortals(c.portals)
		info := ConnInfo{Local: addr(c.local), Remote: addr(c.remote)}
		if c.iser {
			info.Transport = login.TransportISER
		}
		p := w.connect(info).login(discoveryNames(hostA))
		var got []string
		for _, kv := range strings.Split(p.fetch("SendTargets=All"), "\x00") {
			if a, ok := strings.CutPrefix(kv, "TargetAddress="); ok {
				got = append(got, a)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

// An answer of any length, in PDUs of any length (known-faults B24).
func TestB24_LongAnswers(t *testing.T) {
	w := newWorld(t, nil)
	var want strings.Builder
	for i := range 10000 {
		if _, err := w.node.AddTarget(TargetConfig{Name: fmt.Sprintf("iqn.2026-01.many:%05d", i), PortalGroupTag: 1, Device: w.dev}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&want, "TargetName=iqn.2026-01.many:%05d\x00TargetAddress=10.0.0.1:3260,1\x00", i)
	}
	fmt.Fprintf(&want, "TargetName=%s\x00TargetAddress=10.0.0.1:3260,1\x00", iqn)
	for _, size := range []string{"512", "8192", "262144"} {
		p := w.connect(tcpInfo()).login(discoveryNames(hostA), kv("MaxRecvDataSegmentLength", size))
		if got := p.fetch("SendTargets=All"); got != want.String() {
			t.Errorf("segments of %s: %d bytes, want %d", size, len(got), want.Len())
		}
	}
	// A name that is longer than 128 bytes goes over several PDUs of a normal session over iSER.
	long := "iqn.2026-01.test:" + strings.Repeat("x", 200)
	_, dev := newUnit(t, w.store, "iqn.2026-01.test:long")
	w.addTarget(long, dev, nil)
	n := names(hostA, 1)
	n.TargetName = long
	p := w.connect(iserInfo()).login(n)
	if got := p.fetch("SendTargets="); got != "TargetName="+long+"\x00TargetAddress=10.0.0.1:3260,1\x00" {
		t.Errorf("%q", got)
	}
}

// B8: a text request without data but with the C bit, and requests that come in parts.
func TestB8_ContinuedRequests(t *testing.T) {
	w := newWorld(t, nil)
	p := w.connect(tcpInfo()).login(discoveryNames(hostA))
	ttt := uint32(pdu.ReservedTag)
	for _, part := range []string{"", "SendTar", "", "gets=A", ""} {
		p.text(part, func(r *pdu.TextRequest) {
			r.SetFinal(false)
			r.SetContinue(true)
			r.SetTargetTransferTag(ttt)
		})
		s := p.expect(pdu.OpTextResponse)
		r := s.bhs.TextResponse()
		if len(s.data) != 0 || r.Final() || r.Continue() || r.TargetTransferTag() == pdu.ReservedTag {
			t.Fatalf("after %q: %d bytes, F %v C %v", part, len(s.data), r.Final(), r.Continue())
		}
		ttt = r.TargetTransferTag()
	}
	p.text("ll", func(r *pdu.TextRequest) { r.SetTargetTransferTag(ttt) })
	s := p.expect(pdu.OpTextResponse)
	if !strings.HasPrefix(string(s.data), "TargetName="+iqn) || !s.bhs.TextResponse().Final() {
		t.Errorf("%q", s.data)
	}
}

func TestTextErrors(t *testing.T) {
	w := newWorld(t, nil)
	more := func(ttt uint32) func(*pdu.TextRequest) {
		return func(r *pdu.TextRequest) {
			r.SetFinal(false)
			r.SetContinue(true)
			r.SetTargetTransferTag(ttt)
		}
	}
	for name, f := range map[string]func(p *peer){
		"transfer tag out of nowhere": func(p *peer) { p.text("", func(r *pdu.TextRequest) { r.SetTargetTransferTag(5) }) },
		"not a pair":                  func(p *peer) { p.text("SendTargets", nil) },
		"another task tag": func(p *peer) {
			p.text("Send", more(pdu.ReservedTag))
			s := p.expect(pdu.OpTextResponse)
			p.text("Targets=All", func(r *pdu.TextRequest) {
				r.SetTargetTransferTag(s.bhs.TextResponse().TargetTransferTag())
				r.SetInitiatorTaskTag(8)
			})
		},
		"too much": func(p *peer) {
			ttt := uint32(pdu.ReservedTag)
			for range 8 {
				p.text(strings.Repeat("x", 8192), more(ttt))
				s := p.expect(pdu.OpTextResponse)
				ttt = s.bhs.TextResponse().TargetTransferTag()
			}
			p.text("x", more(ttt))
		},
		"keys while the answer is fetched": func(p *peer) {
			for i := range 20 {
				if _, err := w.node.AddTarget(TargetConfig{Name: fmt.Sprintf("iqn.2026-01.many:%05d", i), PortalGroupTag: 1, Device: w.dev}); err != nil {
					t.Fatal(err)
				}
			}
			p.text("SendTargets=All", nil)
			s := p.expect(pdu.OpTextResponse)
			p.text("SendTargets=All", func(r *pdu.TextRequest) { r.SetTargetTransferTag(s.bhs.TextResponse().TargetTransferTag()) })
		},
	} {
		p := w.connect(tcpInfo()).login(discoveryNames(hostA), kv("MaxRecvDataSegmentLength", "512"))
		f(p)
		s := p.expect(pdu.OpReject)
		if s.bhs.Reject().Reason() != pdu.RejectProtocolError {
			t.Errorf("%s: %v", name, s.bhs.Reject().Reason())
		}
		if p.c.text.active || len(p.c.text.in)+len(p.c.text.out) != 0 {
			t.Errorf("%s: something is left of the negotiation", name)
		}
		p.fetch("SendTargets=All")
	}
}

// A request with a reserved transfer tag begins anew.
func TestTextReset(t *testing.T) {
	w := newWorld(t, nil)
	p := w.connect(tcpInfo()).login(discoveryNames(hostA))
	p.text("SendTargets=iqn.2026-01.t", func(r *pdu.TextRequest) { r.SetFinal(false); r.SetContinue(true) })
	p.expect(pdu.OpTextResponse)
	if got := p.fetch("SendTargets=" + iqn); !strings.Contains(got, iqn) {
		t.Errorf("%q", got)
	}
	// A negotiation that goes on: neither F nor C.
	p.text("SendTargets="+iqn, func(r *pdu.TextRequest) { r.SetFinal(false) })
	s := p.expect(pdu.OpTextResponse)
	r := s.bhs.TextResponse()
	if r.Final() || r.Continue() || len(s.data) == 0 {
		t.Errorf("F %v C %v, %d bytes", r.Final(), r.Continue(), len(s.data))
	}
	p.text("", func(q *pdu.TextRequest) { q.SetTargetTransferTag(r.TargetTransferTag()) })
	if s := p.expect(pdu.OpTextResponse); !s.bhs.TextResponse().Final() || len(s.data) != 0 {
		t.Error("the end of the negotiation")
	}
}

func TestDeclarationInFullFeaturePhase(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	if got := p.fetch("MaxRecvDataSegmentLength=1024\x00"); got != "" {
		t.Errorf("%q", got)
	}
	if p.maxSend != 1024 || p.c.Params().MaxSendDataSegmentLength != 1024 {
		t.Errorf("the datamover has %d, the engine %d", p.maxSend, p.c.Params().MaxSendDataSegmentLength)
	}
	if s := p.ping(pattern(2000, 0), true); len(s.data) != 1024 {
		t.Errorf("%d bytes", len(s.data))
	}
}

func TestFormatAddress(t *testing.T) {
	for in, want := range map[string]string{"1.2.3.4:5": "1.2.3.4:5,7", "[2001:db8::1]:3260": "[2001:db8::1]:3260,7", "[fe80::1%eth0]:1": "[fe80::1]:1,7"} {
		if got := formatAddress(netip.MustParseAddrPort(in), 7); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
