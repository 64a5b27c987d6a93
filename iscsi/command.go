package iscsi

import (
	"errors"

	"iserd/iscsi/pdu"
	"iserd/scsi"
)

// taskPhase says what a task waits for.
type taskPhase uint8

const (
	taskFree    taskPhase = iota
	taskRunning           // the engine is at it
	taskBuffers           // for memory
	taskData              // for data-out
	taskDiscard           // for unsolicited data that nobody wants, before its response can go out
	taskStore             // for the store
	taskRespond           // for its response to have left
)

// taskState is the engine's part of a [Task].
type taskState struct {
	state         taskPhase
	next          scsi.Next // taskBuffers: what to go on with
	immediate     bool
	started       bool // Command.Start was called, so Release is due
	settled       bool // no unsolicited data is on its way any more
	aborted       bool // no response
	lateWrite     bool // aborted as a write in a store, which may still land
	retained      bool // the receive buffer is ours until releaseControl
	handle        int
	data          []byte // immediate data, while the receive buffer is ours
	cdb           []byte // of commands with an extended CDB
	one           [1][]byte
	rest          [][]byte // buffers behind the immediate data
	completedNext *Task
	waitNext      *Task
	watchers      []*tmf // task management functions that wait for this task's end
}

// makeTasks makes the slots of a connection.
func (c *Connection) makeTasks(n int) {
	c.tasks = make([]Task, n)
	c.free = make([]*Task, 0, n)
	for i := n - 1; i >= 0; i-- {
		t := &c.tasks[i]
		t.Index = i
		t.Command.Done = func(*scsi.Command) { c.complete(t) }
		c.free = append(c.free, t)
	}
}

// command starts a SCSI command and takes it as far as it goes.
func (c *Connection) command(ctl *Control, immediate bool) {
	req := ctl.BHS.SCSICommand()
	c.commands.Add(1)
	if immediate && c.immediateTasks >= immediateAllowance {
		c.reject(ctl.BHS, pdu.RejectImmediateCommand)
		return
	}
	if len(ctl.Data) > 0 && !req.Write() {
		c.answered(immediate)
		c.reject(ctl.BHS, pdu.RejectProtocolError)
		return
	}
	n := len(c.free)
	if n == 0 {
		c.noSlot(req, immediate)
		return
	}
	t := c.free[n-1]
	if ctl.BHS.TotalAHSLength() != 0 {
		var err error
		if t.cdb, err = pdu.AppendCDB(t.cdb[:0], req, ctl.AHS); err != nil {
			c.answered(immediate)
			c.reject(ctl.BHS, pdu.RejectInvalidPDUField)
			return
		}
	}
	c.free = c.free[:n-1]
	c.busy++
	if immediate {
		c.immediateTasks++
	}
	t.BHS = *ctl.BHS
	t.Private = ctl.Private
	t.ImmediateLength = uint32(len(ctl.Data))
	t.Unsolicited = req.Write() && !req.Final()
	t.state = taskRunning
	t.immediate = immediate
	t.started, t.aborted, t.lateWrite = false, false, false
	t.settled = !t.Unsolicited

	cmd := &t.Command
	req = t.BHS.SCSICommand()
	cmd.LUN = t.BHS.LUN()
	cmd.CDB = req.CDB()[:]
	if t.BHS.TotalAHSLength() != 0 {
		cmd.CDB = t.cdb
	}
	cmd.Tag = req.InitiatorTaskTag()
	cmd.Attr = scsi.TaskAttribute(req.Attr())
	length := req.ExpectedDataTransferLength()
	cmd.HasIn, cmd.HasOut = req.Read(), req.Write()
	cmd.ExpectedIn, cmd.ExpectedOut = 0, 0
	if cmd.HasIn {
		cmd.ExpectedIn = length
	}
	if cmd.HasOut {
		cmd.ExpectedOut = length
	}
	c.current, c.currentTask = ctl, t
	if key, code, bad := c.badData(t, length); bad {
		cmd.Fail(key, code)
		c.finish(t)
	} else {
		t.started = true
		c.advance(t, c.nexus.Start(cmd))
	}
	c.current, c.currentTask = nil, nil
}

// badData holds the data that comes with a command against what was negotiated. The sense data is that of RFC 7143.
func (c *Connection) badData(t *Task, expected uint32) (scsi.SenseKey, scsi.AdditionalSense, bool) {
	if t.Command.HasIn && t.Command.HasOut {
		// Bidirectional commands do not exist here.
		return scsi.IllegalRequest, scsi.InvalidFieldInInformationUnit, true
	}
	if !t.Command.HasOut {
		return 0, 0, false
	}
	switch n := t.ImmediateLength; {
	case n > 0 && !c.params.ImmediateData, n > c.params.FirstBurstLength, n > expected, t.Unsolicited && c.params.InitialR2T:
		return scsi.AbortedCommand, scsi.UnexpectedUnsolicitedData, true
	}
	return 0, 0, false
}

// noSlot answers a command for which there is no task slot. It cannot happen to an initiator that keeps to the window,
// unless responses leave very slowly.
func (c *Connection) noSlot(req *pdu.SCSICommand, immediate bool) {
	c.node.count.busy.Add(1)
	c.answered(immediate)
	r := c.out.SCSIResponse()
	itt, expected := req.InitiatorTaskTag(), req.ExpectedDataTransferLength()
	moves := req.Read() || req.Write()
	r.Init()
	r.SetInitiatorTaskTag(itt)
	r.SetStatus(uint8(scsi.StatusBusy))
	if moves && expected > 0 {
		r.SetUnderflow(true)
		r.SetResidualCount(expected)
	}
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, nil, nil)
}

// advance takes a command from what Start or Execute said to where it has to wait, or to its response.
func (c *Connection) advance(t *Task, next scsi.Next) {
	cmd := &t.Command
	for {
		switch next {
		case scsi.NextDone:
			c.finish(t)
			return
		case scsi.NextPending:
			t.state = taskStore
			c.inStore++
			return
		case scsi.NextExecute:
		case scsi.NextDataIn:
			if !c.buffers(t, next, cmd.DataInLength) {
				return
			}
		case scsi.NextDataOut:
			if !c.dataOut(t) {
				return
			}
		default:
			cmd.Fail(scsi.HardwareError, scsi.InternalTargetFailure)
			c.finish(t)
			return
		}
		next = cmd.Execute()
	}
}

// buffers sets the command's Data to n bytes of room. False: the task waits for memory, behind those that already do.
func (c *Connection) buffers(t *Task, next scsi.Next, n uint32) bool {
	if c.waitHead == nil || c.waitHead == t {
		if b, ok := c.dm.AllocateDataBuffers(t, n); ok {
			t.Command.Data = b
			return true
		}
	}
	if t.state != taskBuffers {
		c.node.count.bufferWaits.Add(1)
		t.state, t.next, t.waitNext = taskBuffers, next, nil
		if c.waitTail == nil {
			c.waitHead = t
		} else {
			c.waitTail.waitNext = t
		}
		c.waitTail = t
	}
	return false
}

// dataOut sets the command's Data to what the initiator sends. False: the task waits.
func (c *Connection) dataOut(t *Task) bool {
	cmd := &t.Command
	n := cmd.DataOutLength
	if m := t.ImmediateLength; m > 0 {
		c.retain(t)
		if n <= m {
			// All of it came with the command and is used where it lies.
			t.one[0] = t.data[:n]
			cmd.Data = t.one[:]
			return true
		}
	}
	if n == 0 {
		cmd.Data = nil
		return true
	}
	if !c.buffers(t, scsi.NextDataOut, n) {
		return false
	}
	rest := append(t.rest[:0], cmd.Data...)
	t.rest = rest
	if m := t.ImmediateLength; m > 0 {
		// Copying what came along frees the receive buffer for as long as the rest takes, and leaves the store one piece.
		data := t.data
		for len(data) > 0 {
			k := copy(rest[0], data)
			data, rest[0] = data[k:], rest[0][k:]
			if len(rest[0]) == 0 {
				rest = rest[1:]
			}
		}
		c.releaseControl(t)
	}
	t.state = taskData
	t.settled = true // the datamover has it all when it notifies
	c.dm.GetData(t, t.ImmediateLength, n-t.ImmediateLength, rest)
	return false
}

// retain keeps the receive buffer that the command came in.
func (c *Connection) retain(t *Task) {
	if !t.retained && c.currentTask == t {
		t.data, t.handle, t.retained = c.current.Data, c.current.Handle, true
		c.current.Retain = true
	}
}

// releaseControl gives the receive buffer back.
func (c *Connection) releaseControl(t *Task) {
	if !t.retained {
		return
	}
	t.retained, t.data, t.one[0] = false, nil, nil
	if c.currentTask == t {
		c.current.Retain = false
		return
	}
	c.dm.ReleaseControl(t.handle)
}

// BuffersNotify tells that memory came back.
func (c *Connection) BuffersNotify() {
	for c.waitHead != nil {
		t := c.waitHead
		next := t.next
		if next == scsi.NextDataIn {
			if !c.buffers(t, next, t.Command.DataInLength) {
				return
			}
			c.unqueue(t)
			t.state = taskRunning
			c.advance(t, t.Command.Execute())
			continue
		}
		// dataOut sets the state anew when it finds the memory.
		if c.dataOut(t); t.state == taskBuffers {
			return
		}
		c.unqueue(t)
	}
}

// unqueue takes a task off the list of those that wait for memory.
func (c *Connection) unqueue(t *Task) {
	var before *Task
	for w := c.waitHead; w != nil; before, w = w, w.waitNext {
		if w != t {
			continue
		}
		if before == nil {
			c.waitHead = t.waitNext
		} else {
			before.waitNext = t.waitNext
		}
		if c.waitTail == t {
			c.waitTail = before
		}
		t.waitNext = nil
		return
	}
}

// DataCompletionNotify tells that the data-out of a task is there, or failed to come.
func (c *Connection) DataCompletionNotify(t *Task, err error) {
	c.lastHeard = c.node.clock.Load()
	if t.state != taskData && t.state != taskDiscard {
		return
	}
	switch {
	case t.aborted:
		c.dispose(t)
		c.settle()
	case t.state == taskDiscard:
		t.settled = true
		t.state = taskRunning
		c.finish(t)
	case err != nil:
		t.state = taskRunning
		key, code := dataSense(err)
		t.Command.Fail(key, code)
		c.finish(t)
	default:
		t.state = taskRunning
		c.bytesOut.Add(uint64(t.Command.DataOutLength))
		c.advance(t, t.Command.Execute())
	}
}

// dataSense maps a datamover's error to the sense data that RFC 7143 gives for it.
func dataSense(err error) (scsi.SenseKey, scsi.AdditionalSense) {
	switch {
	case errors.Is(err, ErrDataDigest):
		return scsi.AbortedCommand, scsi.ProtocolServiceCRCError
	case errors.Is(err, ErrUnexpectedData):
		return scsi.AbortedCommand, scsi.UnexpectedUnsolicitedData
	case errors.Is(err, ErrDataSequence):
		return scsi.AbortedCommand, scsi.NotEnoughUnsolicitedData
	}
	return scsi.AbortedCommand, scsi.DataPhaseError
}

// storeFinished goes on with a task that a store has given back.
func (c *Connection) storeFinished(t *Task) {
	t.state = taskRunning
	if t.aborted {
		c.dispose(t)
	} else {
		c.finish(t)
	}
	if c.inStore == 0 && c.quietOwed {
		c.quietOwed = false
		c.session.quiet.part()
	}
	c.settle()
}

// finish sends what a finished command has to say.
func (c *Connection) finish(t *Task) {
	c.releaseControl(t)
	if !t.settled {
		// The initiator may still send data for the command; the response must not meet it on its way.
		t.state = taskDiscard
		c.dm.GetData(t, t.ImmediateLength, 0, nil)
		return
	}
	cmd := &t.Command
	t.state = taskRespond
	c.answered(t.immediate)
	if t.immediate {
		c.immediateTasks--
	}
	if cmd.DataInLength > 0 {
		c.bytesIn.Add(uint64(cmd.DataInLength))
		c.dm.PutData(t)
	}
	r := c.out.SCSIResponse()
	r.Init()
	r.SetInitiatorTaskTag(cmd.Tag)
	r.SetStatus(uint8(cmd.Status))
	kind, residual := scsi.ResidualUnderflow, max(cmd.ExpectedIn, cmd.ExpectedOut)
	if t.started {
		kind, residual = cmd.Residual()
	}
	if residual > 0 {
		r.SetResidualCount(residual)
		r.SetUnderflow(kind == scsi.ResidualUnderflow)
		r.SetOverflow(kind == scsi.ResidualOverflow)
	}
	var sense []byte
	if n := cmd.SenseLength; n > 0 {
		// RFC 7143: two bytes of length before the sense data.
		c.sense[0], c.sense[1] = byte(n>>8), byte(n)
		copy(c.sense[2:], cmd.Sense[:n])
		sense = c.sense[:2+n]
	}
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, sense, t)
}

// TaskReleased tells that a task's response and data have left.
func (c *Connection) TaskReleased(t *Task) {
	if t.state != taskRespond {
		return
	}
	c.freeTask(t)
	c.settle()
}

// dispose ends a task without a response, or without waiting for its response to leave.
func (c *Connection) dispose(t *Task) {
	switch t.state {
	case taskRespond: // answered
	case taskBuffers:
		c.unqueue(t)
		fallthrough
	default:
		c.answered(t.immediate)
		if t.immediate {
			c.immediateTasks--
		}
	}
	c.releaseControl(t)
	c.freeTask(t)
}

// freeTask gives a slot back.
func (c *Connection) freeTask(t *Task) {
	if t.started {
		t.Command.Release()
	}
	c.dm.DeallocateTaskResources(t)
	clear(t.rest)
	if len(t.watchers) > 0 {
		c.tellWatchers(t)
	}
	t.state = taskFree
	c.free = append(c.free, t)
	c.busy--
}
