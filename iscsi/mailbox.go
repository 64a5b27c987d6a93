package iscsi

import (
	"sync"
	"sync/atomic"
)

// messageKind is what another goroutine wants of a connection.
type messageKind uint8

const (
	msgEnd           messageKind = iota // end the session or connection
	msgAbort                            // abort the tasks that a task management function affects
	msgTMFDone                          // a task management function has nothing to wait for any more
	msgQuiet                            // a session that this login follows is quiet
	msgRequestLogout                    // send an asynchronous message
)

type message struct {
	kind    messageKind
	how     ending
	cause   string
	notice  bool // tell the initiator with an asynchronous message
	tmf     *tmf
	seconds uint16
}

// mailbox takes messages from any goroutine; the connection empties it in a turn. Control path only.
type mailbox struct {
	full   atomic.Bool // so that a turn without mail takes no lock
	mu     sync.Mutex
	queue  []message
	closed bool
}

// post puts a message into the mailbox and asks for a turn. False: the connection is gone and will not look.
func (c *Connection) post(m message) bool {
	c.mail.mu.Lock()
	if c.mail.closed {
		c.mail.mu.Unlock()
		return false
	}
	c.mail.queue = append(c.mail.queue, m)
	c.mail.full.Store(true)
	c.mail.mu.Unlock()
	c.dm.Wake()
	return true
}

// readMail works on what was posted.
func (c *Connection) readMail() {
	for c.mail.full.Load() {
		c.mail.mu.Lock()
		queue := c.mail.queue
		c.mail.queue = nil
		c.mail.full.Store(false)
		c.mail.mu.Unlock()
		for i := range queue {
			c.deliver(&queue[i])
		}
	}
}

func (c *Connection) deliver(m *message) {
	switch m.kind {
	case msgEnd:
		if m.notice {
			c.dropNotice()
		}
		c.end(m.how, m.cause)
	case msgAbort:
		c.abortAll(m.tmf)
		m.tmf.done()
	case msgTMFDone:
		c.answerTMF(m.tmf)
	case msgQuiet:
		c.predecessorQuiet()
	case msgRequestLogout:
		c.requestLogout(m.seconds)
	}
}

// closeMail refuses mail from now on and frees those who wait for an answer.
func (c *Connection) closeMail() {
	c.mail.mu.Lock()
	c.mail.closed = true
	queue := c.mail.queue
	c.mail.queue = nil
	c.mail.full.Store(false)
	c.mail.mu.Unlock()
	for i := range queue {
		if queue[i].kind == msgAbort {
			queue[i].tmf.done()
		}
	}
}

// complete puts a task that its store has finished on the connection's list. It is the Done function of every task's
// command: any goroutine, no lock, one wake-up per batch.
func (c *Connection) complete(t *Task) {
	for {
		head := c.completed.Load()
		t.completedNext = head
		if c.completed.CompareAndSwap(head, t) {
			if head == nil {
				c.dm.Wake()
			}
			return
		}
	}
}

// drainCompleted goes on with the tasks on that list, in the order in which the stores finished.
func (c *Connection) drainCompleted() {
	if c.completed.Load() == nil {
		return
	}
	var first *Task
	for t := c.completed.Swap(nil); t != nil; {
		next := t.completedNext
		t.completedNext = first
		first, t = t, next
	}
	for t := first; t != nil; {
		next := t.completedNext
		t.completedNext = nil
		c.inStore--
		c.storeFinished(t)
		t = next
	}
}
