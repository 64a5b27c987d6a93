package scsi

import (
	"sync/atomic"
)

// ITNexus is the relation between one initiator port and one target port: the session.
type ITNexus struct {
	device *Device
	name   nexusName
	closed atomic.Bool
	// paths are indexed by LUN, nil where there is nothing. A change of the map puts a new slice in place, under the
	// device's mu.
	paths atomic.Pointer[[]*path]
	// lunsChanged: REPORTED LUNS DATA HAS CHANGED is to be reported once on this nexus, at whichever logical unit is
	// asked next, or not at all if REPORT LUNS comes first.
	lunsChanged atomic.Bool
}

// path is an I_T_L nexus: one logical unit as one initiator port sees it.
type path struct {
	lu    *LogicalUnit
	nexus *ITNexus
	// running counts commands between Start and Release. A session runs on one core, so the count is not contended.
	running   atomic.Int64
	gone      atomic.Bool
	attention attentions
}

func newPath(n *ITNexus, lu *LogicalUnit) *path {
	p := &path{lu: lu, nexus: n}
	lu.addPath(p)
	return p
}

// retire ends the use of a path; the logical unit forgets it when its last command was released.
func (p *path) retire() {
	p.gone.Store(true)
	p.lu.reservedBy.CompareAndSwap(p.nexus, nil)
	p.collect()
}

func (p *path) collect() {
	if p.running.Load() == 0 {
		p.lu.dropPath(p)
	}
}

// setPath follows a change of the device's map; the device's mu is held.
func (n *ITNexus) setPath(lun uint16, lu *LogicalUnit) {
	old := *n.paths.Load()
	next := make([]*path, max(len(old), int(lun)+1))
	copy(next, old)
	was := next[lun]
	next[lun] = nil
	if lu != nil {
		next[lun] = newPath(n, lu)
		if was != nil {
			next[lun].attention.add(InquiryDataHasChanged)
		}
	}
	n.paths.Store(&next)
	n.lunsChanged.Store(true)
	if was != nil {
		was.retire()
	}
}

// InitiatorPortName is the name that the nexus was made with.
func (n *ITNexus) InitiatorPortName() string { return n.name.initiator }

// Device is the target device of the nexus.
func (n *ITNexus) Device() *Device { return n.device }

// Close is the I_T nexus loss: SPC-2 reservations are released, persistent reservations and registrations stay, and the logical units forget the nexus. Commands under way
// end by themselves and must still be released. It may be called twice.
func (n *ITNexus) Close() {
	if n.closed.Swap(true) {
		return
	}
	d := n.device
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nexuses, n)
	for _, p := range *n.paths.Load() {
		if p != nil {
			p.retire()
		}
	}
	n.paths.Store(&[]*path{})
}

// lookup finds the path to what a LUN field names.
func (n *ITNexus) lookup(lun uint64) *path {
	paths := *n.paths.Load()
	i := decodeLUN(lun)
	if uint(i) >= uint(len(paths)) {
		return nil
	}
	return paths[i]
}

// LookupLUN is the logical unit that a LUN field names on this nexus, nil if there is none.
func (n *ITNexus) LookupLUN(lun uint64) *LogicalUnit {
	if p := n.lookup(lun); p != nil && !p.lu.closed.Load() {
		return p.lu
	}
	return nil
}

// AddUnitAttention establishes a unit attention condition for this nexus at a logical unit. It does nothing if the
// nexus does not see the logical unit.
func (n *ITNexus) AddUnitAttention(lu *LogicalUnit, code AdditionalSense) {
	for _, p := range *n.paths.Load() {
		if p != nil && p.lu == lu {
			p.attention.add(code)
		}
	}
}

// Start begins a command: it checks everything that can be checked without data and says what to do next. See
// [Command].
func (n *ITNexus) Start(c *Command) (next Next) {
	c.reset(n)
	defer c.guard(&next)
	if len(c.CDB) < 6 {
		return c.Fail(IllegalRequest, InvalidFieldInCDB)
	}
	if p := n.lookup(c.LUN); p != nil {
		// Counted first, so that Close of the logical unit either sees the command or is seen by it.
		p.running.Add(1)
		if p.lu.closed.Load() || p.gone.Load() {
			p.release()
		} else {
			c.path, c.LU = p, p.lu
		}
	}
	op := n.device.commands.find(c.CDB)
	c.op = op
	if c.path == nil {
		return n.startWithoutUnit(c, op)
	}
	if (op == nil || op.flags&ignoresAttention == 0) && c.attentionPending() {
		return NextDone
	}
	if op == nil {
		return c.unknown()
	}
	if c.conflicts(op) {
		return c.FailStatus(StatusReservationConflict)
	}
	return c.begin(op)
}

// unknown refuses a command that is not in the table. Unknown service actions of the PERSISTENT RESERVE commands are
// fields of a known operation code, as SPC-4 has it; of the others they are answered like unknown operation codes, by
// which initiators recognize that a command is not there.
func (c *Command) unknown() Next {
	switch Opcode(c.CDB[0]) {
	case OpPersistentReserveIn, OpPersistentReserveOut:
		return c.invalidField(1)
	}
	return c.Fail(IllegalRequest, InvalidCommandOperationCode)
}

func (p *path) release() {
	if p.running.Add(-1) == 0 && p.gone.Load() {
		p.lu.dropPath(p)
	}
}

// begin checks what all commands have in common and runs the command's own start.
func (c *Command) begin(op *opcode) Next {
	if len(c.CDB) < int(op.length) {
		return c.Fail(IllegalRequest, InvalidFieldInCDB)
	}
	if c.Attr >= ACA {
		// There is no ACA condition that the command could belong to.
		return c.Fail(IllegalRequest, InvalidMessageError)
	}
	// NACA asks for auto contingent allegiance, which INQUIRY says is not supported (NORMACA 0).
	if c.CDB[op.length-1]&0x04 != 0 {
		return c.invalidField(int(op.length) - 1)
	}
	return c.run(op.start(c))
}

// startWithoutUnit answers commands to a LUN where nothing is, and to the REPORT LUNS well-known logical unit.
func (n *ITNexus) startWithoutUnit(c *Command, op *opcode) Next {
	wellKnown := c.LUN == wellKnownReportLUNs
	switch {
	case op != nil && op.flags&worksWithoutUnit != 0:
		return c.begin(op)
	case !wellKnown:
		return c.Fail(IllegalRequest, LogicalUnitNotSupported)
	case op != nil && op.code == OpTestUnitReady:
		return c.begin(op)
	}
	return c.Fail(IllegalRequest, InvalidCommandOperationCode)
}

// attentionPending ends the command with a pending unit attention, if there is one.
func (c *Command) attentionPending() bool {
	code, ok := c.takeAttention()
	if ok {
		c.Fail(UnitAttention, code)
	}
	return ok
}

// takeAttention removes the next unit attention of the command's path.
func (c *Command) takeAttention() (AdditionalSense, bool) {
	if code, ok := c.path.attention.take(); ok {
		return code, true
	}
	n := c.nexus
	if n.lunsChanged.Load() && n.lunsChanged.CompareAndSwap(true, false) {
		return ReportedLUNsDataHasChanged, true
	}
	return 0, false
}

// panicked ends a command whose handler panicked.
func (c *Command) panicked(reason any) Next {
	if lu := c.LU; lu != nil {
		lu.panics.Add(1)
		if lu.cfg.OnPanic != nil {
			lu.cfg.OnPanic(lu, c.CDB, reason)
		}
	}
	return c.Fail(HardwareError, InternalTargetFailure)
}
