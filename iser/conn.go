package iser

import (
	"net/netip"
	"sync/atomic"
	"time"

	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// engine is what a datamover needs of [iscsi.Connection].
type engine interface {
	ControlNotify(*iscsi.Control)
	DataCompletionNotify(*iscsi.Task, error)
	TaskReleased(*iscsi.Task)
	BuffersNotify()
	MalformedNotify(cause string)
	ConnectionTerminateNotify(cause error)
	Turn()
}

// phase is where a connection is in its life. It only grows.
type phase uint8

const (
	phaseOpen     phase = iota // login and full feature
	phaseGraceful              // to end once what was queued has left
	phaseAbort                 // to end at once
	phaseDraining              // in error; the sentinels are on their way
	phaseDrained               // the queue pair is gone, the engine was told
	phaseGone                  // DeallocateConnectionResources was called
)

func (p phase) String() string {
	return [...]string{"open", "graceful", "abort", "draining", "drained", "gone"}[p]
}

// A work request's ID is made of its kind, the generation and number of its connection's slot, and a number that the
// kind gives sense to: the receive slot, or the position in the send queue. Never an address.
const (
	idNumberBits = 24
	idSlotBits   = 20
	idGenBits    = 16
	idNumberMask = 1<<idNumberBits - 1
)

type idKind uint8

const (
	idRecv idKind = iota
	idSend        // anything on the send queue
	idRecvSentinel
	idSendSentinel
)

func wrID(kind idKind, gen uint16, slot, number uint32) uint64 {
	return uint64(kind)<<(idNumberBits+idSlotBits+idGenBits) | uint64(gen)<<(idNumberBits+idSlotBits) |
		uint64(slot)<<idNumberBits | uint64(number&idNumberMask)
}

func idKindOf(id uint64) idKind { return idKind(id >> (idNumberBits + idSlotBits + idGenBits)) }
func idGen(id uint64) uint16    { return uint16(id >> (idNumberBits + idSlotBits)) }
func idSlot(id uint64) uint32   { return uint32(id>>idNumberBits) & (1<<idSlotBits - 1) }
func idNumber(id uint64) uint32 { return uint32(id) & idNumberMask }

// conn is one connection: the datamover of one [iscsi.Connection]. Everything is guarded by the shard's lock, but for
// the fields of the wake list.
type conn struct {
	s      *shard
	eng    engine
	id     rdma.Conn // nil after it was handed to the reaper
	qp     rdma.QP   // nil once closed
	caps   rdma.QPCaps
	slot   uint32
	idBase uint64
	remote netip.AddrPort

	wokenNext *conn // owned by whoever set wokenFlag, then by the loop
	wokenFlag atomic.Bool

	phase        phase
	hasSlot      bool
	dirty        bool
	waiting      bool // among the shard's waiters
	ending       bool // on the shard's ending list
	established  bool
	disconnected bool // the connection manager said so
	peerCloses   bool // what was sent last makes the initiator close the connection
	lingering    bool // it was sent, and the initiator has the next word
	invalidate   bool // remote invalidation is in use
	fullFeature  bool
	discovery    bool
	sentinels    uint8 // sentinels still out
	cause        error // why it ends; nil for an orderly end
	deadline     time.Time
	cqEntries    int // reserved in the completion queue
	maxBurst     uint32

	blocks  []rdma.Buf // receive, send and scratch memory
	rx      recvSide
	tx      sendSide
	io      []taskIO     // by Task.Index
	scratch []byte       // scratchSize bytes for each task
	reads   fifo[uint32] // tasks with RDMA READs to post, oldest first
	ord     int          // RDMA READs that may be out
	ordOut  int
}

var (
	_ iscsi.Datamover    = (*conn)(nil)
	_ iscsi.DataCanceler = (*conn)(nil)
)

// Wake implements [iscsi.Datamover].
func (c *conn) Wake() { c.s.wake(c) }

// markDirty has the shard look at c when it posts.
func (c *conn) markDirty() {
	if !c.dirty {
		c.dirty = true
		c.s.dirty = append(c.s.dirty, c)
	}
}

// MaxSendDataSegmentLength implements [iscsi.Datamover]. Initiators post receives for 8192 bytes of data during login
// and in discovery sessions, and for 128 in full feature phase, whatever length they declared.
func (c *conn) MaxSendDataSegmentLength() int {
	if c.fullFeature && !c.discovery {
		return fullFeatureData
	}
	return loginData
}

const (
	loginData       = 8192
	fullFeatureData = 128
)

// AllocateConnectionResources implements [iscsi.Datamover].
func (c *conn) AllocateConnectionResources(r iscsi.Resources) error {
	if c.phase != phaseOpen {
		return errEnded
	}
	if err := c.openReceives(r); err != nil {
		return err
	}
	if err := c.openSends(r); err != nil {
		return err
	}
	c.discovery = r.Discovery
	c.io = make([]taskIO, r.Tasks)
	return nil
}

// NoticeKeyValues implements [iscsi.Datamover].
func (c *conn) NoticeKeyValues(p login.Params) { c.maxBurst = uint32(p.MaxBurstLength) }

// EnableDatamover implements [iscsi.Datamover].
func (c *conn) EnableDatamover(finalResponse *pdu.BHS, data []byte) {
	if c.phase > phaseGraceful {
		return
	}
	// A post takes the receives of a queue pair before its sends, so they are ready before the response leaves. The
	// first full feature PDU may come on its heels, or overtake its completion.
	c.readyReceives()
	c.sendControl(finalResponse, data, nil)
	c.fullFeature = true
}

// ConnectionTerminate implements [iscsi.Datamover].
func (c *conn) ConnectionTerminate(graceful bool) {
	if graceful {
		c.end(phaseGraceful, nil)
	} else {
		c.end(phaseAbort, nil)
	}
}

// DeallocateConnectionResources implements [iscsi.Datamover].
func (c *conn) DeallocateConnectionResources() {
	if c.phase != phaseDrained {
		return
	}
	c.phase = phaseGone
	s := c.s
	for i := range c.io {
		c.freeTask(&c.io[i])
	}
	for _, b := range c.blocks {
		s.putBuffer(b)
	}
	c.blocks, c.io = nil, nil
	s.releaseSlot(c)
	s.load.Add(-1)
	s.counters.connections.dec()
	if s.live == 0 && s.stopping.Load() {
		s.wakeLoop()
	}
	s.dev.srv.connGone()
}
