package tcp

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"iserd/internal/serial"
	"iserd/iscsi"
	"iserd/iscsi/login"
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
	Numbers() (statSN, expCmdSN, maxCmdSN serial.Number)
}

// phase is where a connection is in its life. It only grows.
type phase uint8

const (
	phaseOpen     phase = iota
	phaseGraceful       // to end once what was queued has left
	phaseAbort          // to end at once
	phaseEnded          // the engine was told
	phaseGone           // DeallocateConnectionResources was called
)

func (p phase) String() string {
	return [...]string{"open", "graceful", "abort", "ended", "gone"}[p]
}

// maxCopied is how much may wait in blocks before nothing more is read: an initiator that sends requests and does not
// read the answers must not make the queue grow without end.
const maxCopied = 1 << 20

// conn is one connection: the datamover of one [iscsi.Connection].
type conn struct {
	srv  *Server
	sock *net.TCPConn // closed by the reader alone
	raw  syscall.RawConn
	fd   int
	refs atomic.Int32 // goroutines

	wake        chan struct{}
	woken       atomic.Bool // a turn was asked for
	buffersFree atomic.Bool // memory came back that this connection waited for
	memory      share

	mu      sync.Mutex // the turn
	eng     engine
	phase   phase
	linger  bool // what still comes is read and thrown away
	blocked bool // the kernel takes no more bytes; drain waits for it
	thirsty bool // the reader waits until less is queued
	paused  bool // the same, the reader's own note
	drained chan struct{}
	cause   error // why it ends, if that is not in order
	params  login.Params

	rx          rxState
	chunks      []*chunk // by handle
	control     iscsi.Control
	xfers       []xfer // by Task.Index
	bursts      []burst
	burstAge    uint64
	completions []completion
	tx          txParams
	out         outQueue
	n           tally

	// Function values made once.
	drainFunc    func()
	writableFunc func(uintptr) bool
}

var (
	_ iscsi.Datamover    = (*conn)(nil)
	_ iscsi.DataCanceler = (*conn)(nil)
)

func newConn(s *Server, sock *net.TCPConn) (*conn, error) {
	c := &conn{srv: s, sock: sock, wake: make(chan struct{}, 1), drained: make(chan struct{}, 1)}
	c.drainFunc, c.writableFunc = c.drain, c.writable
	var err error
	if c.raw, err = sock.SyscallConn(); err != nil {
		return nil, err
	}
	err = c.raw.Control(func(fd uintptr) {
		c.fd = int(fd)
		// A peer that vanished is noticed even when keep-alive cannot run because data is unacknowledged. Best effort.
		_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(s.cfg.StallTimeout/time.Millisecond))
	})
	if err != nil {
		return nil, err
	}
	c.rx.maxSegment = login.MaxSegment
	c.rx.want = 1
	c.tx.maxSegment = login.MaxSegment
	return c, nil
}

// start makes the engine's connection and runs both.
func (c *conn) start(connect func() engine) {
	c.refs.Store(2)
	c.mu.Lock()
	c.eng = connect()
	c.endTurn()
	c.unlock()
	go c.read()
	go c.runWoken()
}

// leave is called by each goroutine of the connection as its last act.
func (c *conn) leave() {
	if c.refs.Add(-1) == 0 {
		c.srv.remove(c)
	}
}

// read is the reader.
func (c *conn) read() {
	defer c.leave()
	// One call of raw.Read lasts as long as there is nothing but the socket to wait for: it keeps the readiness that
	// comes while a turn runs.
	readable := c.readable
	for again := true; again; {
		err := c.raw.Read(readable)
		c.mu.Lock()
		switch {
		case err != nil:
			c.lost(err)
			again = false
		case c.paused:
			c.paused = false
			c.mu.Unlock()
			<-c.drained
			c.mu.Lock()
		default:
			again = false
		}
		if !again {
			c.linger = false
			c.endTurn()
			c.fd = -1
			if ch := c.rx.chunk; ch != nil {
				c.rx.chunk = nil
				if ch.refs == 0 {
					c.freeChunk(c.rx.slot)
				}
			}
		}
		c.unlock()
	}
	// Not inside a turn or raw.Read: Close waits for those who use the descriptor.
	_ = c.sock.Close()
}

// readable reads and works until there is nothing more, then returns false; true ends raw.Read.
func (c *conn) readable(uintptr) bool {
	for {
		c.mu.Lock()
		if c.phase >= phaseEnded && !c.linger {
			c.unlock()
			return true
		}
		if c.blocked && c.out.copied > maxCopied {
			c.thirsty, c.paused = true, true
			c.unlock()
			return true
		}
		n, errno := c.fill()
		if errno == unix.EAGAIN {
			c.n.emptyReads++
			c.idle()
			c.unlock()
			return false
		}
		if errno != 0 || n == 0 {
			if errno != 0 {
				c.lost(os.NewSyscallError("read", errno))
			} else {
				c.lost(nil)
			}
			c.linger = false
			c.endTurn()
			c.unlock()
			return true
		}
		c.parse()
		c.endTurn()
		c.unlock()
	}
}

// idle gives back memory that is not needed while the peer is silent.
func (c *conn) idle() {
	rx := &c.rx
	if rx.r == rx.w && rx.chunk != nil && rx.chunk.refs == 0 {
		rx.chunk, rx.r, rx.w = nil, 0, 0
		c.freeChunk(rx.slot)
	}
	c.out.idle(c)
}

// lost ends the connection: the peer is gone, or is treated so. cause is nil when it went in order.
func (c *conn) lost(cause error) {
	if c.phase < phaseAbort {
		c.phase = phaseAbort
		c.cause = cause
	}
}

// ConnectionTerminate implements [iscsi.Datamover].
func (c *conn) ConnectionTerminate(graceful bool) {
	switch {
	case !graceful:
		c.lost(nil)
	case c.phase == phaseOpen:
		c.phase = phaseGraceful
		_ = c.sock.SetWriteDeadline(time.Now().Add(c.srv.cfg.CloseTimeout))
	}
}

// settle ends the connection when it is time.
func (c *conn) settle() {
	if c.phase != phaseAbort && (c.phase != phaseGraceful || !c.out.empty()) {
		return
	}
	c.linger = c.phase == phaseGraceful && c.fd >= 0
	c.phase = phaseEnded
	c.n.addTo(&c.srv.counters) // before the peer can know, so that who saw the end sees its counts
	if c.linger {
		_ = unix.Shutdown(c.fd, unix.SHUT_WR)
		_ = c.sock.SetReadDeadline(time.Now().Add(c.srv.cfg.CloseTimeout))
	} else {
		_ = c.sock.SetDeadline(time.Unix(1, 0)) // wakes the reader, and drain
	}
	c.out.drop(c)
	clear(c.completions)
	c.completions = c.completions[:0]
	c.rx.deaf = true
	c.rx.inData = false
	c.rx.r = c.rx.w
	c.rx.x, c.rx.burst, c.rx.r2t, c.rx.spill = nil, nil, nil, nil
	for i := range c.xfers {
		c.forget(&c.xfers[i])
	}
	c.bursts = nil
	c.eng.ConnectionTerminateNotify(c.cause)
	c.quench()
}

// cut ends the connection from outside.
func (c *conn) cut() {
	c.mu.Lock()
	c.lost(ErrClosed)
	c.linger = false
	_ = c.sock.SetReadDeadline(time.Unix(1, 0))
	c.endTurn()
	c.unlock()
}

// DeallocateConnectionResources implements [iscsi.Datamover].
func (c *conn) DeallocateConnectionResources() {
	if c.phase != phaseEnded {
		return
	}
	c.phase = phaseGone
	for i := range c.xfers {
		if b := c.xfers[i].buffers; len(b) > 0 {
			c.srv.buffers.release(c, b)
		}
	}
	c.xfers = nil
	c.srv.buffers.passOn(c, true)
	for i, ch := range c.chunks {
		// The reader may still need the one that it reads into.
		if ch != nil && ch != c.rx.chunk {
			c.freeChunk(i)
		}
	}
	c.kick()
}

func (c *conn) String() string { return fmt.Sprintf("tcp %s %s", c.sock.RemoteAddr(), c.phase) }
