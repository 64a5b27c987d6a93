package iserclient

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"iserd/internal/initiator"
	"iserd/internal/serial"
	"iserd/rdma"
)

// Options say how to connect. The zero value is a kernel initiator.
type Options struct {
	Local netip.AddrPort
	// PrivateData of the request. nil is that of an initiator that takes Send with Invalidate.
	PrivateData []byte
	// ResponderResources is how many RDMA READs we answer at a time; 0 is 4. NoReads is none at all.
	ResponderResources uint8
	NoReads            bool
	// Receives is how many are posted in full feature phase, 128 if 0.
	Receives int
	// Sends is how many messages may be on their way, 128 if 0.
	Sends int
	// LateReceives posts, as libiscsi does, a single receive until the first answer in full feature phase has come.
	LateReceives bool
	// KeepRegistered registers data memory once and reuses it, and the command allocates nothing.
	KeepRegistered bool
	// NoPong leaves the target's NOP-In pings unanswered.
	NoPong bool
	// IgnoreWindow sends commands beyond MaxCmdSN.
	IgnoreWindow bool
	// Batch queues what is sent and the receives that are posted anew; [Conn.Flush], and whatever waits, posts all of it in
	// one go. Of the sends only one in several asks for a completion.
	Batch bool
	// Sleep lets the client wait by completion event; otherwise it polls.
	Sleep bool
	// Timeout bounds every wait, 10 s if 0.
	Timeout time.Duration
}

// Errors of a connection.
var (
	// ErrDisconnected says that the target ended the connection.
	ErrDisconnected = errors.New("iserclient: disconnected")
	// ErrTimeout says that the target did not answer in time.
	ErrTimeout = errors.New("iserclient: no answer")
	// ErrRejected says that the target turned the connect request down.
	ErrRejected = errors.New("iserclient: rejected")
)

// Conn is one connection, used by one goroutine at a time. Fields may be changed between calls.
type Conn struct {
	// Outcome is what login led to.
	initiator.Outcome
	// PrivateData is the target's answer to the connect request.
	PrivateData []byte
	// ReadDepth is how many RDMA READs the target said to have outstanding at us.
	ReadDepth uint8

	initiator.Numbers
	initiator.Tags
	// Unsolicited collects PDUs that answer nothing: pings, asynchronous messages, rejects.
	Unsolicited []*PDU
	// Invalidations counts the STags that the target invalidated.
	Invalidations int

	opt    Options
	inv    bool // the target may invalidate
	events rdma.EventChannel
	seen   chan rdma.Event
	conn   rdma.Conn
	dev    rdma.Device
	pd     rdma.PD
	cc     rdma.CompletionChannel
	cq     rdma.CQ
	qp     rdma.QP
	arena  *rdma.Arena
	mr     rdma.MR
	wcs    [32]rdma.WC
	down   atomic.Bool // DISCONNECTED came, or worse
	waker  atomic.Pointer[rdma.CompletionChannel]
	closed bool
	failed error // the first bad completion or message

	sendFree             []uint32 // slots
	queue                queue
	session              *Session // set when one was made of this connection
	longRecvs, allRecvs  int
	posted               int // receives
	fullFeature, settled bool
	inbox                []*PDU
	tasks                []*Task // by slot
	freeTasks            []*Task
	spare                map[int][]*buffer
	owed                 []*PDU // pings to be answered once there is a send slot
	pdu                  PDU
}

const (
	longCount = 4 // receives of login's length
	sendRoom  = headers + 1020 + 8192
	sendBit   = 1 << 32
)

// Dial connects. It does not log in.
func Dial(provider rdma.Provider, addr netip.AddrPort, o Options) (*Conn, error) {
	if o.PrivateData == nil {
		o.PrivateData = []byte{NoZBVA, 0, 0, 0}
	}
	if o.ResponderResources == 0 && !o.NoReads {
		o.ResponderResources = 4
	}
	if o.Receives == 0 {
		o.Receives = 128
	}
	if o.Sends == 0 {
		o.Sends = 128
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	c := &Conn{opt: o, Numbers: initiator.Numbers{CmdSN: serial.New(1)}, seen: make(chan rdma.Event, 64), spare: map[int][]*buffer{}}
	c.inv = len(o.PrivateData) > 0 && o.PrivateData[0]&NoZBVA != 0 && o.PrivateData[0]&NoSendWithInv == 0
	if err := c.dial(provider, addr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Conn) dial(provider rdma.Provider, addr netip.AddrPort) (err error) {
	if c.events, err = provider.NewEventChannel(); err != nil {
		return err
	}
	go c.readEvents(c.events)
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	if c.conn, err = c.events.Resolve(ctx, c.opt.Local, addr); err != nil {
		return err
	}
	if err = c.open(); err != nil {
		return err
	}
	err = c.conn.Connect(rdma.ConnParam{PrivateData: c.opt.PrivateData, ResponderResources: c.opt.ResponderResources,
		RetryCount: 7, RNRRetryCount: 6})
	if err != nil {
		return err
	}
	timeout := time.NewTimer(c.opt.Timeout)
	defer timeout.Stop()
	for {
		select {
		case ev := <-c.seen:
			switch ev.Type {
			case rdma.EventEstablished:
				c.PrivateData, c.ReadDepth = ev.Param.PrivateData, ev.Param.ResponderResources
				return nil
			case rdma.EventRejected:
				return fmt.Errorf("%w: reason %d, %x", ErrRejected, ev.Status, ev.Param.PrivateData)
			case rdma.EventUnreachable, rdma.EventConnectError, rdma.EventDisconnected, rdma.EventDeviceRemoval:
				return fmt.Errorf("iserclient: connect: %s, status %d", ev.Type, ev.Status)
			}
		case <-timeout.C:
			return fmt.Errorf("%w to the connect request", ErrTimeout)
		}
	}
}

// open makes everything that the connection needs.
func (c *Conn) open() (err error) {
	c.dev = c.conn.Device()
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	if c.cc, err = c.dev.NewCompletionChannel(); err != nil {
		return err
	}
	c.waker.Store(&c.cc)
	c.allRecvs = longCount + c.opt.Receives
	if c.cq, err = c.cc.CreateCQ(c.allRecvs+c.opt.Sends, 0); err != nil {
		return err
	}
	c.queue.init(c.opt, c.allRecvs)
	size := longCount*loginRoom + c.opt.Receives*fullFeatureRoom + c.opt.Sends*sendRoom
	if c.arena, err = rdma.MapArena(size, false); err != nil {
		return err
	}
	if c.mr, err = c.pd.RegMR(c.arena.Bytes(), rdma.AccessLocalWrite); err != nil {
		return err
	}
	c.qp, err = c.conn.CreateQP(c.pd, rdma.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: c.opt.Sends, MaxRecvWR: c.allRecvs, MaxSendSGE: c.queue.gather, MaxRecvSGE: 1})
	if err != nil {
		return err
	}
	for i := range c.opt.Sends {
		c.sendFree = append(c.sendFree, uint32(i))
	}
	return c.postLong()
}

// readEvents follows the connection manager.
func (c *Conn) readEvents(ch rdma.EventChannel) {
	for {
		ev, err := ch.Next()
		if err != nil {
			return
		}
		switch ev.Type {
		case rdma.EventDisconnected, rdma.EventDeviceRemoval:
			c.down.Store(true)
			if cc := c.waker.Load(); cc != nil {
				(*cc).Wake()
			}
		}
		select {
		case c.seen <- ev:
		default:
		}
	}
}

// recvAt is where receive slot i lies: the long ones first.
func (c *Conn) recvAt(i int) []byte {
	if i < longCount {
		return c.arena.Bytes()[i*loginRoom:][:loginRoom]
	}
	return c.arena.Bytes()[longCount*loginRoom+(i-longCount)*fullFeatureRoom:][:fullFeatureRoom]
}

func (c *Conn) sendAt(i uint32) []byte {
	return c.arena.Bytes()[longCount*loginRoom+c.opt.Receives*fullFeatureRoom+int(i)*sendRoom:][:sendRoom]
}

// postRecv posts receive slot i, or queues it.
func (c *Conn) postRecv(i int) error {
	c.queue.recv(i, c.recvAt(i), c.mr.LKey())
	if c.opt.Batch {
		return nil
	}
	return c.Flush()
}

// postLong posts the next receive of login's length.
func (c *Conn) postLong() error {
	i := c.longRecvs % longCount
	c.longRecvs++
	return c.postRecv(i)
}

// postShort posts the receives of full feature phase.
func (c *Conn) postShort() error {
	if c.settled {
		return nil
	}
	c.settled = true
	for i := range c.opt.Receives {
		if err := c.postRecv(longCount + i); err != nil {
			return err
		}
	}
	return nil
}

// SendRaw sends any bytes as one message.
func (c *Conn) SendRaw(msg []byte) error {
	return c.sendMessage(func(b []byte) (int, error) {
		if len(msg) > len(b) {
			return 0, fmt.Errorf("iserclient: message of %d bytes, at most %d", len(msg), len(b))
		}
		return copy(b, msg), nil
	})
}

// sendMessage sends what write puts into a send slot.
func (c *Conn) sendMessage(write func([]byte) (int, error)) error {
	slot, err := c.takeSend()
	if err != nil {
		return err
	}
	n, err := write(c.sendAt(slot))
	if err != nil {
		c.sendFree = append(c.sendFree, slot)
		return err
	}
	return c.postSend(slot, n)
}

// Events are the connection manager's events that nobody has waited for.
func (c *Conn) Events() <-chan rdma.Event { return c.seen }

// Device is the RDMA device of the connection, QPNum its queue pair's number.
func (c *Conn) Device() rdma.Device { return c.dev }
func (c *Conn) QPNum() uint32       { return c.qp.Num() }

// Kill breaks our queue pair without a word to the connection manager: the target learns by retries that are in vain.
func (c *Conn) Kill() error { return c.qp.SetError() }

// Disconnect asks for the end of the connection, whatever is under way.
func (c *Conn) Disconnect() error { return c.conn.Disconnect() }

// Down tells whether the target, or the device, has ended the connection.
func (c *Conn) Down() bool { return c.down.Load() }

// AwaitClose waits until the target has ended the connection.
func (c *Conn) AwaitClose() error {
	timeout := time.NewTimer(c.opt.Timeout)
	defer timeout.Stop()
	for !c.down.Load() {
		select {
		case <-c.seen:
		case <-timeout.C:
			return fmt.Errorf("%w: the connection stays", ErrTimeout)
		}
	}
	return nil
}

// Close lets go of everything, in whatever state it is. It may be called again.
func (c *Conn) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if c.conn != nil {
		add(c.conn.Disconnect())
	}
	if c.qp != nil {
		add(c.qp.Close())
	}
	if c.conn != nil {
		add(c.conn.Close())
	}
	for _, t := range c.tasks {
		if t.buf != nil {
			add(t.buf.close())
		}
	}
	for _, list := range c.spare {
		for _, b := range list {
			add(b.close())
		}
	}
	if c.cq != nil {
		add(c.cq.Close())
	}
	if c.cc != nil {
		add(c.cc.Close())
	}
	if c.mr != nil {
		add(c.mr.Close())
	}
	if c.pd != nil {
		add(c.pd.Close())
	}
	if c.arena != nil {
		add(c.arena.Close())
	}
	if c.events != nil {
		add(c.events.Close())
	}
	return errors.Join(errs...)
}
