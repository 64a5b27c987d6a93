package tcpclient

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"time"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
)

// Session drives a connection with many commands in flight: an [initiator.Session]. What one call has to send goes out in
// large writes, and what comes is read in large reads and taken apart from there.
type Session struct {
	conn    *Conn
	sock    socket
	tasks   initiator.Table
	memory  []sessionTask // by slot
	tags    initiator.Tags
	spare   [33][][]byte // by the logarithm of their length
	out     outgoing
	in      incoming
	logout  uint32 // the tag of the logout request, 0 before it
	goodbye bool   // it was answered
	closed  bool
}

// sessionTask is the state of a task under way.
type sessionTask struct {
	itt           uint32
	dataIns, r2ts uint32 // PDUs so far
	got           int    // bytes of data-in so far
	buf           []byte
	sense         [256]byte
}

var _ initiator.Session = (*Session)(nil)

// ErrDisconnected says that the target ended the connection.
var ErrDisconnected = errors.New("tcpclient: the target closed the connection")

// OpenSession connects and logs in, with up to depth tasks.
func OpenSession(addr string, l Login, depth int) (*Session, error) {
	if depth < 1 || depth > initiator.MaxSlots {
		return nil, fmt.Errorf("tcpclient: depth %d: a session has 1 to %d tasks", depth, initiator.MaxSlots)
	}
	c, err := Open(addr, l)
	if err != nil {
		return nil, err
	}
	s, err := NewSession(c, depth)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// NewSession makes a session of a connection over TCP that has logged in and has nothing under way. It owns the connection
// from then on.
func NewSession(c *Conn, depth int) (*Session, error) {
	nc, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("tcpclient: a session needs a TCP connection, not a %T", c.Conn)
	}
	s := &Session{conn: c, memory: make([]sessionTask, depth)}
	if err := s.tasks.Init(depth); err != nil {
		return nil, err
	}
	if err := s.sock.init(nc); err != nil {
		return nil, err
	}
	s.out.init(int(c.Params.MaxSendDataSegmentLength))
	s.in.init(int(c.Params.MaxRecvDataSegmentLength))
	return s, nil
}

// Conn is the connection, for its fields.
func (s *Session) Conn() *Conn { return s.conn }

// Take takes a task.
func (s *Session) Take(in, out int) (*initiator.Task, error) {
	switch {
	case s.closed:
		return nil, initiator.ErrClosed
	case in < 0 || out < 0:
		return nil, fmt.Errorf("tcpclient: a task with %d bytes in and %d out", in, out)
	case in > 0 && out > 0:
		return nil, errors.New("tcpclient: bidirectional commands are not for sessions")
	}
	t, err := s.tasks.Take()
	if err != nil || in+out == 0 {
		return t, err
	}
	class := bits.Len(uint(in + out - 1))
	if class >= len(s.spare) {
		return nil, errors.Join(fmt.Errorf("tcpclient: a task with %d bytes", in+out), s.tasks.Release(t))
	}
	m := &s.memory[t.Slot]
	if list := s.spare[class]; len(list) > 0 {
		m.buf = list[len(list)-1]
		s.spare[class] = list[:len(list)-1]
	} else {
		m.buf = make([]byte, 1<<class)
	}
	t.DataIn, t.DataOut = m.buf[:in:in], m.buf[in:in+out:in+out]
	return t, nil
}

// StartTask queues a command.
func (s *Session) StartTask(t *initiator.Task) error {
	if s.closed {
		return initiator.ErrClosed
	}
	return s.tasks.Start(t)
}

// Release gives a task and its memory back.
func (s *Session) Release(t *initiator.Task) error {
	if s.closed {
		return initiator.ErrClosed
	}
	if err := s.tasks.Release(t); err != nil {
		return err
	}
	m := &s.memory[t.Slot]
	if m.buf != nil {
		class := bits.Len(uint(len(m.buf) - 1))
		s.spare[class] = append(s.spare[class], m.buf)
		m.buf, t.DataIn, t.DataOut = nil, nil, nil
	}
	return nil
}

// patience is how long a step waits for the socket when the other direction has something to do as well.
const patience = time.Millisecond

// Flush writes what is queued. While the target does not read, what it sends is taken, so that neither waits for the
// other.
func (s *Session) Flush() error {
	if s.closed {
		return initiator.ErrClosed
	}
	for deadline := time.Now().Add(s.conn.Timeout); s.tasks.Err() == nil; {
		s.write()
		if s.out.empty() || s.tasks.Err() != nil {
			break
		}
		if !s.read(patience) && time.Now().After(deadline) {
			s.tasks.Fail(fmt.Errorf("%w: the target does not read", initiator.ErrTimeout))
		}
	}
	return s.tasks.Err()
}

// write makes PDUs of what waits and writes as much as the socket takes.
func (s *Session) write() {
	for s.tasks.Err() == nil {
		s.fill()
		if s.out.empty() {
			return
		}
		n, err := s.sock.tryWrite(s.out.pending())
		s.out.sent += n
		if err != nil {
			s.tasks.Fail(fmt.Errorf("tcpclient: write: %w", err))
		}
		if n == 0 {
			return
		}
	}
}

// read takes what the socket has, waiting for it up to wait, and tells whether there was something.
func (s *Session) read(wait time.Duration) bool {
	n, err := s.sock.read(s.in.room(), wait)
	if n > 0 {
		s.in.end += n
		if err := s.parse(); err != nil {
			s.tasks.Fail(err)
		}
		return true
	}
	if err != nil {
		s.tasks.Fail(err)
	}
	return false
}

// step does what can be done without waiting, up to about want results.
func (s *Session) step(want int) {
	for s.tasks.Err() == nil && s.tasks.Ended() < want {
		s.write()
		if s.tasks.Err() != nil || !s.read(0) {
			return
		}
	}
}

// Poll is described at [initiator.Session].
func (s *Session) Poll(wait time.Duration, done []*initiator.Task) (int, error) {
	if s.closed {
		return 0, initiator.ErrClosed
	}
	if len(done) == 0 {
		return 0, s.Flush()
	}
	s.step(len(done))
	if s.tasks.Ended() > 0 || wait <= 0 || s.tasks.Err() != nil {
		return s.tasks.HandOut(done)
	}
	began := time.Now()
	for passed := time.Duration(0); s.tasks.Ended() == 0 && s.tasks.Err() == nil && passed < wait; passed = time.Since(began) {
		left := wait - passed
		if !s.out.empty() {
			left = min(left, patience)
		}
		s.read(left)
		s.step(len(done))
	}
	return s.tasks.HandOut(done)
}

// Outstanding is how many tasks were started and not handed out yet.
func (s *Session) Outstanding() int { return s.tasks.Outstanding() }

// Window is how many commands the target takes beyond those sent.
func (s *Session) Window() int { return s.conn.Window() }

// Info says what the session is connected to.
func (s *Session) Info() initiator.Info {
	c := s.conn
	return initiator.Info{Transport: "TCP", Local: c.LocalAddr().String(), Remote: c.RemoteAddr().String(), Names: c.Names, TSIH: c.TSIH,
		Params: c.Params, Depth: s.tasks.Depth()}
}

// Logout ends the session in order, waits until the target has closed, and closes.
func (s *Session) Logout() error {
	if s.closed {
		return initiator.ErrClosed
	}
	if n := s.Outstanding(); n > 0 {
		return fmt.Errorf("tcpclient: logout with %d tasks under way: poll until they have ended", n)
	}
	return errors.Join(s.sayGoodbye(), s.Close())
}

func (s *Session) sayGoodbye() error {
	if err := s.tasks.Err(); err != nil {
		return err
	}
	var h pdu.BHS
	l := h.LogoutRequest()
	l.Init()
	h.SetImmediate(true)
	l.SetReason(pdu.LogoutCloseSession)
	s.logout = s.tags.NextITT()
	l.SetInitiatorTaskTag(s.logout)
	s.emit(&h, nil)
	if err := s.Flush(); err != nil {
		return err
	}
	for deadline := time.Now().Add(s.conn.Timeout); !s.goodbye; {
		if !s.read(time.Until(deadline)) && s.tasks.Err() == nil && time.Now().After(deadline) {
			return fmt.Errorf("%w to the logout request", initiator.ErrTimeout)
		}
		if err := s.tasks.Err(); err != nil {
			return err
		}
	}
	if n := s.in.end - s.in.begin; n > 0 {
		return fmt.Errorf("tcpclient: %d bytes after the answer to the logout request", n)
	}
	return s.conn.AwaitClose()
}

// Close lets go of everything.
func (s *Session) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.tasks.Fail(initiator.ErrClosed)
	return s.conn.Close()
}
