package iscsi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/ram"
	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	iqn      = "iqn.2026-01.test:disk"
	iqnOther = "iqn.2026-01.test:other"
	hostA    = "iqn.2026-01.host:a"
	hostB    = "iqn.2026-01.host:b"
	luBytes  = 1 << 20
)

// sent is a PDU that the engine sent.
type sent struct {
	bhs  pdu.BHS
	data []byte
	task *Task
}

func (s sent) op() pdu.Opcode { return s.bhs.Opcode() }

// mover is a datamover whose other end is the test. It holds the engine to the contract of the seam.
type mover struct {
	tb   testing.TB
	c    *Connection
	info ConnInfo

	mu     sync.Mutex
	cond   *sync.Cond
	inTurn bool
	after  []func() // calls of the engine that the end of the turn makes
	sent   []sent
	log    []string

	wake    chan struct{}
	stopped chan struct{}

	// How it behaves.
	maxSend      int
	bufferLimit  int  // buffers that may be out; 0 is no limit
	holdRelease  bool // responses do not leave
	holdData     bool // GetData waits for finishData
	holdEnd      bool // ConnectionTerminate waits for finishEnd
	allocErr     error
	discard      bool // do not keep what is sent
	outData      map[uint32][]byte
	noCancel     bool
	terminateErr error

	held       []*Task
	gets       []get
	buffersOut map[int]int
	retained   map[int]bool
	handles    int
	resources  *Resources
	full       bool
	terminated bool
	graceful   bool
	notified   bool
	gone       bool
	put        map[uint32][]byte // data-in by task tag
	discarded  int               // GetData calls of length 0
	params     []login.Params

	statSN    serial.Number
	statKnown bool
	maxCmdSN  serial.Number
	maxKnown  bool
	reused    [][]byte
	reuse     bool
}

type get struct {
	t              *Task
	offset, length uint32
	dst            [][]byte
	cancelled      bool
}

func newMover(tb testing.TB, n *Node, info ConnInfo) *mover {
	m := &mover{tb: tb, info: info, wake: make(chan struct{}, 1), stopped: make(chan struct{}), maxSend: 8192,
		outData: map[uint32][]byte{}, buffersOut: map[int]int{}, retained: map[int]bool{}, put: map[uint32][]byte{}}
	m.cond = sync.NewCond(&m.mu)
	m.c = n.NewConnection(m, info)
	go func() {
		defer close(m.stopped)
		for range m.wake {
			m.turn(func() { m.c.Turn() })
			m.mu.Lock()
			gone := m.gone
			m.mu.Unlock()
			if gone {
				return
			}
		}
	}()
	return m
}

func (m *mover) errorf(format string, args ...any) { m.tb.Errorf("datamover: "+format, args...) }

// turn runs f as a turn.
func (m *mover) turn(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inTurn = true
	f()
	for len(m.after) > 0 {
		a := m.after
		m.after = nil
		for _, g := range a {
			g()
		}
	}
	m.inTurn = false
	m.cond.Broadcast()
}

func (m *mover) check(what string) {
	if !m.inTurn {
		m.errorf("%s outside a turn", what)
	}
	if m.gone {
		m.errorf("%s after DeallocateConnectionResources", what)
	}
}

func (m *mover) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mover) SendControl(b *pdu.BHS, data []byte, t *Task) {
	m.check("SendControl")
	if m.discard {
		if t != nil {
			m.held = append(m.held, t)
		}
		return
	}
	if len(data) > m.maxSend {
		m.errorf("%d bytes of data, more than %d", len(data), m.maxSend)
	}
	if !m.terminated {
		m.numbers(b)
	}
	m.sent = append(m.sent, sent{*b, append([]byte(nil), data...), t})
	if t == nil {
		return
	}
	if m.holdRelease {
		m.held = append(m.held, t)
		return
	}
	m.after = append(m.after, func() { m.release(t) })
}

func (m *mover) release(t *Task) {
	if !m.notified {
		m.c.TaskReleased(t)
	}
}

// numbers checks StatSN and the window of everything that is sent.
func (m *mover) numbers(b *pdu.BHS) {
	n := b.NOPIn()
	if m.statKnown && n.StatSN() != m.statSN {
		m.errorf("%v has StatSN %d, want %d", b.Opcode(), n.StatSN().Uint32(), m.statSN.Uint32())
	}
	m.statKnown, m.statSN = true, n.StatSN()
	if b.Opcode() != pdu.OpNOPIn || b.InitiatorTaskTag() != pdu.ReservedTag {
		m.statSN = m.statSN.Next()
	}
	if b.Opcode() == pdu.OpLoginResponse && b.LoginResponse().StatusClass() != 0 || !m.full {
		return
	}
	if m.maxKnown && n.MaxCmdSN().Less(m.maxCmdSN) {
		m.errorf("%v: MaxCmdSN goes back from %d to %d", b.Opcode(), m.maxCmdSN.Uint32(), n.MaxCmdSN().Uint32())
	}
	m.maxKnown, m.maxCmdSN = true, n.MaxCmdSN()
	if open := n.MaxCmdSN().Sub(n.ExpCmdSN()) + 1; open < 0 || open > int32(m.resources.Window) {
		m.errorf("%v: a window of %d commands, at most %d may be open", b.Opcode(), open, m.resources.Window)
	}
}

func (m *mover) PutData(t *Task) {
	m.check("PutData")
	if m.discard {
		return
	}
	var d []byte
	for _, p := range t.Command.Data {
		d = append(d, p...)
	}
	if len(d) != int(t.Command.DataInLength) {
		m.errorf("PutData: %d bytes in pieces, %d in DataInLength", len(d), t.Command.DataInLength)
	}
	m.put[t.Command.Tag] = d
}

func (m *mover) GetData(t *Task, offset, length uint32, dst [][]byte) {
	m.check("GetData")
	room := 0
	for _, d := range dst {
		room += len(d)
	}
	if room != int(length) {
		m.errorf("GetData of %d bytes into room for %d", length, room)
	}
	if length == 0 {
		m.discarded++
	}
	g := get{t: t, offset: offset, length: length, dst: dst}
	if m.holdData {
		m.gets = append(m.gets, g)
		return
	}
	m.after = append(m.after, func() { m.complete(g, nil) })
}

func (m *mover) complete(g get, err error) {
	if m.notified {
		return
	}
	if err == nil && g.length > 0 && !m.discard {
		src := m.outData[g.t.Command.Tag]
		if int(g.offset) < len(src) {
			src = src[g.offset:]
			for _, d := range g.dst {
				src = src[copy(d, src):]
			}
		}
	}
	m.c.DataCompletionNotify(g.t, err)
}

// finishData ends the GetData calls that are held.
func (m *mover) finishData(err error) {
	m.turn(func() {
		gets := m.gets
		m.gets = nil
		for _, g := range gets {
			m.complete(g, err)
		}
	})
}

func (m *mover) CancelData(t *Task) {
	m.check("CancelData")
	if m.noCancel {
		return
	}
	for i, g := range m.gets {
		if g.t == t {
			m.gets = append(m.gets[:i], m.gets[i+1:]...)
			m.after = append(m.after, func() { m.complete(g, fmt.Errorf("cancelled")) })
			return
		}
	}
}

func (m *mover) AllocateDataBuffers(t *Task, n uint32) ([][]byte, bool) {
	m.check("AllocateDataBuffers")
	if m.reuse {
		if m.reused == nil {
			m.reused = [][]byte{make([]byte, 1<<20)}
			m.reused = append(m.reused, nil)
		}
		m.reused[1] = m.reused[0][:n]
		return m.reused[1:], true
	}
	if m.bufferLimit > 0 && len(m.buffersOut) >= m.bufferLimit {
		return nil, false
	}
	m.buffersOut[t.Index]++
	// Two pieces, so that nobody counts on one.
	b := make([]byte, n)
	if n < 2 {
		return [][]byte{b}, true
	}
	return [][]byte{b[: n/3 : n/3], b[n/3:]}, true
}

func (m *mover) DeallocateTaskResources(t *Task) {
	m.check("DeallocateTaskResources")
	if _, had := m.buffersOut[t.Index]; had {
		delete(m.buffersOut, t.Index)
		if m.bufferLimit > 0 {
			m.after = append(m.after, func() {
				if !m.notified {
					m.c.BuffersNotify()
				}
			})
		}
	}
}

func (m *mover) ReleaseControl(h int) {
	m.check("ReleaseControl")
	if m.discard {
		return
	}
	if !m.retained[h] {
		m.errorf("ReleaseControl(%d), which is not retained", h)
	}
	delete(m.retained, h)
}

func (m *mover) AllocateConnectionResources(r Resources) error {
	m.check("AllocateConnectionResources")
	if m.resources != nil {
		m.errorf("AllocateConnectionResources twice")
	}
	if m.allocErr != nil {
		return m.allocErr
	}
	m.resources = &r
	return nil
}

func (m *mover) NoticeKeyValues(p login.Params) {
	m.check("NoticeKeyValues")
	m.params = append(m.params, p)
	m.maxSend = int(p.MaxSendDataSegmentLength)
	if m.info.Transport == login.TransportISER && p.SessionType == login.SessionNormal {
		m.maxSend = 128
	}
}

func (m *mover) EnableDatamover(b *pdu.BHS, data []byte) {
	m.check("EnableDatamover")
	m.full = true
	limit := m.maxSend
	m.maxSend = 8192
	m.SendControl(b, data, nil)
	m.maxSend = limit
}

func (m *mover) MaxSendDataSegmentLength() int { return m.maxSend }

func (m *mover) ConnectionTerminate(graceful bool) {
	m.check("ConnectionTerminate")
	if m.terminated {
		return
	}
	m.terminated, m.graceful = true, graceful
	if !m.holdEnd {
		m.after = append(m.after, func() { m.notifyEnd(nil) })
	}
}

func (m *mover) notifyEnd(err error) {
	if !m.notified {
		m.notified = true
		m.terminated = true
		m.c.ConnectionTerminateNotify(err)
	}
}

// lose is the loss of the peer.
func (m *mover) lose(err error) { m.turn(func() { m.notifyEnd(err) }) }

func (m *mover) DeallocateConnectionResources() {
	m.check("DeallocateConnectionResources")
	if !m.notified {
		m.errorf("DeallocateConnectionResources before ConnectionTerminateNotify")
	}
	if len(m.buffersOut) > 0 || len(m.retained) > 0 {
		m.errorf("the connection goes with %d buffers and %d receives out", len(m.buffersOut), len(m.retained))
	}
	m.gone = true
	m.Wake() // ends the goroutine
}

// --- the initiator's side ---

// peer is an initiator on a mover.
type peer struct {
	*mover
	names  login.Names
	cmdSN  serial.Number
	tag    uint32
	answer map[string]string
	tsih   uint16
	params login.Params
}

type world struct {
	tb    testing.TB
	node  *Node
	store *faultstore.Store
	lu    *scsi.LogicalUnit
	dev   *scsi.Device
	peers []*peer

	mu     sync.Mutex
	events []string
}

func (w *world) event(format string, args ...any) {
	w.mu.Lock()
	w.events = append(w.events, fmt.Sprintf(format, args...))
	w.mu.Unlock()
}

func (w *world) eventList() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

// newWorld makes a node with one target of one logical unit over a RAM store that can be made to fail.
func newWorld(tb testing.TB, change func(*Config)) *world {
	w := &world{tb: tb}
	inner, err := ram.New(luBytes)
	if err != nil {
		tb.Fatal(err)
	}
	w.store = faultstore.New(inner)
	w.lu, w.dev = newUnit(tb, w.store, iqn)
	cfg := Config{QueueDepth: 8, NopInterval: -1, TMFWait: 100 * time.Millisecond, ReinstatementWait: 100 * time.Millisecond}
	cfg.Events = Events{
		Login:      func(e SessionEvent) { w.event("login %s", e.Name) },
		Logout:     func(e SessionEvent) { w.event("logout %s", e.Name) },
		Reinstated: func(e SessionEvent) { w.event("reinstated %s", e.Name) },
		Lost:       func(e SessionEvent) { w.event("lost %s: %s", e.Name, e.Cause) },
		Refused:    func(e RefusedEvent) { w.event("refused %s %v: %s", e.Name, e.Status, e.Cause) },
		Probe:      func(e ProbeEvent) { w.event("probe") },
		TaskManagement: func(e TaskManagementEvent) {
			w.event("tmf %v %v tasks=%d late=%d", e.Function, e.Response, e.Tasks, e.Late)
		},
	}
	if change != nil {
		change(&cfg)
	}
	w.node = NewNode(cfg)
	w.addTarget(iqn, w.dev, nil)
	tb.Cleanup(w.close)
	return w
}

func newUnit(tb testing.TB, store backstore.Store, target string) (*scsi.LogicalUnit, *scsi.Device) {
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: target, Store: store, Identity: scsi.NewIdentity(target)})
	if err != nil {
		tb.Fatal(err)
	}
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: target + ",t,0x0001", RelativePortID: 1})
	if err := dev.SetLUN(0, lu); err != nil {
		tb.Fatal(err)
	}
	return lu, dev
}

func (w *world) addTarget(name string, dev *scsi.Device, change func(*TargetConfig)) *Target {
	cfg := TargetConfig{Name: name, Alias: "alias", PortalGroupTag: 1, Device: dev}
	if change != nil {
		change(&cfg)
	}
	t, err := w.node.AddTarget(cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	return t
}

func (w *world) close() {
	w.store.Release()
	for _, p := range w.peers {
		p.mu.Lock()
		p.holdEnd = false
		p.mu.Unlock()
		p.lose(nil)
	}
	for _, p := range w.peers {
		select {
		case <-p.stopped:
		case <-time.After(5 * time.Second):
			p.mu.Lock()
			w.tb.Errorf("a connection did not end: phase %v, %d tasks busy, %d in stores", p.c.phase, p.c.busy, p.c.inStore)
			p.mu.Unlock()
			close(p.wake)
		}
	}
	// The ticker ends at its next tick.
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.node.mu.Lock()
		ticking := w.node.ticking
		w.node.mu.Unlock()
		if !ticking {
			break
		}
	}
	_ = w.store.Close()
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func tcpInfo() ConnInfo {
	return ConnInfo{Transport: login.TransportTCP, Local: addr("10.0.0.1:3260"), Remote: addr("10.0.0.9:40000"), Portal: addr("0.0.0.0:3260")}
}

func iserInfo() ConnInfo {
	i := tcpInfo()
	i.Transport, i.Device = login.TransportISER, "rxe0"
	return i
}

// connect makes a connection that has not logged in.
func (w *world) connect(info ConnInfo) *peer {
	p := &peer{mover: newMover(w.tb, w.node, info), tag: 100, cmdSN: serial.New(1000)}
	w.peers = append(w.peers, p)
	return p
}

func names(initiator string, isid byte) login.Names {
	return login.Names{InitiatorName: initiator, TargetName: iqn, SessionType: login.SessionNormal, ISID: [6]byte{0x80, 0, 0, 0, 0, isid}, CID: 1}
}

func discoveryNames(initiator string) login.Names {
	return login.Names{InitiatorName: initiator, SessionType: login.SessionDiscovery, ISID: [6]byte{0x80, 1}, CID: 1}
}

// loginStart sends the login requests without waiting for the final response.
func (p *peer) tryLogin(n login.Names, keys []login.KeyValue) error {
	p.names = n
	i := &login.Initiator{Transport: p.info.Transport, Names: n, Keys: keys, Tag: 1}
	for range 10 {
		req, data := i.Next()
		req.SetCmdSN(p.cmdSN)
		p.send(req.BHS(), data)
		s, ok := p.receive()
		if !ok {
			return fmt.Errorf("no login response")
		}
		if s.op() != pdu.OpLoginResponse {
			return fmt.Errorf("%v instead of a login response", s.op())
		}
		done, err := i.Response(s.bhs.LoginResponse(), s.data)
		if err != nil {
			return err
		}
		if done {
			p.answer, p.tsih, p.params = i.Answers, i.TSIH, i.Params()
			return nil
		}
	}
	return fmt.Errorf("login does not end")
}

func (p *peer) login(n login.Names, keys ...login.KeyValue) *peer {
	p.tb.Helper()
	if len(keys) == 0 {
		keys = nil
	}
	if err := p.tryLogin(n, keys); err != nil {
		p.tb.Fatalf("login of %s: %v", n.InitiatorName, err)
	}
	return p
}

// session logs in over TCP and takes the unit attention of a new nexus.
func (w *world) session(initiator string, isid byte, keys ...login.KeyValue) *peer {
	w.tb.Helper()
	p := w.connect(tcpInfo()).login(names(initiator, isid), keys...)
	p.ready()
	return p
}

// ready takes pending unit attentions.
func (p *peer) ready() {
	p.tb.Helper()
	for range 10 {
		p.command(0, "00", 0, nil)
		if r := p.response(); r.bhs.SCSIResponse().Status() == 0 {
			return
		}
	}
	p.tb.Fatal("unit attentions without end")
}

// send gives a PDU to the engine.
func (p *peer) send(b *pdu.BHS, data []byte) { p.sendAHS(b, nil, data, false) }

func (p *peer) sendAHS(b *pdu.BHS, ahs, data []byte, damaged bool) {
	h := *b
	h.SetDataSegmentLength(len(data))
	h.SetTotalAHSLength(len(ahs))
	buf := append([]byte(nil), data...)
	p.turn(func() {
		if p.notified {
			return
		}
		p.handles++
		ctl := &Control{BHS: &h, AHS: ahs, Data: buf, Handle: p.handles, DataDigestError: damaged}
		// The engine may retain in ControlNotify only, and release later only.
		p.retained[ctl.Handle] = true
		p.c.ControlNotify(ctl)
		if !ctl.Retain {
			if !p.retained[ctl.Handle] {
				p.errorf("released a buffer that was not retained")
			}
			delete(p.retained, ctl.Handle)
			for i := range buf {
				buf[i] = 0xee
			}
		}
	})
}

// receive gives the next PDU that the engine sent; false after two seconds without one, or when the connection ended.
func (p *peer) receive() (sent, bool) {
	timer := time.AfterFunc(2*time.Second, func() {
		p.mu.Lock()
		p.cond.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	end := time.Now().Add(2 * time.Second)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.sent) == 0 {
		if p.notified || time.Now().After(end) {
			return sent{}, false
		}
		p.cond.Wait()
	}
	s := p.sent[0]
	p.sent = p.sent[1:]
	return s, true
}

func (p *peer) expect(op pdu.Opcode) sent {
	p.tb.Helper()
	s, ok := p.receive()
	if !ok {
		p.tb.Fatalf("nothing came, want %v", op)
	}
	if s.op() != op {
		p.tb.Fatalf("got %v, want %v", s.op(), op)
	}
	return s
}

// nothing says that the engine has sent nothing.
func (p *peer) nothing() {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sent) > 0 {
		p.tb.Fatalf("got %v, want nothing", p.sent[0].op())
	}
}

func (p *peer) closed() {
	p.tb.Helper()
	p.await("the end of the connection", func() bool { return p.terminated })
}

// await waits until f, which is called inside the lock, is true.
func (p *peer) await(what string, f func() bool) {
	p.tb.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		ok := f()
		p.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			p.tb.Fatalf("waited in vain for %s", what)
		}
	}
}

func (p *peer) nextTag() uint32 { p.tag++; return p.tag }

// number gives a non-immediate request its CmdSN.
func (p *peer) number(b *pdu.BHS) {
	b.SCSICommand().SetCmdSN(p.cmdSN)
	if !b.Immediate() {
		p.cmdSN = p.cmdSN.Next()
	}
}

func cdb(s string) (c [16]byte) {
	b := make([]byte, 0, 16)
	for i := 0; i+1 < len(s); i += 2 {
		var v byte
		fmt.Sscanf(s[i:i+2], "%02x", &v)
		b = append(b, v)
	}
	copy(c[:], b)
	return
}

func rw10(op byte, lba uint32, blocks uint16) string {
	var b [10]byte
	b[0] = op
	binary.BigEndian.PutUint32(b[2:], lba)
	binary.BigEndian.PutUint16(b[7:], blocks)
	return fmt.Sprintf("%x", b)
}

// command sends a SCSI command; out not nil makes it a write whose first imm... see write.
func (p *peer) command(lun uint64, c string, in uint32, change func(*pdu.SCSICommand)) uint32 {
	var b pdu.BHS
	r := b.SCSICommand()
	r.Init()
	r.SetFinal(true)
	r.SetRead(in > 0)
	r.SetExpectedDataTransferLength(in)
	b.SetLUN(lun)
	*r.CDB() = cdb(c)
	itt := p.nextTag()
	b.SetInitiatorTaskTag(itt)
	if change != nil {
		change(r)
	}
	p.number(&b)
	p.send(&b, nil)
	return itt
}

// write sends a WRITE(10) with imm bytes of immediate data; final clear says that unsolicited data follows.
func (p *peer) write(lba uint32, data []byte, imm int, final bool) uint32 {
	var b pdu.BHS
	r := b.SCSICommand()
	r.Init()
	r.SetFinal(final)
	r.SetWrite(true)
	r.SetExpectedDataTransferLength(uint32(len(data)))
	*r.CDB() = cdb(rw10(0x2a, lba, uint16(len(data)/512)))
	itt := p.nextTag()
	b.SetInitiatorTaskTag(itt)
	p.mu.Lock()
	p.outData[itt] = data
	p.mu.Unlock()
	p.number(&b)
	p.send(&b, data[:imm])
	return itt
}

func (p *peer) read(lba uint32, blocks uint16) uint32 {
	return p.command(0, rw10(0x28, lba, blocks), uint32(blocks)*512, nil)
}

func (p *peer) response() sent { p.tb.Helper(); return p.expect(pdu.OpSCSIResponse) }

// good takes a SCSI Response that must be GOOD for the tag.
func (p *peer) good(itt uint32) sent {
	p.tb.Helper()
	s := p.response()
	if s.bhs.InitiatorTaskTag() != itt || s.bhs.SCSIResponse().Status() != 0 {
		p.tb.Fatalf("status %#x for %d, want GOOD for %d; data %x", s.bhs.SCSIResponse().Status(), s.bhs.InitiatorTaskTag(), itt, s.data)
	}
	return s
}

// checkCondition takes a SCSI Response with this sense.
func (p *peer) checkCondition(itt uint32, key scsi.SenseKey, code scsi.AdditionalSense) sent {
	p.tb.Helper()
	s := p.response()
	if s.bhs.InitiatorTaskTag() != itt || s.bhs.SCSIResponse().Status() != uint8(scsi.StatusCheckCondition) || len(s.data) < 16 {
		p.tb.Fatalf("status %#x for %d, want CHECK CONDITION for %d", s.bhs.SCSIResponse().Status(), s.bhs.InitiatorTaskTag(), itt)
	}
	if n := int(binary.BigEndian.Uint16(s.data)); n != len(s.data)-2 {
		p.tb.Fatalf("sense length %d of %d bytes", n, len(s.data)-2)
	}
	sense := s.data[2:]
	if k, c := scsi.SenseKey(sense[2]&0xf), scsi.AdditionalSense(uint16(sense[12])<<8|uint16(sense[13])); k != key || c != code {
		p.tb.Fatalf("sense %v %v, want %v %v", k, c, key, code)
	}
	return s
}

func (p *peer) dataIn(itt uint32) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.put[itt]
}

// tmf sends a task management function, immediate as initiators do.
func (p *peer) tmf(f pdu.TMFunction, lun uint64, change func(*pdu.TaskManagementRequest)) uint32 {
	var b pdu.BHS
	r := b.TaskManagementRequest()
	r.Init()
	b.SetImmediate(true)
	b.SetLUN(lun)
	r.SetFunction(f)
	r.SetReferencedTaskTag(pdu.ReservedTag)
	itt := p.nextTag()
	b.SetInitiatorTaskTag(itt)
	if change != nil {
		change(r)
	}
	p.number(&b)
	p.send(&b, nil)
	return itt
}

func (p *peer) abort(itt uint32) uint32 {
	return p.tmf(pdu.TMAbortTask, 0, func(r *pdu.TaskManagementRequest) {
		r.SetReferencedTaskTag(itt)
		r.SetRefCmdSN(p.cmdSN.Add(^uint32(0)))
	})
}

func (p *peer) tmfResponse(want pdu.TMResponse) {
	p.tb.Helper()
	if s := p.expect(pdu.OpTaskManagementResponse); s.bhs.TaskManagementResponse().Response() != want {
		p.tb.Fatalf("task management: %v, want %v", s.bhs.TaskManagementResponse().Response(), want)
	}
}

// sync waits until everything sent so far was worked on, by a ping; nothing else may be on its way.
func (p *peer) ping(data []byte, immediate bool) sent {
	p.tb.Helper()
	var b pdu.BHS
	r := b.NOPOut()
	r.Init()
	b.SetImmediate(immediate)
	b.SetInitiatorTaskTag(p.nextTag())
	r.SetTargetTransferTag(pdu.ReservedTag)
	p.number(&b)
	p.send(&b, data)
	return p.expect(pdu.OpNOPIn)
}

func (p *peer) logout(reason pdu.LogoutReason, cid uint16) sent {
	p.tb.Helper()
	var b pdu.BHS
	r := b.LogoutRequest()
	r.Init()
	b.SetImmediate(true)
	r.SetReason(reason)
	r.SetCID(cid)
	b.SetInitiatorTaskTag(p.nextTag())
	p.number(&b)
	p.send(&b, nil)
	return p.expect(pdu.OpLogoutResponse)
}

func (p *peer) text(keys string, change func(*pdu.TextRequest)) {
	var b pdu.BHS
	r := b.TextRequest()
	r.Init()
	r.SetFinal(true)
	b.SetImmediate(true)
	r.SetTargetTransferTag(pdu.ReservedTag)
	b.SetInitiatorTaskTag(7)
	if change != nil {
		change(r)
	}
	p.number(&b)
	p.send(&b, []byte(keys))
}

// fetch sends a request and collects the whole answer, over as many PDUs as it takes.
func (p *peer) fetch(keys string) string {
	p.tb.Helper()
	p.text(keys, nil)
	var all []byte
	for {
		s := p.expect(pdu.OpTextResponse)
		r := s.bhs.TextResponse()
		if s.bhs.InitiatorTaskTag() != 7 {
			p.tb.Fatalf("task tag %d in a text response, want 7", s.bhs.InitiatorTaskTag())
		}
		all = append(all, s.data...)
		if r.Final() {
			if r.TargetTransferTag() != pdu.ReservedTag || r.Continue() {
				p.tb.Fatalf("final text response with transfer tag %#x, C %v", r.TargetTransferTag(), r.Continue())
			}
			return string(all)
		}
		if r.TargetTransferTag() == pdu.ReservedTag {
			p.tb.Fatal("a text response that goes on without a transfer tag")
		}
		p.text("", func(q *pdu.TextRequest) { q.SetTargetTransferTag(r.TargetTransferTag()) })
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}
