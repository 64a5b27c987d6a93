package iserclient

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"iserd/internal/initiator"
	"iserd/rdma"
)

// Session drives a connection with many commands in flight: an [initiator.Session]. Memory of tasks is registered once
// and kept, data goes straight from and to it, and what one call has to send is one post.
type Session struct {
	conn     *Conn
	tasks    initiator.Table
	provider string
	memory   []sessionTask // by slot
	closed   bool
}

// sessionTask is what the connection has of a session's task.
type sessionTask struct {
	public *initiator.Task
	task   *Task
}

var _ initiator.Session = (*Session)(nil)

// spin is how long Poll looks for a completion before it sleeps: about what an event and a wake-up cost.
const spin = 20 * time.Microsecond

// OpenSession connects and logs in, with up to depth tasks. Of the options Batch and KeepRegistered are set, and Receives
// and Sends raised to what depth needs. Unless PrivateData says otherwise the target is told not to invalidate STags: a
// command whose STag it did invalidate has its memory registered anew when it is started again.
func OpenSession(provider rdma.Provider, addr netip.AddrPort, o Options, l Login, depth int) (*Session, error) {
	s := &Session{provider: provider.Name()}
	if err := s.tasks.Init(depth); err != nil {
		return nil, err
	}
	o.Batch, o.KeepRegistered = true, true
	o.Receives = max(o.Receives, depth+16) // room for what comes without being asked for
	o.Sends = max(o.Sends, depth+4*signalEvery)
	if o.PrivateData == nil {
		o.PrivateData = []byte{NoZBVA | NoSendWithInv, 0, 0, 0}
	}
	c, err := Open(provider, addr, o, l)
	if err != nil {
		return nil, err
	}
	s.conn, c.session = c, s
	s.memory = make([]sessionTask, depth)
	return s, nil
}

// Conn is the connection, for what a session has no method for. Nothing may be under way when it is used.
func (s *Session) Conn() *Conn { return s.conn }

// Take takes a task whose memory is registered.
func (s *Session) Take(in, out int) (*initiator.Task, error) {
	if s.closed {
		return nil, initiator.ErrClosed
	}
	if in < 0 || out < 0 {
		return nil, fmt.Errorf("iserclient: a task with %d bytes in and %d out", in, out)
	}
	if in > 0 && out > 0 {
		return nil, errors.New("iserclient: bidirectional commands are not for sessions")
	}
	t, err := s.tasks.Take()
	if err != nil {
		return nil, err
	}
	m := &s.memory[t.Slot]
	m.public = t
	m.task = s.conn.takeTask()
	m.task.Result, m.task.of, m.task.in, m.task.done = Result{}, m, in, false
	if in+out == 0 {
		return t, nil
	}
	if m.task.buf, err = s.conn.takeBuffer(in + out); err != nil {
		return nil, errors.Join(fmt.Errorf("iserclient: memory for a task: %w", err), s.Release(t))
	}
	mem := m.task.Memory()
	t.DataIn, t.DataOut = mem[:in:in], mem[in:in+out:in+out]
	return t, nil
}

// StartTask queues a command.
func (s *Session) StartTask(t *initiator.Task) error {
	if s.closed {
		return initiator.ErrClosed
	}
	if err := s.tasks.Start(t); err != nil {
		return err
	}
	s.pump()
	return nil
}

// pump turns held tasks into queued messages as far as the window and the send slots go.
func (s *Session) pump() {
	c := s.conn
	for t := s.tasks.Held(); t != nil && c.Numbers.Open() && len(c.sendFree) > 0 && s.tasks.Err() == nil; t = s.tasks.Held() {
		if err := s.send(t); err != nil {
			s.tasks.Fail(err)
			return
		}
		s.tasks.Sent()
	}
}

func (s *Session) send(t *initiator.Task) error {
	c, p := s.conn, s.memory[t.Slot].task
	if p.Invalidated {
		err := p.buf.mr.Close()
		p.buf.mr = nil
		if err == nil {
			p.buf.mr, err = c.register(p.buf.arena.Bytes())
		}
		if err != nil {
			return fmt.Errorf("iserclient: memory of a task whose STag was invalidated: %w", err)
		}
	}
	p.Result, p.done, p.active = Result{}, false, true
	p.ITT, p.CmdSN = c.SlotITT(p.slot), c.CmdSN.Uint32()
	put := initiator.Command{LUN: t.LUN, CDB: t.CDB[:], ITT: p.ITT, In: len(t.DataIn), Out: len(t.DataOut)}
	put.Put(&p.bhs)
	imm := 0
	if n := len(t.DataOut); n > 0 && c.Params.ImmediateData {
		imm = min(n, int(c.Params.FirstBurstLength), int(c.Params.MaxSendDataSegmentLength))
	}
	p.bhs.SetDataSegmentLength(imm)
	c.Number(&p.bhs)
	p.hdr = Header{}
	var data rdma.SGE
	if p.buf != nil {
		key, at := p.buf.mr.RKey(), p.buf.mr.Addr()
		if len(t.DataIn) > 0 {
			p.hdr.RSV, p.hdr.ReadSTag, p.hdr.ReadBase = true, key, at
		}
		if imm < len(t.DataOut) {
			// The base is past what went with the command, as the kernel's initiator has it.
			p.hdr.WSV, p.hdr.WriteSTag, p.hdr.WriteBase = true, key, at+uint64(imm)
		}
		data = rdma.SGE{Addr: rdma.AddrOf(p.buf.arena.Bytes()), Length: uint32(imm), LKey: p.buf.mr.LKey()}
	}
	slot := c.popSend()
	b := c.sendAt(slot)[:headers]
	p.hdr.put(b)
	copy(b[HeaderLength:], p.bhs[:])
	c.queue.send(slot, b, c.mr.LKey(), data)
	return nil
}

// end takes the result of a command from the connection.
func (s *Session) end(t *Task) {
	p := t.of.public
	p.Result = t.Result.Result
	s.tasks.End(p)
}

// Flush posts what is queued.
func (s *Session) Flush() error {
	if s.closed {
		return initiator.ErrClosed
	}
	s.pump()
	s.flush()
	return s.tasks.Err()
}

func (s *Session) flush() {
	if s.tasks.Err() == nil {
		if err := s.conn.Flush(); err != nil {
			s.tasks.Fail(err)
		}
	}
}

// step posts what there is and takes what has come, up to about want results.
func (s *Session) step(want int) {
	c := s.conn
	for s.tasks.Err() == nil {
		s.pump()
		s.flush()
		down := c.down.Load() // before reap: what came before the disconnect counts
		n, err := c.reap()
		switch {
		case err != nil:
			s.tasks.Fail(err)
		case n == 0 && down:
			s.tasks.Fail(ErrDisconnected)
		case n < len(c.wcs) && (s.tasks.Held() == nil || !c.Numbers.Open() || len(c.sendFree) == 0), s.tasks.Ended() >= want:
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
	c := s.conn
	began := time.Now()
	for passed := time.Duration(0); s.tasks.Ended() == 0 && s.tasks.Err() == nil && passed < wait; passed = time.Since(began) {
		if !c.opt.Sleep || passed < spin {
			runtime.Gosched()
			s.step(len(done))
			continue
		}
		if err := c.cq.Arm(); err != nil {
			s.tasks.Fail(err)
			break
		}
		if s.step(len(done)); s.tasks.Ended() > 0 || s.tasks.Err() != nil {
			break
		}
		s.flush() // an answer to a ping, receives
		if _, err := c.cc.Wait(wait - passed); err != nil {
			s.tasks.Fail(err)
		}
		s.step(len(done))
	}
	return s.tasks.HandOut(done)
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
	t.DataIn, t.DataOut = nil, nil
	m.task.of = nil
	return s.conn.Release(m.task)
}

// Outstanding is how many tasks were started and not handed out yet.
func (s *Session) Outstanding() int { return s.tasks.Outstanding() }

// Window is how many commands the target takes beyond those sent.
func (s *Session) Window() int { return s.conn.Numbers.Window() }

// Info says what the session is connected to.
func (s *Session) Info() initiator.Info {
	c := s.conn
	return initiator.Info{Transport: "iSER", Provider: s.provider, Device: c.dev.Info().Name, Local: c.conn.LocalAddr().String(),
		Remote: c.conn.RemoteAddr().String(), Names: c.Names, TSIH: c.TSIH, Params: c.Params, Depth: s.tasks.Depth()}
}

// Logout ends the session in order and closes it.
func (s *Session) Logout() error {
	if s.closed {
		return initiator.ErrClosed
	}
	if n := s.tasks.Outstanding(); n > 0 {
		return fmt.Errorf("iserclient: logout with %d tasks under way: poll until they have ended", n)
	}
	if err := s.tasks.Err(); err != nil {
		return errors.Join(err, s.Close())
	}
	if err := s.conn.Logout(); err != nil {
		return errors.Join(err, s.Close())
	}
	return s.Close()
}

// Close lets go of everything.
func (s *Session) Close() error {
	s.closed = true
	s.tasks.Fail(initiator.ErrClosed)
	return s.conn.Close()
}
