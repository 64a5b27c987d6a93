package iscsi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

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
