package tcpclient

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// socket reads and writes without waiting, which a [net.Conn] cannot, and waits for bytes with a deadline.
type socket struct {
	conn  *net.TCPConn
	raw   syscall.RawConn
	limit bool // a read deadline is set
	// The two functions are made once, so that a call allocates nothing; b, n, err and stay are how they are called.
	onRead, onWrite func(fd uintptr) bool
	b               []byte
	n               int
	err             error
	stay            bool // wait for bytes
}

func (s *socket) init(c *net.TCPConn) (err error) {
	s.conn = c
	if s.raw, err = c.SyscallConn(); err != nil {
		return err
	}
	s.onRead = func(fd uintptr) bool { return s.done(syscall.Read, fd) || !s.stay }
	s.onWrite = func(fd uintptr) bool { s.done(syscall.Write, fd); return true }
	// Writes are large, and the last one of a batch must not wait for an acknowledgement.
	if err := c.SetNoDelay(true); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// done does a call until it is not interrupted, and tells whether the socket was ready for it; n is below 0 if not.
func (s *socket) done(call func(int, []byte) (int, error), fd uintptr) bool {
	for {
		s.n, s.err = call(int(fd), s.b)
		switch s.err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			s.n, s.err = -1, nil
			return false
		}
		return true
	}
}

// tryWrite writes what the socket has room for: 0 bytes if it has none.
func (s *socket) tryWrite(b []byte) (int, error) {
	s.b = b
	err := s.raw.Write(s.onWrite)
	s.b = nil
	if err == nil {
		err = s.err
	}
	return max(s.n, 0), err
}

// read reads what there is, waiting for it up to wait: 0 bytes, and no error, if nothing came. The end of the connection
// is [ErrDisconnected].
func (s *socket) read(b []byte, wait time.Duration) (int, error) {
	var deadline time.Time
	if s.stay = wait > 0; s.stay {
		deadline = time.Now().Add(wait)
	}
	if s.stay || s.limit {
		if err := s.conn.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		s.limit = s.stay
	}
	s.b, s.n, s.err = b, -1, nil
	err := s.raw.Read(s.onRead)
	s.b = nil
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, nil
	case err != nil:
		return 0, err
	case s.err != nil:
		return 0, errors.Join(ErrDisconnected, s.err)
	case s.n == 0:
		return 0, ErrDisconnected
	}
	return max(s.n, 0), nil
}
