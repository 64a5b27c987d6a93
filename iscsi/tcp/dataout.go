package tcp

import (
	"errors"

	"iserd/iscsi"
	"iserd/iscsi/pdu"
)

// maxR2T is how many R2Ts of one task may be out. More do not help: one covers MaxBurstLength.
const maxR2T = 4

// xfer is the transfer state of a task slot.
type xfer struct {
	// buffers are what AllocateDataBuffers gave.
	buffers [][]byte
	// dataSN and r2tSN count the Data-In and R2T PDUs of the command.
	dataSN, r2tSN uint32

	// t is the task while a GetData is under way. Its range is base to end of the initiator's buffer.
	t         *iscsi.Task
	base, end uint32
	dst       [][]byte
	burst     *burst // unsolicited data that is still to come
	// asked is the offset from which no R2T went out yet, missing the number of bytes of the range that have not come.
	asked, missing uint32
	open           int // R2Ts out
	r2t            [maxR2T]r2t
	generation     uint32
}

// r2t is an R2T that was sent; its sequence of Data-Out PDUs goes from next to end.
type r2t struct {
	ttt       uint32
	next, end uint32
	dataSN    uint32
	open      bool
}

// A target transfer tag holds the task's slot, the number of the R2T of that slot and a generation, so that data for an
// R2T that is not waited for any more is recognised. Slots end before 0xffff, so it is never the reserved tag.
const (
	tttSlotBits   = 16
	tttNumberBits = 2 // maxR2T
	tttGenBits    = 32 - tttSlotBits - tttNumberBits
	maxSlots      = 1<<tttSlotBits - 1
)

func makeTTT(slot, number int, generation uint32) uint32 {
	return generation<<(32-tttGenBits) | uint32(number)<<tttSlotBits | uint32(slot)
}

func tttSlot(ttt uint32) int   { return int(ttt & (1<<tttSlotBits - 1)) }
func tttNumber(ttt uint32) int { return int(ttt >> tttSlotBits & (maxR2T - 1)) }

// burst is the unsolicited data of one command, from the command PDU until the Data-Out PDU with the F bit has come and
// GetData has been called.
type burst struct {
	used   bool
	orphan bool // no GetData will come: what arrives is thrown away
	ended  bool // the F bit came
	itt    uint32
	age    uint64
	start  uint32 // length of the immediate data
	next   uint32 // offset that must come next
	limit  uint32 // offset at which it must end
	dataSN uint32
	err    error // what GetData will end with; the data is thrown away
	x      *xfer // the transfer that takes the data
	spill  []byte
}

// newBurst notes that unsolicited data will follow a command. It returns the note's number from 1, for Control.Private;
// 0 is none.
func (c *conn) newBurst(cmd *pdu.SCSICommand, orphan bool) (uint64, bool) {
	if c.bursts == nil {
		// Notes of commands that the engine refused are known only by their age, hence the extra room.
		c.bursts = make([]burst, 2*len(c.xfers)+1)
	}
	b := c.freeBurst(cmd.InitiatorTaskTag())
	if b < 0 {
		return 0, false
	}
	n := uint32(cmd.BHS().DataSegmentLength())
	c.burstAge++
	c.bursts[b] = burst{used: true, orphan: orphan, itt: cmd.InitiatorTaskTag(), age: c.burstAge, start: n, next: n,
		limit: min(c.rx.firstBurst, cmd.ExpectedDataTransferLength())}
	if c.rx.initialR2T || n > c.bursts[b].limit {
		c.bursts[b].err = iscsi.ErrUnexpectedData
	}
	return uint64(b) + 1, true
}

// freeBurst finds a place: a free one, that of the same tag, or that of the oldest note that only waits for a GetData.
func (c *conn) freeBurst(itt uint32) int {
	free, oldest := -1, -1
	for i := range c.bursts {
		switch b := &c.bursts[i]; {
		case !b.used:
			if free < 0 {
				free = i
			}
		case b.x != nil:
		case b.itt == itt && !b.ended:
			return i
		case b.ended && (oldest < 0 || b.age < c.bursts[oldest].age):
			oldest = i
		}
	}
	if free < 0 {
		return oldest
	}
	return free
}

// findBurst is the note that a Data-Out PDU without a transfer tag belongs to.
func (c *conn) findBurst(itt uint32) *burst {
	for i := range c.bursts {
		if b := &c.bursts[i]; b.used && !b.ended && b.itt == itt {
			return b
		}
	}
	return nil
}

// GetData implements [iscsi.Datamover]. Data of the burst that lies outside of the range is dropped, so the first call
// for a command must ask for all that may come unsolicited.
func (c *conn) GetData(t *iscsi.Task, offset, length uint32, dst [][]byte) {
	if c.phase >= phaseEnded {
		return
	}
	x := &c.xfers[t.Index]
	x.t, x.base, x.end, x.dst = t, offset, offset+length, dst
	x.asked, x.missing = offset, length
	if t.Unsolicited && !c.attach(x) {
		return
	}
	if x.burst == nil {
		c.ask(x)
	}
}

// attach connects a transfer with its unsolicited data: what came already, and what will. It returns false when the
// transfer has failed.
func (c *conn) attach(x *xfer) bool {
	i := int(x.t.Private[0]) - 1
	if i < 0 {
		return true // it has come with an earlier call
	}
	x.t.Private[0] = 0
	b := &c.bursts[i]
	if !b.used || b.orphan || b.x != nil || b.itt != x.t.BHS.InitiatorTaskTag() {
		c.later(x, iscsi.ErrDataSequence)
		return false
	}
	if b.err != nil && x.base < x.end {
		c.later(x, b.err)
		b.orphan = true
		c.dropBurst(b)
		return false
	}
	if n := b.next - b.start; n > 0 && x.base < x.end {
		x.copyIn(b.start, b.spill[:n])
		x.arrived(b.start, n, true)
	}
	b.spill = nil
	b.x = x
	if !b.ended {
		x.burst = b
	}
	c.dropBurst(b)
	return true
}

// dropBurst frees a note that nobody needs any more.
func (c *conn) dropBurst(b *burst) {
	if b.ended && (b.orphan || b.x != nil) {
		*b = burst{}
	}
}

// copyIn copies data of the initiator's buffer into the transfer's memory, as far as it lies in its range.
func (x *xfer) copyIn(offset uint32, data []byte) {
	for len(data) > 0 {
		mem, n := x.at(offset, len(data))
		copy(mem, data)
		offset += uint32(n)
		data = data[n:]
	}
}

// at finds where data at offset goes: mem has n bytes, or none if these n bytes lie outside the range.
func (x *xfer) at(offset uint32, max int) (mem []byte, n int) {
	switch {
	case offset < x.base:
		return nil, min(max, int(x.base-offset))
	case offset >= x.end:
		return nil, max
	}
	at := int(offset - x.base)
	for _, p := range x.dst {
		if at < len(p) {
			n = min(max, len(p)-at)
			return p[at : at+n], n
		}
		at -= len(p)
	}
	return nil, max // not reached: dst has room for the range
}

// arrived counts data that is in its place.
func (x *xfer) arrived(offset, n uint32, unsolicited bool) {
	lo, hi := max(offset, x.base), min(offset+n, x.end)
	if lo >= hi {
		return
	}
	x.missing -= hi - lo
	if unsolicited {
		x.asked = hi
	}
}

// ask sends the R2Ts that may be out now, or ends a transfer that has everything.
func (c *conn) ask(x *xfer) {
	if x.missing == 0 {
		c.later(x, nil)
		return
	}
	for x.open < c.rx.maxR2T && x.asked < x.end {
		c.sendR2T(x)
	}
}

func (c *conn) sendR2T(x *xfer) {
	number := 0
	for x.r2t[number].open {
		number++
	}
	n := min(x.end-x.asked, c.tx.maxBurst)
	x.generation++
	r := &x.r2t[number]
	*r = r2t{ttt: makeTTT(x.t.Index, number, x.generation), next: x.asked, end: x.asked + n, open: true}
	x.open++
	statSN, expCmdSN, maxCmdSN := c.eng.Numbers()
	var bhs pdu.BHS
	p := bhs.R2T()
	p.Init()
	p.SetLUN(x.t.BHS.LUN())
	bhs.SetInitiatorTaskTag(x.t.BHS.InitiatorTaskTag())
	p.SetTargetTransferTag(r.ttt)
	// It carries the next StatSN and does not use it up (known-faults B98).
	p.SetStatSN(statSN)
	p.SetExpCmdSN(expCmdSN)
	p.SetMaxCmdSN(maxCmdSN)
	p.SetR2TSN(x.r2tSN)
	p.SetBufferOffset(x.asked)
	p.SetDesiredDataTransferLength(n)
	x.r2tSN++
	x.asked += n
	c.out.control(c, &bhs, nil)
}

type completion struct {
	t   *iscsi.Task
	err error
}

// later ends a transfer; the engine hears of it when it is not in the middle of a call to us.
func (c *conn) later(x *xfer, err error) {
	c.completions = append(c.completions, completion{x.t, err})
	c.forget(x)
}

// CancelData implements [iscsi.DataCanceler].
func (c *conn) CancelData(t *iscsi.Task) {
	if x := &c.xfers[t.Index]; x.t == t {
		c.later(x, errCanceled)
	}
}

var errCanceled = errors.New("tcp: the transfer was cancelled")

// pump tells the engine of transfers that have ended. The engine may begin others meanwhile.
func (c *conn) pump() {
	for i := 0; i < len(c.completions); i++ {
		if d := c.completions[i]; d.t != nil {
			c.eng.DataCompletionNotify(d.t, d.err)
		}
	}
	clear(c.completions)
	c.completions = c.completions[:0]
}

// forget ends a transfer: what still comes for it is thrown away.
func (c *conn) forget(x *xfer) {
	if b := x.burst; b != nil {
		b.x, b.orphan = nil, true
		x.burst = nil
	}
	if c.rx.x == x {
		c.rx.x = nil
	}
	x.t, x.dst = nil, nil
	x.missing, x.open = 0, 0
	for i := range x.r2t {
		x.r2t[i].open = false
	}
}

// reset readies a slot's state for its next command.
func (c *conn) reset(x *xfer) {
	if t := x.t; t != nil {
		c.forget(x)
	}
	x.dataSN, x.r2tSN = 0, 0
}
