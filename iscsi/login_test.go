package iscsi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

func status(t *testing.T, err error) login.Status {
	t.Helper()
	var r *login.RefusedError
	if !errors.As(err, &r) {
		t.Fatalf("login: %v, want a refusal", err)
	}
	return r.Status
}

func TestLoginRegistersTheSession(t *testing.T) {
	w := newWorld(t, nil)
	for _, info := range []ConnInfo{tcpInfo(), iserInfo()} {
		p := w.connect(info).login(names(hostA, byte(info.Transport)))
		if p.tsih == 0 || p.answer["TargetPortalGroupTag"] != "1" || p.answer["TargetAlias"] != "alias" {
			t.Errorf("%v: TSIH %d, answers %v", info.Transport, p.tsih, p.answer)
		}
		if got := *p.resources; got != (Resources{Tasks: 8 + taskSlack + immediateAllowance, Window: 8, Immediate: immediateAllowance}) {
			t.Errorf("resources %+v", got)
		}
		if len(p.mover.params) != 1 || p.mover.params[0].Transport != info.Transport {
			t.Errorf("NoticeKeyValues: %+v", p.mover.params)
		}
		p.ready()
	}
	list := w.node.Sessions()
	if len(list) != 2 || list[0].Initiator != hostA || list[0].Target != iqn || list[1].Device != "rxe0" || list[0].Commands == 0 {
		t.Errorf("sessions %+v", list)
	}
	if s := w.node.Stats(); s.Logins != 2 || s.InLogin != 0 || s.Sessions != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestLoginRefusals(t *testing.T) {
	w := newWorld(t, nil)
	_, dev := newUnit(t, w.store, iqnOther)
	w.addTarget(iqnOther, dev, func(c *TargetConfig) {
		c.PortalGroupTag = 2
		c.MaxSessions = 1
		c.Authorize = func(i Initiator) *Refusal {
			if i.Name == hostB {
				return &Refusal{Cause: "not in the list"}
			}
			if !i.Remote.IsValid() || !i.Local.IsValid() {
				t.Errorf("asked about %+v", i)
			}
			return nil
		}
	})
	w.connect(tcpInfo()).login(func() login.Names { n := names(hostA, 9); n.TargetName = iqnOther; return n }())
	for _, c := range []struct {
		name   string
		change func(n *login.Names)
		want   login.Status
	}{
		{"unknown target", func(n *login.Names) { n.TargetName = "iqn.2026-01.test:none" }, login.StatusNotFound},
		{"access list", func(n *login.Names) { n.InitiatorName = hostB; n.TargetName = iqnOther }, login.StatusAuthorizationFailure},
		{"unknown session", func(n *login.Names) { n.TSIH = 0x7777 }, login.StatusSessionDoesNotExist},
		{"session of another initiator", func(n *login.Names) { n.InitiatorName = hostB; n.TSIH = 1 }, login.StatusSessionDoesNotExist},
		{"discovery joins", func(n *login.Names) { *n = discoveryNames(hostA); n.TSIH = 1 }, login.StatusSessionDoesNotExist},
		{"second connection", func(n *login.Names) { n.TargetName = iqnOther; n.ISID[5] = 9; n.TSIH = 1; n.CID = 2 }, login.StatusTooManyConnections},
		{"too many sessions", func(n *login.Names) { n.TargetName = iqnOther; n.ISID[5] = 10 }, login.StatusTooManyConnections},
	} {
		n := names(hostA, 1)
		c.change(&n)
		for _, info := range []ConnInfo{tcpInfo(), iserInfo()} {
			p := w.connect(info)
			if got := status(t, p.tryLogin(n, nil)); got != c.want {
				t.Errorf("%s over %v: %v, want %v", c.name, info.Transport, got, c.want)
			}
			p.closed()
		}
	}
	if n := len(w.node.Sessions()); n != 1 {
		t.Errorf("%d sessions after refusals, want 1", n)
	}
	for _, e := range w.eventList() {
		if strings.Contains(e, "refused") && strings.HasSuffix(e, ": ") {
			t.Errorf("a refusal without a cause: %q", e)
		}
	}
}

func TestLoginOnlyThroughThePortalGroup(t *testing.T) {
	w := newWorld(t, nil)
	w.node.SetPortals([]Portal{{Addr: addr("0.0.0.0:3260"), Tag: 2, TCP: true}})
	if got := status(t, w.connect(tcpInfo()).tryLogin(names(hostA, 1), nil)); got != login.StatusNotFound {
		t.Errorf("login through a portal of another group: %v", got)
	}
	w.node.SetPortals([]Portal{{Addr: addr("0.0.0.0:3260"), Tag: 2, TCP: true}, {Addr: addr("0.0.0.0:3260"), Tag: 1, ISER: true}})
	w.session(hostA, 1)
}

// Anything but a login request before full feature phase: one Login Response of class 2, or silence, and the end.
func TestB1_NotALogin(t *testing.T) {
	for _, begun := range []bool{false, true} {
		for op := range 64 {
			w := newWorld(t, nil)
			p := w.connect(tcpInfo())
			if begun {
				i := login.Initiator{Names: names(hostA, 1), Security: true}
				req, data := i.Next()
				p.send(req.BHS(), data)
				p.expect(pdu.OpLoginResponse)
			}
			if pdu.Opcode(op) == pdu.OpLoginRequest {
				continue
			}
			var b pdu.BHS
			b.SetOpcode(pdu.Opcode(op))
			b.SetInitiatorTaskTag(3)
			p.send(&b, nil)
			if pdu.Opcode(op).FromInitiator() {
				s := p.expect(pdu.OpLoginResponse)
				if r := s.bhs.LoginResponse(); r.StatusClass() != 2 || r.StatusDetail() != 0x0b {
					t.Errorf("%v: status %x/%x, want 02/0b", pdu.Opcode(op), r.StatusClass(), r.StatusDetail())
				}
			}
			p.nothing()
			p.closed()
			w.session(hostB, 2) // the others go on
		}
	}
}

func TestMalformedEndsOneConnection(t *testing.T) {
	w := newWorld(t, nil)
	other := w.session(hostB, 2)
	p := w.connect(tcpInfo())
	p.turn(func() { p.c.MalformedNotify("header digest") })
	p.closed()
	p.nothing()
	p = w.connect(tcpInfo())
	i := login.Initiator{Names: names(hostA, 1), Security: true}
	req, data := i.Next()
	p.send(req.BHS(), data)
	p.expect(pdu.OpLoginResponse)
	p.turn(func() { p.c.MalformedNotify("a data segment of 65536 bytes"); p.c.MalformedNotify("again") })
	if s := p.expect(pdu.OpLoginResponse); s.bhs.LoginResponse().StatusClass() != 2 {
		t.Errorf("status class %d", s.bhs.LoginResponse().StatusClass())
	}
	p.closed()
	p = w.session(hostA, 1)
	p.turn(func() { p.c.MalformedNotify("header digest") })
	p.closed()
	other.ready()
	if n := w.node.Stats().Malformed; n != 4 {
		t.Errorf("%d malformed", n)
	}
}

func TestLoginTimeout(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.LoginTimeout = 40 * time.Millisecond })
	silent := w.connect(tcpInfo())
	half := w.connect(tcpInfo())
	i := login.Initiator{Names: names(hostA, 1), Security: true}
	req, data := i.Next()
	half.send(req.BHS(), data)
	half.expect(pdu.OpLoginResponse)
	silent.closed()
	half.closed()
	ok := w.session(hostA, 1)
	time.Sleep(100 * time.Millisecond)
	ok.ready()
	if n := w.node.Stats().InLogin; n != 0 {
		t.Errorf("%d connections in login", n)
	}
}

func TestConnectionsInLoginAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConnectionsInLogin = 2 })
	// Both have begun, and are not through.
	for i := range 2 {
		p := w.connect(tcpInfo())
		half := login.Initiator{Names: names(hostB, byte(i)), Security: true}
		req, data := half.Next()
		p.send(req.BHS(), data)
		p.expect(pdu.OpLoginResponse)
	}
	p := w.connect(tcpInfo())
	if got := status(t, p.tryLogin(names(hostA, 1), nil)); got != login.StatusOutOfResources {
		t.Errorf("status %v", got)
	}
	w.peers[0].lose(nil)
	w.peers[1].lose(nil)
	w.session(hostA, 1)
}

// known-faults B114: any number of connections that say nothing does not keep others from logging in.
func TestB114_SilentConnectionsMakeRoom(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConnectionsInLogin = 4 })
	first := w.connect(tcpInfo())
	for range 20 {
		w.connect(tcpInfo())
	}
	if n := w.node.Stats().InLogin; n != 4 {
		t.Errorf("%d connections in login", n)
	}
	first.await("the end of the oldest", func() bool { return first.terminated })
	w.session(hostA, 1).ready()
	if n := w.node.Stats().InLogin; n != 3 {
		t.Errorf("%d connections in login", n)
	}
	for _, p := range w.peers {
		p.lose(nil)
	}
	w.node.mu.Lock()
	defer w.node.mu.Unlock()
	if n := len(w.node.silent); n != 0 {
		t.Errorf("%d silent connections are remembered", n)
	}
}

func TestNoResourcesRefusesLogin(t *testing.T) {
	w := newWorld(t, nil)
	old := w.session(hostA, 1)
	p := w.connect(iserInfo())
	p.allocErr = errors.New("pool of buffers is empty")
	if got := status(t, p.tryLogin(names(hostA, 1), nil)); got != login.StatusOutOfResources {
		t.Errorf("status %v", got)
	}
	old.ready() // was not reinstated by a login that failed
}

// B13: an initiator that vanishes is found out; B104: probes only when it is silent, one at a time.
func TestB13_DeadPeer(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.NopInterval, c.NopTimeout = 40*time.Millisecond, 60*time.Millisecond })
	p := w.session(hostA, 1)
	alive := w.session(hostB, 1)
	disc := w.connect(tcpInfo()).login(discoveryNames(hostA))
	login := w.connect(tcpInfo())
	stop := time.After(300 * time.Millisecond)
	pings := 0
loop:
	for {
		select {
		case <-stop:
			break loop
		default:
		}
		alive.await("a ping", func() bool { return len(alive.sent) > 0 })
		s := alive.expect(pdu.OpNOPIn)
		in := s.bhs.NOPIn()
		if s.bhs.InitiatorTaskTag() != pdu.ReservedTag || in.TargetTransferTag() == pdu.ReservedTag {
			t.Fatal("not a ping")
		}
		pings++
		var b pdu.BHS
		out := b.NOPOut()
		out.Init()
		b.SetImmediate(true)
		b.SetInitiatorTaskTag(pdu.ReservedTag)
		out.SetTargetTransferTag(in.TargetTransferTag())
		alive.number(&b)
		alive.send(&b, nil)
	}
	p.await("the end of the dead session", func() bool { return p.gone })
	p.expect(pdu.OpNOPIn)
	p.nothing()
	if p.graceful {
		t.Error("a graceful end waits for a peer that is dead")
	}
	alive.ready()
	disc.nothing()
	login.nothing()
	if s := w.node.Stats(); s.DeadPeers != 1 || pings < 2 || len(w.node.Sessions()) != 2 {
		t.Errorf("dead peers %d, pings %d, sessions %d", s.DeadPeers, pings, len(w.node.Sessions()))
	}
}

func TestB26_DiscoveryLogout(t *testing.T) {
	for _, info := range []ConnInfo{tcpInfo(), iserInfo()} {
		w := newWorld(t, nil)
		p := w.connect(info).login(discoveryNames(hostA))
		if !p.resources.Discovery || p.resources.Tasks != 0 {
			t.Errorf("resources %+v", *p.resources)
		}
		if s := p.logout(pdu.LogoutCloseSession, 1); s.bhs.LogoutResponse().Response() != pdu.LogoutSuccess {
			t.Errorf("logout: %v", s.bhs.LogoutResponse().Response())
		}
		p.await("the end", func() bool { return p.gone })
	}
}

// B33: a discovery that is simply closed is no error.
func TestB33_DiscoveryCloses(t *testing.T) {
	w := newWorld(t, nil)
	p := w.connect(tcpInfo()).login(discoveryNames(hostA))
	p.lose(nil)
	w.connect(tcpInfo()).lose(nil)
	want := []string{"login " + hostA, "logout " + hostA, "probe"}
	if got := w.eventList(); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestLogout(t *testing.T) {
	for _, c := range []struct {
		reason pdu.LogoutReason
		cid    uint16
		want   pdu.LogoutResponseCode
	}{
		{pdu.LogoutCloseSession, 0, pdu.LogoutSuccess},
		{pdu.LogoutCloseConnection, 1, pdu.LogoutSuccess},
		{pdu.LogoutCloseConnection, 2, pdu.LogoutCIDNotFound},
		{pdu.LogoutRemoveForRecovery, 1, pdu.LogoutRecoveryNotSupported},
	} {
		w := newWorld(t, nil)
		w.store.Hang(backstore.OpRead)
		p := w.session(hostA, 1)
		p.read(0, 8)
		answer := p.logout(c.reason, c.cid)
		if got := answer.bhs.LogoutResponse().Response(); got != c.want {
			t.Errorf("%v of CID %d: %v, want %v", c.reason, c.cid, got, c.want)
		}
		if c.want != pdu.LogoutSuccess {
			p.ping(nil, true)
			continue
		}
		if !p.graceful || len(w.node.Sessions()) != 0 {
			t.Errorf("%v: graceful %v, %d sessions", c.reason, p.graceful, len(w.node.Sessions()))
		}
		w.store.Release()
		p.await("the end", func() bool { return p.gone })
		p.nothing()
	}
}

func TestB103_LossWithCommandsInFlight(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 20 {
		p := w.session(hostA, byte(i))
		if i%2 == 0 {
			w.store.Hang(backstore.OpRead)
		} else {
			p.turn(func() { p.holdData = true })
		}
		for j := range 6 {
			p.read(uint32(j*8), 8)
			p.write(uint32(j*8), pattern(4096, 0), 512, true)
		}
		p.lose(errors.New("the cable was pulled"))
		p.lose(errors.New("again"))
		w.store.Release()
		p.await("the end", func() bool { return p.gone })
	}
	if n := len(w.node.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
}

func TestRequestLogout(t *testing.T) {
	w := newWorld(t, nil)
	p := w.session(hostA, 1)
	w.node.Target(iqn).Sessions()[0].RequestLogout(0)
	s := p.expect(pdu.OpAsyncMessage)
	if a := s.bhs.AsyncMessage(); a.AsyncEvent() != pdu.AsyncLogoutRequest || s.bhs.InitiatorTaskTag() != pdu.ReservedTag {
		t.Errorf("event %v", a.AsyncEvent())
	}
	p.closed()
}

func TestRemoveTarget(t *testing.T) {
	w := newWorld(t, nil)
	p, q := w.session(hostA, 1), w.connect(iserInfo()).login(names(hostB, 1))
	if err := w.node.RemoveTarget(iqn); err != nil {
		t.Fatal(err)
	}
	if s := p.expect(pdu.OpAsyncMessage); s.bhs.AsyncMessage().AsyncEvent() != pdu.AsyncSessionDrop {
		t.Errorf("event %v", s.bhs.AsyncMessage().AsyncEvent())
	}
	p.closed()
	q.closed()
	q.nothing()
	// What we end is no loss that anyone should be alarmed by.
	if n := w.node.Stats(); n.Removed != 2 || n.Lost != 0 || strings.Contains(strings.Join(w.eventList(), "\n"), "lost") {
		t.Errorf("%d removed, %d lost, events %q", n.Removed, n.Lost, w.eventList())
	}
	if got := status(t, w.connect(tcpInfo()).tryLogin(names(hostA, 1), nil)); got != login.StatusNotFound {
		t.Errorf("status %v", got)
	}
	if err := w.node.RemoveTarget(iqn); !errors.Is(err, ErrNoTarget) {
		t.Errorf("second removal: %v", err)
	}
}

func TestAddTarget(t *testing.T) {
	w := newWorld(t, nil)
	for name, cfg := range map[string]TargetConfig{
		"no name":    {Device: w.dev},
		"bad name":   {Name: "disk", Device: w.dev},
		"no device":  {Name: iqnOther},
		"twice":      {Name: strings.ToUpper(iqn), Device: w.dev},
		"long alias": {Name: iqnOther, Device: w.dev, Alias: strings.Repeat("a", 256)},
	} {
		if _, err := w.node.AddTarget(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestShutdown(t *testing.T) {
	w := newWorld(t, nil)
	w.store.Hang(backstore.OpWrite)
	p, q := w.session(hostA, 1), w.connect(iserInfo()).login(names(hostB, 1))
	idle := w.connect(tcpInfo())
	p.write(0, pattern(512, 0), 512, true)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := w.node.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a write in the store: %v", err)
	}
	q.closed()
	idle.closed()
	p.closed()
	if got := status(t, w.connect(tcpInfo()).tryLogin(names(hostA, 1), nil)); got != login.StatusServiceUnavailable {
		t.Errorf("status %v", got)
	}
	w.store.Release()
	if err := w.node.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

// B115: many logins at once.
func TestB115_LoginStorm(t *testing.T) {
	w := newWorld(t, nil)
	const n = 200
	peers := make([]*peer, n)
	for i := range peers {
		peers[i] = w.connect(tcpInfo())
	}
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			// Half of them come twice.
			if err := p.tryLogin(names(fmt.Sprintf("iqn.2026-01.host:%d", i/2*2%150), byte(i/150)), nil); err != nil && !strings.Contains(err.Error(), "no login response") {
				t.Errorf("login %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	seen := map[uint16]bool{}
	for _, s := range w.node.Sessions() {
		if s.TSIH == 0 || seen[s.TSIH] {
			t.Errorf("TSIH %d twice", s.TSIH)
		}
		seen[s.TSIH] = true
	}
}

func TestConfigValidate(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := (Config{QueueDepth: 512, NopInterval: -1, Limits: login.DefaultLimits()}).Validate(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]Config{
		"depth":          {QueueDepth: 513},
		"negative depth": {QueueDepth: -1},
		"login timeout":  {LoginTimeout: -1},
		"nop timeout":    {NopTimeout: 2 * time.Hour},
		"nop interval":   {NopInterval: 2 * time.Hour},
		"wait":           {ReinstatementWait: -1},
		"tmf":            {TMFWait: 2 * time.Hour},
		"sessions":       {MaxSessions: 65536},
		"in login":       {MaxConnectionsInLogin: -1},
		"limits":         {Limits: login.Limits{MaxBurstLength: 1}},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
