package iscsi

import (
	"sync/atomic"
	"time"

	"iserd/internal/serial"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

// tmf is a task management function between its request and its response. The response waits, for TMFWait at most,
// until the tasks that it aborted are back from wherever they are; nothing else waits with it (known-faults B91).
type tmf struct {
	owner     *Connection
	function  pdu.TMFunction
	lun       uint64
	itt       uint32
	immediate bool
	begun     int64
	deadline  int64
	answered  bool // the owner's

	// Which tasks: those at lu, or, if that is nil, all at target.
	lu     *scsi.LogicalUnit
	target *Target

	// pending counts tasks and connections that the response waits for, and one more while the function is being carried
	// out. tasks is all that were affected, writes those pending in a store as writes.
	pending, tasks, writes atomic.Int32
}

// taskManagement carries out a task management function. Every path ends in one response (known-faults B93).
func (c *Connection) taskManagement(ctl *Control, immediate bool) {
	req := ctl.BHS.TaskManagementRequest()
	if immediate && len(c.tmfs) >= immediateAllowance {
		c.reject(ctl.BHS, pdu.RejectImmediateCommand)
		return
	}
	c.node.count.tmfs.Add(1)
	f := &tmf{owner: c, function: req.Function(), lun: ctl.BHS.LUN(), itt: req.InitiatorTaskTag(), immediate: immediate,
		begun: c.node.monotonic()}
	f.deadline = f.begun + int64(c.node.cfg.TMFWait)
	f.pending.Store(1)
	c.tmfs = append(c.tmfs, f)
	if response := c.carryOut(f, req); response != pdu.TMFunctionComplete {
		c.respondTMF(f, response)
		return
	}
	if f.pending.Add(-1) == 0 {
		c.answerTMF(f)
		return
	}
	c.rearm()
}

// carryOut does the function. Anything but "function complete" is the response; that comes when nothing is pending.
func (c *Connection) carryOut(f *tmf, req *pdu.TaskManagementRequest) pdu.TMResponse {
	switch f.function {
	case pdu.TMTargetWarmReset, pdu.TMTargetColdReset:
		f.target = c.target
		c.target.cfg.Device.Reset(f.function == pdu.TMTargetColdReset)
		c.abortEverywhere(f)
		return pdu.TMFunctionComplete
	case pdu.TMTaskReassign:
		return pdu.TMReassignNotSupported
	case pdu.TMAbortTask:
		return c.abortOne(f, req)
	case pdu.TMAbortTaskSet, pdu.TMClearACA, pdu.TMClearTaskSet, pdu.TMLogicalUnitReset:
	default:
		return pdu.TMFunctionNotSupported
	}
	if f.lu = c.nexus.LookupLUN(f.lun); f.lu == nil {
		return pdu.TMLUNDoesNotExist
	}
	switch f.function {
	case pdu.TMClearACA:
		// The standard INQUIRY data says NORMACA 0.
		return pdu.TMFunctionNotSupported
	case pdu.TMAbortTaskSet:
		c.abortAll(f)
	case pdu.TMClearTaskSet:
		f.lu.ClearTaskSet(c.nexus)
		c.abortEverywhere(f)
	case pdu.TMLogicalUnitReset:
		f.lu.Reset()
		c.abortEverywhere(f)
	}
	return pdu.TMFunctionComplete
}

// abortOne is ABORT TASK. A task whose response was queued is no more: the response goes out before this one's
// (known-faults B89, B90).
func (c *Connection) abortOne(f *tmf, req *pdu.TaskManagementRequest) pdu.TMResponse {
	tag := req.ReferencedTaskTag()
	for i := range c.tasks {
		t := &c.tasks[i]
		if t.abortable() && t.Command.Tag == tag && t.Command.LUN == f.lun {
			c.abortTask(t, f)
			return pdu.TMFunctionComplete
		}
	}
	if c.nexus.LookupLUN(f.lun) == nil {
		return pdu.TMLUNDoesNotExist
	}
	// RFC 7143: a command that the function overtook counts as received and aborted.
	if ref := req.RefCmdSN(); ref.InWindow(c.win.exp, c.win.max) && ref.Less(req.CmdSN()) {
		c.abortUnseen(ref, tag)
		return pdu.TMFunctionComplete
	}
	return pdu.TMTaskDoesNotExist
}

// abortUnseen makes the command with a CmdSN that has not been worked on count as received.
func (c *Connection) abortUnseen(sn serial.Number, tag uint32) {
	if h := c.heldAt(sn); h.present && !h.void && h.ctl.BHS.InitiatorTaskTag() == tag {
		if h.ctl.Retain {
			c.dm.ReleaseControl(h.ctl.Handle)
		}
		*h = heldPDU{present: true, void: true, sn: sn}
		return
	}
	c.holdVoid(sn)
}

func (t *Task) abortable() bool {
	return t.state == taskBuffers || t.state == taskData || t.state == taskDiscard || t.state == taskStore
}

// abortEverywhere aborts the function's tasks here and has every other connection do the same in its own turn. Those
// that are ending are asked too: their requests may still be in stores.
func (c *Connection) abortEverywhere(f *tmf) {
	c.abortAll(f)
	n := c.node
	n.mu.Lock()
	others := make([]*Connection, 0, len(n.conns))
	for o := range n.conns {
		if o != c {
			others = append(others, o)
		}
	}
	n.mu.Unlock()
	f.pending.Add(int32(len(others)))
	for _, o := range others {
		if !o.post(message{kind: msgAbort, tmf: f}) {
			f.done()
		}
	}
}

// abortAll aborts the function's tasks of this connection.
func (c *Connection) abortAll(f *tmf) {
	if f.lu == nil && f.target != c.target {
		return
	}
	for i := range c.tasks {
		t := &c.tasks[i]
		if t.abortable() && (f.lu == nil || t.started && t.Command.LU == f.lu) {
			c.abortTask(t, f)
		}
	}
}

// abortTask ends a task without a response: at once where it only waits, when it comes back otherwise. f, if not nil,
// learns of it.
func (c *Connection) abortTask(t *Task, f *tmf) {
	if f != nil {
		f.tasks.Add(1)
	}
	first := !t.aborted
	t.aborted = true
	if first {
		c.node.count.aborted.Add(1)
	}
	switch t.state {
	case taskBuffers:
		c.dispose(t)
		return
	case taskStore:
		t.Command.Abort()
		t.lateWrite = t.Command.HasOut
	case taskData, taskDiscard:
		if first && c.canceler != nil && c.phase == phaseFull {
			c.canceler.CancelData(t)
		}
	}
	if f != nil {
		t.watchers = append(t.watchers, f)
		f.pending.Add(1)
		if t.lateWrite {
			f.writes.Add(1)
		}
	}
}

// abortForEnd aborts what a session leaves behind. Responses that were queued may still leave.
func (c *Connection) abortForEnd() {
	for i := range c.tasks {
		if t := &c.tasks[i]; t.abortable() {
			c.abortTask(t, nil)
		}
	}
}

// tellWatchers tells the functions that wait for a task of its end.
func (c *Connection) tellWatchers(t *Task) {
	for i, f := range t.watchers {
		if t.lateWrite {
			f.writes.Add(-1)
		}
		f.done()
		t.watchers[i] = nil
	}
	t.watchers = t.watchers[:0]
}

// done ends one of the things that the response waits for. Any goroutine.
func (f *tmf) done() {
	if f.pending.Add(-1) == 0 {
		f.owner.post(message{kind: msgTMFDone, tmf: f})
	}
}

// answerTMF sends the response of a function that was carried out, when nothing is pending or time is up. Reads that are
// still in a store harm nobody: their result is thrown away. A write may still land, so it cannot be called aborted.
func (c *Connection) answerTMF(f *tmf) {
	if f.answered {
		return
	}
	response := pdu.TMFunctionComplete
	if f.pending.Load() > 0 {
		c.node.count.tmfTimeouts.Add(1)
		if w := f.writes.Load(); w > 0 {
			c.node.count.lateWrites.Add(uint64(w))
			response = pdu.TMFunctionRejected
		}
	}
	c.respondTMF(f, response)
}

func (c *Connection) respondTMF(f *tmf, response pdu.TMResponse) {
	f.answered = true
	for i, g := range c.tmfs {
		if g == f {
			c.tmfs = append(c.tmfs[:i], c.tmfs[i+1:]...)
			break
		}
	}
	if c.phase != phaseFull {
		return
	}
	c.answered(f.immediate)
	r := c.out.TaskManagementResponse()
	r.Init()
	r.SetInitiatorTaskTag(f.itt)
	r.SetResponse(response)
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, nil, nil)
	call(c.node.cfg.Events.TaskManagement, TaskManagementEvent{Peer: c.peer(), Function: f.function, LUN: f.lun, Response: response,
		Tasks: int(f.tasks.Load()), Late: int(f.pending.Load()), Took: time.Duration(c.node.monotonic() - f.begun)})
	c.afterTMF(f)
}

// coldResets ends the functions of a connection that ends. A cold reset still ends the target's sessions.
func (c *Connection) coldResets() {
	tmfs := c.tmfs
	c.tmfs = nil
	for _, f := range tmfs {
		if !f.answered {
			f.answered = true
			c.endOthers(f)
		}
	}
}

// afterTMF does what follows the response of TARGET COLD RESET: every session of the target ends (known-faults B94).
func (c *Connection) afterTMF(f *tmf) {
	if c.endOthers(f) {
		c.end(endRemoved, coldResetCause)
	}
}

const coldResetCause = "TARGET COLD RESET"

func (c *Connection) endOthers(f *tmf) bool {
	if f.function != pdu.TMTargetColdReset || f.target == nil {
		return false
	}
	for _, s := range f.target.Sessions() {
		if s.conn != c {
			s.conn.post(message{kind: msgEnd, how: endRemoved, cause: coldResetCause, notice: true})
		}
	}
	return true
}
