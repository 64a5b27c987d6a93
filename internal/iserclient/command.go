package iserclient

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// Command is a SCSI command to be done.
type Command struct {
	LUN uint64 // in wire order, as LUN makes it
	CDB []byte
	// In is the room for data-in; Out is what may be read from us. With both it is bidirectional.
	In  int
	Out []byte
	// Expected, if not 0, is stated as the expected length in place of that of In or Out.
	Expected uint32
	// Attr is simple when zero.
	Attr      pdu.TaskAttribute
	Immediate bool
	// ImmediateData is how much of Out goes with the command: 0 is as much as negotiation allows, negative is none.
	ImmediateData int
	// Mangle, if set, may change what is about to be sent.
	Mangle func(*Header, *pdu.BHS)
}

// Result is how a command ended. Data and Sense are valid until the task is released.
type Result struct {
	initiator.Result
	Invalidated bool
	ExpDataSN   uint32
}

// LUN is a logical unit number below 256 in wire order.
func LUN(n int) uint64 { return initiator.LUN(n) }

// Read10 is READ(10).
func Read10(lba uint32, blocks uint16) []byte { return initiator.Read10(lba, blocks) }

// Write10 is WRITE(10).
func Write10(lba uint32, blocks uint16) []byte { return initiator.Write10(lba, blocks) }

// Task is a command under way.
type Task struct {
	Result
	ITT    uint32
	CmdSN  uint32
	in     int
	slot   uint32
	active bool // its response is to come
	done   bool
	buf    *buffer
	of     *sessionTask // nil for one that a session does not know of
	sense  [256]byte
	hdr    Header
	bhs    pdu.BHS
}

// Done tells whether its response has come.
func (t *Task) Done() bool { return t.done }

// Memory is the registered memory of the command: data-in from the start, data-out after it.
func (t *Task) Memory() []byte {
	if t.buf == nil {
		return nil
	}
	return t.buf.arena.Bytes()
}

// STag is the key that the target was given, 0 for none.
func (t *Task) STag() uint32 {
	if t.buf == nil || t.buf.mr == nil {
		return 0
	}
	return t.buf.mr.RKey()
}

// buffer is memory of one command.
type buffer struct {
	arena *rdma.Arena
	mr    rdma.MR
	class int
}

func (b *buffer) close() error {
	var err error
	if b.mr != nil {
		err = b.mr.Close()
	}
	return errors.Join(err, b.arena.Close())
}

// takeBuffer gives memory for n bytes that the target may read or write.
func (c *Conn) takeBuffer(n int) (*buffer, error) {
	class := max(12, bits.Len(uint(n-1)))
	var b *buffer
	if list := c.spare[class]; len(list) > 0 {
		b = list[len(list)-1]
		c.spare[class] = list[:len(list)-1]
	} else {
		a, err := rdma.MapArena(1<<class, false)
		if err != nil {
			return nil, err
		}
		b = &buffer{arena: a, class: class}
	}
	if b.mr == nil {
		mem := b.arena.Bytes()
		if !c.opt.KeepRegistered {
			mem = mem[:n] // so that nothing beyond is within reach
		}
		mr, err := c.register(mem)
		if err != nil {
			return nil, errors.Join(err, b.arena.Close())
		}
		b.mr = mr
	}
	return b, nil
}

// register makes memory one that the target may read and write.
func (c *Conn) register(mem []byte) (rdma.MR, error) {
	return c.pd.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
}

// Start sends a command with what immediate data negotiation allows, once the window is open for it.
func (c *Conn) Start(cmd *Command) (*Task, error) {
	if !cmd.Immediate && !c.opt.IgnoreWindow {
		for deadline := time.Now().Add(c.opt.Timeout); !c.Numbers.Open(); {
			if err := c.progress(deadline); err != nil {
				return nil, fmt.Errorf("command window closed: %w", err)
			}
		}
	}
	t := c.takeTask()
	if err := c.start(cmd, t); err != nil {
		return nil, errors.Join(err, c.Release(t))
	}
	return t, nil
}

// takeTask takes a free slot.
func (c *Conn) takeTask() *Task {
	if n := len(c.freeTasks); n > 0 {
		t := c.freeTasks[n-1]
		c.freeTasks = c.freeTasks[:n-1]
		return t
	}
	t := &Task{slot: uint32(len(c.tasks))}
	c.tasks = append(c.tasks, t)
	return t
}

// task finds the command under way that a tag is for, nil if there is none.
func (c *Conn) task(itt uint32) *Task {
	if slot := initiator.SlotOf(itt); int(slot) < len(c.tasks) {
		if t := c.tasks[slot]; t.active && t.ITT == itt {
			return t
		}
	}
	return nil
}

func (c *Conn) start(cmd *Command, t *Task) error {
	t.Result, t.done, t.in, t.buf = Result{}, false, cmd.In, nil
	t.ITT, t.CmdSN, t.active = c.SlotITT(t.slot), c.CmdSN.Uint32(), true
	put := initiator.Command{LUN: cmd.LUN, CDB: cmd.CDB, ITT: t.ITT, In: cmd.In, Out: len(cmd.Out), Attr: cmd.Attr, Immediate: cmd.Immediate}
	put.Put(&t.bhs)
	var ahs []byte
	if len(cmd.CDB) > 16 {
		ahs = pdu.AppendExtendedCDB(nil, cmd.CDB)
	}
	if cmd.In > 0 && len(cmd.Out) > 0 {
		ahs = pdu.AppendBidiReadDataLength(ahs, uint32(cmd.In))
	}
	if cmd.Expected != 0 {
		t.bhs.SCSICommand().SetExpectedDataTransferLength(cmd.Expected)
	}
	t.hdr = Header{}
	imm := c.immediate(cmd)
	if n := cmd.In + len(cmd.Out); n > 0 && (cmd.In > 0 || imm < len(cmd.Out)) {
		var err error
		if t.buf, err = c.takeBuffer(n); err != nil {
			return err
		}
		key, at := t.buf.mr.RKey(), t.buf.mr.Addr()
		if cmd.In > 0 {
			t.hdr.RSV, t.hdr.ReadSTag, t.hdr.ReadBase = true, key, at
		}
		if imm < len(cmd.Out) {
			// The base is past what went with the command, as the kernel's initiator has it.
			copy(t.buf.arena.Bytes()[cmd.In:], cmd.Out)
			t.hdr.WSV, t.hdr.WriteSTag, t.hdr.WriteBase = true, key, at+uint64(cmd.In+imm)
		}
	}
	c.Number(&t.bhs)
	if cmd.Mangle == nil {
		return c.Send(&t.hdr, &t.bhs, ahs, cmd.Out[:imm])
	}
	t.bhs.SetDataSegmentLength(imm)
	t.bhs.SetTotalAHSLength(len(ahs))
	cmd.Mangle(&t.hdr, &t.bhs)
	return c.SendAsIs(&t.hdr, &t.bhs, ahs, cmd.Out[:imm])
}

// immediate is how much of the data-out goes with the command.
func (c *Conn) immediate(cmd *Command) int {
	if !c.Params.ImmediateData || cmd.ImmediateData < 0 {
		return 0
	}
	n := min(len(cmd.Out), int(c.Params.FirstBurstLength), int(c.Params.MaxSendDataSegmentLength))
	if cmd.ImmediateData > 0 {
		n = min(n, cmd.ImmediateData)
	}
	return n
}

// finish takes the response of a task.
func (t *Task) finish(c *Conn, p *PDU) error {
	t.done, t.active = true, false
	s := p.BHS.SCSIResponse()
	t.ExpDataSN = s.ExpDataSN()
	if err := t.TakeStatus(s, p.Data, t.sense[:]); err != nil {
		return err
	}
	if t.buf != nil && t.in > 0 {
		used := t.in
		if t.Underflow {
			used = max(0, used-int(t.Residual))
		}
		t.Data = t.buf.arena.Bytes()[:used:used]
	}
	if p.Invalidated != 0 {
		if t.buf == nil || t.buf.mr.RKey() != p.Invalidated {
			return fmt.Errorf("iserclient: task %#x: STag %#x invalidated, which is not the task's (known to end a session with the kernel's initiator)",
				t.ITT, p.Invalidated)
		}
		t.Invalidated = true
	}
	if t.of != nil {
		c.session.end(t)
	}
	return nil
}

// Wait waits for the response of a task.
func (c *Conn) Wait(t *Task) error {
	for deadline := time.Now().Add(c.opt.Timeout); !t.done; {
		if err := c.progress(deadline); err != nil {
			return fmt.Errorf("task %#x: %w", t.ITT, err)
		}
	}
	return nil
}

// Release gives back the memory of a task that is done, or that nobody will answer any more.
func (c *Conn) Release(t *Task) error {
	var err error
	t.active = false
	if b := t.buf; b != nil {
		t.buf = nil
		if !c.opt.KeepRegistered || t.Invalidated {
			err = b.mr.Close()
			b.mr = nil
		}
		c.spare[b.class] = append(c.spare[b.class], b)
	}
	c.freeTasks = append(c.freeTasks, t)
	return err
}

// Do does a command from begin to end and returns a copy of how it ended.
func (c *Conn) Do(cmd *Command) (*Result, error) {
	t, err := c.Start(cmd)
	if err != nil {
		return nil, err
	}
	if err := c.Wait(t); err != nil {
		return nil, err
	}
	r := t.Result
	r.Data = append([]byte(nil), r.Data...)
	r.Sense = append([]byte(nil), r.Sense...)
	return &r, c.Release(t)
}
