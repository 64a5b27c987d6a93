package iser

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// stubNode makes stub engines: just enough protocol to move PDUs and data, without login's text or a device server. It
// lets the datamover be tested by itself, and counts what the datamover promised.
type stubNode struct {
	res      iscsi.Resources
	inPlace  []byte      // registered memory that reads are served from
	hold     atomic.Bool // commands wait for release, as with a slow store
	noLogin  bool        // never answers
	badAlloc atomic.Int64

	mu      sync.Mutex
	engines []*stub
	faults  []string

	live, malformed, terminated atomic.Int64
}

func newStubNode() *stubNode {
	return &stubNode{res: iscsi.Resources{Tasks: 64, Window: 32, Immediate: 8}}
}

func (n *stubNode) make(dm iscsi.Datamover, info iscsi.ConnInfo) engine {
	e := &stub{node: n, dm: dm, info: info}
	n.mu.Lock()
	n.engines = append(n.engines, e)
	n.mu.Unlock()
	n.live.Add(1)
	return e
}

func (n *stubNode) fault(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.faults) < 20 {
		n.faults = append(n.faults, fmt.Sprintf(format, args...))
	}
}

func (n *stubNode) last() *stub {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.engines) == 0 {
		return nil
	}
	return n.engines[len(n.engines)-1]
}

// stub is one connection's engine.
type stub struct {
	node *stubNode
	dm   iscsi.Datamover
	info iscsi.ConnInfo

	inTurn    atomic.Int32
	ffp       bool
	ended     bool
	gone      bool
	tasks     []iscsi.Task
	state     []stubState
	free      []int
	waiting   fifo[int] // tasks that wait for buffers
	held      []int     // tasks at the slow store
	retained  []int
	releases  atomic.Int64 // how many held tasks may go on
	terminate atomic.Int64 // 1 graceful, 2 at once
	turns     atomic.Int64
	dataErrs  atomic.Int64
	lastErr   atomic.Value
	written   atomic.Int64
	statSN    uint32
	response  pdu.BHS
	small     [64]byte
}

type stubState struct {
	busy, data, responded bool
}

func (e *stub) enter() {
	if e.inTurn.Add(1) != 1 {
		e.node.fault("two turns at a time")
	}
	if e.ended && e.gone {
		e.node.fault("notified after the end")
	}
}
func (e *stub) leave() { e.inTurn.Add(-1) }

func (e *stub) ControlNotify(ctl *iscsi.Control) {
	e.enter()
	defer e.leave()
	if e.ended {
		e.node.fault("ControlNotify after the end")
		return
	}
	op := ctl.BHS.Opcode()
	if !e.ffp {
		if e.node.noLogin {
			return
		}
		if op != pdu.OpLoginRequest {
			e.dm.ConnectionTerminate(false)
			return
		}
		e.response.Reset()
		e.response.SetOpcode(pdu.OpLoginResponse)
		if !ctl.BHS.Final() { // more to come
			e.dm.SendControl(&e.response, ctl.Data, nil)
			return
		}
		if err := e.dm.AllocateConnectionResources(e.node.res); err != nil {
			e.response[36] = 3
			e.lastErr.Store(err)
			e.dm.SendControl(&e.response, nil, nil)
			e.dm.ConnectionTerminate(true)
			return
		}
		e.tasks = make([]iscsi.Task, e.node.res.Tasks)
		e.state = make([]stubState, e.node.res.Tasks)
		for i := range e.tasks {
			e.tasks[i].Index = i
			e.free = append(e.free, i)
		}
		e.dm.NoticeKeyValues(login.Params{MaxBurstLength: 1 << 20})
		e.response.SetFinal(true)
		e.ffp = true
		e.dm.EnableDatamover(&e.response, ctl.Data)
		return
	}
	switch op {
	case pdu.OpNOPOut:
		e.response.Reset()
		e.response.SetOpcode(pdu.OpNOPIn)
		e.response.SetInitiatorTaskTag(ctl.BHS.InitiatorTaskTag())
		e.dm.SendControl(&e.response, ctl.Data[:min(len(ctl.Data), e.dm.MaxSendDataSegmentLength())], nil)
	case pdu.OpSCSICommand:
		e.command(ctl)
	case pdu.OpLogoutRequest:
		e.response.Reset()
		e.response.SetOpcode(pdu.OpLogoutResponse)
		e.dm.SendControl(&e.response, nil, nil)
		e.dm.ConnectionTerminate(true)
	default:
		e.dm.ConnectionTerminate(false)
	}
}

// command: a READ gives the bytes lba+i, a WRITE is checked for the same; INQUIRY answers from the Go heap.
func (e *stub) command(ctl *iscsi.Control) {
	if len(e.free) == 0 {
		e.node.fault("no task slot left")
		e.dm.ConnectionTerminate(false)
		return
	}
	i := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	t := &e.tasks[i]
	t.BHS, t.Private = *ctl.BHS, ctl.Private
	e.state[i] = stubState{busy: true}
	c := &t.Command
	c.CDB = t.BHS[32:48]
	n := binary.BigEndian.Uint32(t.BHS[20:])
	c.ExpectedIn, c.ExpectedOut, c.DataInLength, c.DataOutLength = 0, 0, 0, 0
	c.HasIn, c.HasOut = t.BHS[1]&0x40 != 0, t.BHS[1]&0x20 != 0
	c.Data = nil
	t.ImmediateLength = uint32(len(ctl.Data))
	if c.HasIn {
		c.ExpectedIn = n
	} else if c.HasOut {
		c.ExpectedOut = n
		e.written.Add(int64(len(ctl.Data)))
	}
	if len(ctl.Data) > 0 && c.CDB[1] == 1 { // keep the immediate data
		ctl.Retain = true
		e.retained = append(e.retained, ctl.Handle)
	}
	e.step(i)
}

func (e *stub) step(i int) {
	t := &e.tasks[i]
	c := &t.Command
	lba := binary.BigEndian.Uint32(c.CDB[2:])
	switch {
	case c.HasIn && c.CDB[0] == 0x12:
		c.Data = append(c.Data[:0], e.small[:min(int(c.ExpectedIn), len(e.small))])
		for k := range e.small {
			e.small[k] = byte(lba) + byte(k)
		}
		c.DataInLength = uint32(len(c.Data[0]))
		e.dm.PutData(t)
	case c.HasIn && c.CDB[0] == 0x88: // a long answer from memory nobody registered
		b := make([]byte, c.ExpectedIn)
		pattern(b, lba)
		c.Data = [][]byte{b}
		c.DataInLength = c.ExpectedIn
		e.dm.PutData(t)
	case c.HasIn && e.node.inPlace != nil:
		c.DataInLength = c.ExpectedIn
		if c.Data == nil {
			c.Data = make([][]byte, 0, 1)
		}
		c.Data = append(c.Data[:0], e.node.inPlace[lba:lba+c.ExpectedIn])
		e.dm.PutData(t)
	case c.HasIn || c.HasOut:
		want := c.ExpectedIn + c.ExpectedOut - t.ImmediateLength
		if want == 0 {
			break
		}
		bufs, ok := e.dm.AllocateDataBuffers(t, want)
		if !ok {
			e.node.badAlloc.Add(1)
			e.waiting.push(i)
			return
		}
		c.Data = bufs
		if c.HasOut {
			c.DataOutLength = want
			e.state[i].data = true
			e.dm.GetData(t, t.ImmediateLength, want, bufs)
			return
		}
		at := lba
		for _, b := range bufs {
			pattern(b, at)
			at += uint32(len(b))
		}
		c.DataInLength = want
		e.dm.PutData(t)
	}
	if e.node.hold.Load() {
		e.held = append(e.held, i)
		return
	}
	e.respond(i, 0)
}

func (e *stub) respond(i int, status byte) {
	t := &e.tasks[i]
	e.statSN++
	e.response.Reset()
	e.response.SetOpcode(pdu.OpSCSIResponse)
	e.response[1] = 0x80
	e.response[3] = status
	e.response.SetInitiatorTaskTag(t.BHS.InitiatorTaskTag())
	binary.BigEndian.PutUint32(e.response[24:], e.statSN)
	e.state[i].responded = true
	e.dm.SendControl(&e.response, nil, t)
}

func (e *stub) DataCompletionNotify(t *iscsi.Task, err error) {
	e.enter()
	defer e.leave()
	st := &e.state[t.Index]
	if !st.data || !st.busy || e.ended {
		e.node.fault("DataCompletionNotify for a task that asked for none")
	}
	st.data = false
	if err != nil {
		e.dataErrs.Add(1)
		e.lastErr.Store(err)
		e.respond(t.Index, 2)
		return
	}
	at := binary.BigEndian.Uint32(t.Command.CDB[2:]) + t.ImmediateLength
	for _, b := range t.Command.Data {
		if !patternOK(b, at) {
			e.node.fault("data-out of tag %#x is wrong at %d", t.BHS.InitiatorTaskTag(), at)
		}
		at += uint32(len(b))
		e.written.Add(int64(len(b)))
	}
	if e.node.hold.Load() {
		e.held = append(e.held, t.Index)
		return
	}
	e.respond(t.Index, 0)
}

func (e *stub) TaskReleased(t *iscsi.Task) {
	e.enter()
	defer e.leave()
	st := &e.state[t.Index]
	if !st.busy || !st.responded || e.ended {
		e.node.fault("TaskReleased for a task that was not answered (%+v, ended %v)", *st, e.ended)
	}
	e.freeTask(t.Index)
}

func (e *stub) freeTask(i int) {
	t := &e.tasks[i]
	e.dm.DeallocateTaskResources(t)
	e.state[i] = stubState{}
	e.free = append(e.free, i)
}

func (e *stub) BuffersNotify() {
	e.enter()
	defer e.leave()
	for n := e.waiting.len(); n > 0; n-- {
		before := e.waiting.len()
		i := e.waiting.pop()
		e.step(i)
		if e.waiting.len() == before { // still short; oldest first again
			for range before - 1 {
				e.waiting.push(e.waiting.pop())
			}
			return
		}
	}
}

func (e *stub) MalformedNotify(string) {
	e.enter()
	defer e.leave()
	e.node.malformed.Add(1)
	e.dm.ConnectionTerminate(false)
}

func (e *stub) ConnectionTerminateNotify(error) {
	e.enter()
	defer e.leave()
	if e.ended {
		e.node.fault("ConnectionTerminateNotify twice")
	}
	e.ended = true
	e.node.terminated.Add(1)
	for _, h := range e.retained {
		e.dm.ReleaseControl(h)
	}
	e.retained = nil
	held := map[int]bool{}
	for _, i := range e.held {
		held[i] = true
	}
	for i := range e.state {
		if e.state[i].busy && !held[i] {
			e.freeTask(i)
		}
	}
	e.maybeGone()
}

func (e *stub) maybeGone() {
	if e.ended && !e.gone && len(e.held) == 0 {
		e.gone = true
		e.dm.DeallocateConnectionResources()
		e.node.live.Add(-1)
	}
}

func (e *stub) Turn() {
	e.enter()
	defer e.leave()
	e.turns.Add(1)
	for e.releases.Load() > 0 && len(e.held) > 0 {
		e.releases.Add(-1)
		i := e.held[0]
		e.held = e.held[1:]
		if e.ended {
			e.freeTask(i)
			continue
		}
		e.respond(i, 0)
	}
	switch e.terminate.Swap(0) {
	case 1:
		e.dm.ConnectionTerminate(true)
	case 2:
		e.dm.ConnectionTerminate(false)
	}
	e.maybeGone()
}

// pattern is what every byte of the medium holds: its address, folded.
func pattern(b []byte, at uint32) {
	for i := range b {
		x := at + uint32(i)
		b[i] = byte(x) ^ byte(x>>8) ^ byte(x>>16)
	}
}

func patternOK(b []byte, at uint32) bool {
	for i := range b {
		x := at + uint32(i)
		if b[i] != byte(x)^byte(x>>8)^byte(x>>16) {
			return false
		}
	}
	return true
}

var _ rdma.Provider = rdma.Provider(nil)
