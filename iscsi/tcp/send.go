package tcp

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// flush sends until everything has left or the kernel takes no more.
func (c *conn) flush() {
	for !c.blocked && !c.out.empty() && c.phase < phaseAbort {
		if !c.write() {
			return
		}
	}
	c.out.recycle(c)
}

// write makes one system call. It returns false when the socket takes no more.
func (c *conn) write() bool {
	n, errno := c.out.write(c.fd)
	switch errno {
	case 0:
		c.n.writes++
		c.n.bytesOut += uint64(n)
		return true
	case unix.EAGAIN:
		c.block()
	default:
		c.lost(os.NewSyscallError("write", errno))
	}
	return false
}

// block has drain wait for the socket.
func (c *conn) block() {
	if c.blocked {
		return
	}
	c.blocked = true
	c.n.blocked++
	c.patience()
	c.refs.Add(1)
	go c.drainFunc()
}

// patience sets how long the peer may take no byte. In an orderly end that was set once.
func (c *conn) patience() {
	if c.phase == phaseOpen {
		_ = c.sock.SetWriteDeadline(time.Now().Add(c.srv.cfg.StallTimeout))
	}
}

// drain sends while the socket is full. It runs only then.
func (c *conn) drain() {
	defer c.leave()
	if err := c.raw.Write(c.writableFunc); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errStalled
		}
		c.mu.Lock()
		c.lost(err)
		c.endTurn()
		c.unlock()
	}
}

var errStalled = errors.New("the peer takes no data")

// writable sends what it can; true ends raw.Write.
func (c *conn) writable(uintptr) bool {
	c.mu.Lock()
	for c.phase < phaseAbort && !c.out.empty() {
		sent := c.out.sent
		if c.write(); c.out.sent == sent {
			break
		}
		c.patience()
	}
	c.out.recycle(c)
	if c.phase < phaseAbort && !c.out.empty() {
		c.releaseTasks()
		c.quench()
		c.unlock()
		return false
	}
	c.blocked = false
	c.endTurn()
	c.quench()
	c.unlock()
	return true
}

// quench lets the reader go on if it waited for room.
func (c *conn) quench() {
	if c.thirsty && (!c.blocked || c.out.copied <= maxCopied/2 || c.phase >= phaseAbort) {
		c.thirsty = false
		c.drained <- struct{}{}
	}
}

// releaseTasks tells the engine of tasks that have left entirely.
func (c *conn) releaseTasks() {
	q := &c.out
	for q.doneHead < len(q.done) && q.done[q.doneHead].end <= q.sent && c.phase < phaseEnded {
		t := q.done[q.doneHead].t
		q.done[q.doneHead].t = nil
		q.doneHead++
		c.reset(&c.xfers[t.Index])
		c.eng.TaskReleased(t)
	}
	if q.doneHead == len(q.done) {
		q.done, q.doneHead = q.done[:0], 0
	}
}
