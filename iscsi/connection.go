package iscsi

import (
	"sync/atomic"

	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

// phase is where a connection is in its life. It only grows.
type phase uint8

const (
	phaseLogin     phase = iota
	phaseAdmission       // login is complete; the final response waits for an older session to be quiet
	phaseFull            // full feature phase
	phaseEnding          // ConnectionTerminate was called
	phaseDraining        // the datamover is done; tasks are still in stores
	phaseGone
)

func (p phase) String() string {
	return [...]string{"login", "admission", "full feature", "ending", "draining", "gone"}[p]
}

// ending is how a session or a connection ends.
type ending uint8

const (
	endLogout     ending = iota // in order
	endReinstated               // the initiator logged in again
	endRemoved                  // by us: target removed, shutdown, reset
	endRefused                  // the login was refused
	endDead                     // the initiator does not answer any more
	endLost                     // anything else
)

// Connection is the protocol engine of one connection. All methods but Info are called inside turns (see [Datamover]).
type Connection struct {
	node     *Node
	dm       Datamover
	canceler DataCanceler // nil when dm is none
	info     ConnInfo

	// Any goroutine.
	completed                   atomic.Pointer[Task] // tasks that stores have finished, newest first
	mail                        mailbox
	due                         atomic.Int64 // when Turn has a timer to look at
	commands, bytesIn, bytesOut atomic.Uint64
	inLogin                     bool // guarded by node.mu

	// The turn's.
	phase     phase
	win       window
	statSN    serial.Number
	lastHeard int64
	out       pdu.BHS // scratch for the PDU being sent
	sense     [2 + scsi.MaxSense]byte
	nexus     *scsi.ITNexus
	params    login.Params
	session   *Session // from admission on

	tasks          []Task
	free           []*Task
	busy           int // tasks that are not free
	inStore        int // of those, tasks that a store has
	immediateTasks int
	waitHead       *Task // tasks that wait for buffers, oldest first
	waitTail       *Task
	current        *Control // the PDU that currentTask came with, during its ControlNotify
	currentTask    *Task
	held           []heldPDU
	heldCount      int

	tmfs    []*tmf
	text    textState
	textTag uint32

	machine  *login.Machine
	target   *Target
	names    login.Names
	final    pdu.BHS // the final login response, until it goes out
	finalOut []byte
	waitFor  int // sessions that must be quiet first
	// quietOwed: the session has ended and its quiet waits for the last task to come back from a store.
	quietOwed bool
	loginBy   int64
	admitBy   int64
	begun     bool // a login request was seen
	overload  bool

	pinging     bool
	pingTag     uint32
	pingSent    int64
	logoutAsked bool
	logoutBy    int64
}

// Info says between whom the connection runs.
func (c *Connection) Info() ConnInfo { return c.info }

// Params is what login negotiated, valid from [Datamover.NoticeKeyValues] on.
func (c *Connection) Params() login.Params { return c.params }

// Numbers are for the PDUs that the datamover makes itself (Data-In, R2T): the StatSN that the next response will carry,
// which they do not use up, and the command window.
func (c *Connection) Numbers() (nextStatSN, expCmdSN, maxCmdSN serial.Number) {
	return c.statSN, c.win.exp, c.win.max
}

func (c *Connection) isISER() bool { return c.info.Transport == login.TransportISER }

// ControlNotify takes a control-type PDU. Data-Out PDUs are the datamover's.
func (c *Connection) ControlNotify(ctl *Control) {
	c.lastHeard = c.node.clock.Load()
	switch c.phase {
	case phaseFull:
		c.receive(ctl)
	case phaseLogin:
		c.loginPDU(ctl)
	case phaseAdmission:
		// One login PDU at a time: the answer to the last one is still due.
		c.end(endLost, "a PDU while the final login response is due")
	}
}

// receive puts a PDU into the order of CmdSN (RFC 7143: immediate ones are worked on as they come).
func (c *Connection) receive(ctl *Control) {
	b := ctl.BHS
	op := b.Opcode()
	switch op {
	case pdu.OpSCSICommand, pdu.OpNOPOut, pdu.OpTaskManagementRequest, pdu.OpTextRequest, pdu.OpLogoutRequest:
	default:
		c.unordered(ctl, op)
		return
	}
	if b.Immediate() {
		c.dispatch(ctl, true)
		return
	}
	if op == pdu.OpNOPOut && b.InitiatorTaskTag() == pdu.ReservedTag {
		// An answer to a ping must be immediate; there is no place in the order for it, and none to answer.
		c.reject(b, pdu.RejectProtocolError)
		return
	}
	switch sn := b.SCSICommand().CmdSN(); {
	case sn == c.win.exp && c.win.exp.LessEq(c.win.max):
		c.win.take()
		c.dispatch(ctl, false)
		if c.heldCount > 0 {
			c.releaseHeld()
		}
	case sn.InWindow(c.win.exp, c.win.max):
		c.hold(sn, ctl)
	default:
		// RFC 7143: commands outside the window and duplicates are silently ignored.
		c.node.count.ignored.Add(1)
	}
}

// unordered answers what has no CmdSN or no place in full feature phase.
func (c *Connection) unordered(ctl *Control, op pdu.Opcode) {
	switch op {
	case pdu.OpDataOut:
		// The datamover's. It hands up one that was damaged, for the Reject that RFC 7143 wants; any other that ends up
		// here belongs to a task that is no more.
		if ctl.DataDigestError {
			c.reject(ctl.BHS, pdu.RejectDataDigestError)
		}
	case pdu.OpSNACK:
		// RFC 7143: SNACK is for error recovery levels above 0.
		c.reject(ctl.BHS, pdu.RejectSNACK)
	case pdu.OpLoginRequest:
		c.reject(ctl.BHS, pdu.RejectProtocolError)
	default:
		c.reject(ctl.BHS, pdu.RejectCommandNotSupported)
	}
}

// dispatch works on a request whose turn has come.
func (c *Connection) dispatch(ctl *Control, immediate bool) {
	b := ctl.BHS
	if ctl.DataDigestError {
		c.digestError(b, immediate)
		return
	}
	if reason, ok := b.Check(); !ok {
		c.answered(immediate)
		c.reject(b, reason)
		return
	}
	op := b.Opcode()
	if c.session.target == nil && (op == pdu.OpSCSICommand || op == pdu.OpTaskManagementRequest) {
		// RFC 7143: a discovery session has no SCSI.
		c.answered(immediate)
		c.reject(b, pdu.RejectProtocolError)
		return
	}
	switch op {
	case pdu.OpSCSICommand:
		c.command(ctl, immediate)
	case pdu.OpNOPOut:
		c.nopOut(ctl, immediate)
	case pdu.OpTaskManagementRequest:
		c.taskManagement(ctl, immediate)
	case pdu.OpTextRequest:
		c.textRequest(ctl, immediate)
	case pdu.OpLogoutRequest:
		c.logout(ctl, immediate)
	}
}

// digestError answers a request whose data was damaged. RFC 7143 has it discarded; at error recovery level 0 the place
// that it leaves in the order cannot be filled again, so that only a new session helps.
func (c *Connection) digestError(b *pdu.BHS, immediate bool) {
	c.answered(immediate)
	c.reject(b, pdu.RejectDataDigestError)
	if !immediate {
		c.end(endLost, "data digest error in a "+b.Opcode().String())
	}
}

// Turn does what the engine asked for with Wake.
func (c *Connection) Turn() {
	if c.phase == phaseGone {
		return
	}
	c.drainCompleted()
	c.readMail()
	if c.due.Load() <= c.node.clock.Load() {
		c.timers()
	}
}

// MalformedNotify tells of bytes that could not be made a PDU of: bad lengths, a header digest error. The connection ends,
// and nothing else.
func (c *Connection) MalformedNotify(cause string) {
	c.node.count.malformed.Add(1)
	switch {
	case c.phase == phaseLogin && c.begun:
		c.refuse(login.StatusInitiatorError, cause)
	default:
		c.end(endLost, cause)
	}
}

// end ends the connection, and its session if it has one. It may be called at any time, again too.
func (c *Connection) end(how ending, cause string) {
	if c.phase >= phaseEnding {
		return
	}
	c.begunToEnd(how, cause)
	c.phase = phaseEnding
	c.rearm()
	// What was queued leaves first: a response to the last request, a Reject that says why.
	c.dm.ConnectionTerminate(how != endReinstated && how != endDead)
	c.settle()
}

// begunToEnd ends the session, or tells of a login that came to nothing.
func (c *Connection) begunToEnd(how ending, cause string) {
	c.node.leaveLogin(c)
	switch {
	case c.session != nil:
		c.endSession(how, cause)
	case how == endRefused: // told
	case !c.begun:
		c.node.count.probes.Add(1)
		call(c.node.cfg.Events.Probe, ProbeEvent{Initiator: c.initiator(), Cause: cause})
	default:
		c.refused(login.StatusSuccess, "the login was given up: "+cause)
	}
}

// ConnectionTerminateNotify tells that the datamover is done with the connection: it touches no buffer of a task any more.
// cause is nil when the peer went in order, or when we ended it.
func (c *Connection) ConnectionTerminateNotify(cause error) {
	if c.phase >= phaseDraining {
		return
	}
	if c.phase < phaseEnding {
		how, why := endLost, "the initiator closed the connection"
		if cause != nil {
			why = cause.Error()
		} else if c.session != nil && c.session.target == nil {
			// A discovery that ends without a logout is over all the same (known-faults B33).
			how = endLogout
		}
		c.begunToEnd(how, why)
	}
	c.phase = phaseDraining
	c.rearm()
	c.dropHeld()
	for i := range c.tasks {
		if t := &c.tasks[i]; t.state != taskFree && t.state != taskStore {
			c.dispose(t)
		}
	}
	c.settle()
}

// settle lets go of a connection that nothing holds any more.
func (c *Connection) settle() {
	if c.phase != phaseDraining || c.busy > 0 {
		return
	}
	c.phase = phaseGone
	c.closeMail()
	c.dm.DeallocateConnectionResources()
	c.node.forget(c)
}

// endSession ends the session: nobody finds it any more, its commands are aborted, its nexus is lost. Requests that
// stores have come back later; until then the session's quiet is not.
func (c *Connection) endSession(how ending, cause string) {
	s := c.session
	if s.ended {
		return
	}
	s.ended = true
	c.abortForEnd()
	c.coldResets()
	c.text = textState{}
	if c.inStore > 0 {
		c.quietOwed = true
		s.quiet.add(1)
	}
	c.node.unregister(s, c.inStore > 0 || c.waitFor > 0)
	s.quiet.part()
	if s.nexus != nil {
		s.nexus.Close()
	}
	if c.phase != phaseFull {
		c.refused(login.StatusSuccess, "the login was given up: "+cause)
		return
	}
	n := c.node
	e := SessionEvent{Peer: c.peer(), Discovery: s.target == nil, Device: c.info.Device, Since: s.since, Cause: cause}
	switch how {
	case endLogout:
		n.count.logouts.Add(1)
		call(n.cfg.Events.Logout, e)
	case endReinstated:
		n.count.reinstatements.Add(1)
		call(n.cfg.Events.Reinstated, e)
	case endRemoved:
		n.count.removed.Add(1)
		call(n.cfg.Events.Removed, e)
	default:
		n.count.lost.Add(1)
		call(n.cfg.Events.Lost, e)
	}
}

func (c *Connection) initiator() Initiator {
	return Initiator{Name: c.names.InitiatorName, Remote: c.info.Remote, Local: c.info.Local, Transport: c.info.Transport}
}

func (c *Connection) peer() Peer {
	p := Peer{Initiator: c.initiator(), Target: c.names.TargetName, ISID: c.names.ISID}
	if c.session != nil {
		p.TSIH = c.session.tsih
	}
	return p
}
