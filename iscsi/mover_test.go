package iscsi

import (
	"fmt"
	"sync"
	"testing"

	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
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

	wake    chan struct{}
	stopped chan struct{}

	// How it behaves.
	maxSend     int
	bufferLimit int  // buffers that may be out; 0 is no limit
	holdRelease bool // responses do not leave
	holdData    bool // GetData waits for finishData
	holdEnd     bool // ConnectionTerminate waits for finishEnd
	allocErr    error
	discard     bool // do not keep what is sent
	outData     map[uint32][]byte
	noCancel    bool

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
