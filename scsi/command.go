package scsi

import (
	"sync/atomic"

	"iserd/backstore"
)

// Next says what a command needs before it can go on.
type Next uint8

const (
	// NextDone: the command is finished; Status, Sense and Data are final.
	NextDone Next = iota
	// NextDataOut: bring DataOutLength bytes from the initiator into buffers, set Data to them, then call Execute.
	NextDataOut
	// NextDataIn: set Data to buffers of DataInLength bytes in total, then call Execute.
	NextDataIn
	// NextExecute: no buffers needed; call Execute.
	NextExecute
	// NextPending: the store has it; Done will be called once, on any goroutine.
	NextPending

	// nextAgain is internal: the handler put another store request into the command.
	nextAgain
)

func (n Next) String() string {
	switch n {
	case NextDone:
		return "done"
	case NextDataOut:
		return "data-out"
	case NextDataIn:
		return "data-in"
	case NextExecute:
		return "execute"
	case NextPending:
		return "pending"
	}
	return "unknown"
}

// MaxSense is the room for sense data: 126 bytes and the two bytes of length before them fill the 128 bytes that an
// iSER initiator can take in one response.
const MaxSense = 126

// InlineData is the room inside a command for small data-in: INQUIRY pages, mode pages, capacity and the like.
const InlineData = 1024

// Command is one SCSI command, a preallocated part of a transport's task. The transport fills the first group, calls
// [ITNexus.Start] and does what the returned Next says, until NextDone.
//
// Life of a READ over a store in memory that can be used in place: Start returns NextDone with Data in the store's
// memory. Over another store: Start returns NextDataIn, Execute returns NextDone or NextPending. Life of a WRITE:
// NextDataOut, then Execute.
//
// Data slices that the command handed out (inline data, store memory) are valid until Release. The transport must call
// Release once for each Start, after NextDone and after the data has left, or when it gives the command up between
// Start and Execute. A command that is pending in a store cannot be given up: Abort it and wait for Done.
type Command struct {
	// Filled by the transport before Start.
	LUN  uint64 // the eight LUN bytes, big endian
	CDB  []byte // 6 to 260 bytes; valid until Release
	Tag  uint32 // for logs and task management
	Attr TaskAttribute
	// ExpectedIn and ExpectedOut are the lengths, in bytes, that the initiator has room for or will send. HasIn and
	// HasOut are the R and W bits.
	ExpectedIn, ExpectedOut uint32
	HasIn, HasOut           bool
	// Done is called when a command that returned NextPending has finished. It is set once for the life of the slot, may
	// run on any goroutine, must not block; the command is then as after NextDone.
	Done func(*Command)

	// Set by the device server.
	Status      Status
	Sense       [MaxSense]byte
	SenseLength int
	// DataOutLength and DataInLength are what to move: never more than ExpectedOut and ExpectedIn. After NextDone,
	// DataInLength is what to send.
	DataOutLength, DataInLength uint32
	// Data are the pieces of data-in to send (sum = DataInLength after NextDone) or the buffers of data-out.
	Data [][]byte
	// Aborted may be set by the transport at any time: the command's result will be thrown away. [Command.Abort] also
	// cancels a store request that has not begun.
	Aborted atomic.Bool
	// LU is the logical unit that Start found; nil when there is none at that LUN.
	LU *LogicalUnit

	nexus  *ITNexus
	path   *path // nil when LU is nil
	op     *opcode
	inline [InlineData]byte
	pieces [4][]byte
	large  []byte // data-in that does not fit inline, copied to the transport's buffers by Execute
	req    backstore.Request
	lba    uint64
	blocks uint64
	// needIn and needOut are what the CDB asks for, whatever the initiator expects; outMoved is what arrived.
	needIn, needOut uint64
	outMoved        uint32
	verify          verifyState
}

// Abort marks the command aborted and cancels its store request if that has not begun. It may be called from any
// goroutine between Start and Release.
func (c *Command) Abort() {
	c.Aborted.Store(true)
	c.req.Cancel.Store(true)
}

// reset forgets the previous command of the slot.
func (c *Command) reset(n *ITNexus) {
	c.nexus = n
	c.Status = StatusGood
	c.SenseLength = 0
	c.DataOutLength, c.DataInLength = 0, 0
	c.Data = nil
	c.LU, c.path, c.op, c.large = nil, nil, nil, nil
	c.needIn, c.needOut, c.outMoved = 0, 0, 0
}

// Execute goes on with a command after the transport has done what Start asked for.
func (c *Command) Execute() (next Next) {
	defer c.guard(&next)
	if c.Aborted.Load() {
		// Nobody will see the result; the buffers may be gone.
		return c.Fail(AbortedCommand, NoAdditionalSense)
	}
	c.outMoved = c.DataOutLength
	if c.large != nil {
		return c.scatterLarge()
	}
	return c.run(c.op.execute(c))
}

// run submits store requests as long as the handler makes new ones and the store finishes them at once.
func (c *Command) run(next Next) Next {
	for next == nextAgain {
		if !c.LU.store.Submit(&c.req) {
			return NextPending
		}
		next = c.op.finish(c)
	}
	return next
}

// storeDone is the Done function of the store request.
func (c *Command) storeDone(*backstore.Request) {
	if c.resume() == NextDone {
		c.Done(c)
	}
}

func (c *Command) resume() (next Next) {
	defer c.guard(&next)
	return c.run(c.op.finish(c))
}

// guard turns a panic of a handler into HARDWARE ERROR, so that a defect costs one command and not the daemon.
func (c *Command) guard(next *Next) {
	if r := recover(); r != nil {
		*next = c.panicked(r)
	}
}

// submit prepares the store request for length bytes at the command's byte offset off and has run submit it.
func (c *Command) submit(op backstore.Op, off, length uint64, buffers [][]byte) Next {
	if c.req.Done == nil {
		c.req.Done = c.storeDone
	}
	c.req.Op, c.req.FUA = op, false
	c.req.Offset, c.req.Length, c.req.Buffers = off, length, buffers
	c.req.Err = nil
	return nextAgain
}

// Release ends the command's use of what Start gave it. Data handed out is invalid afterwards.
func (c *Command) Release() {
	if p := c.path; p != nil {
		c.path = nil
		p.release()
	}
	c.Data, c.large, c.LU, c.nexus = nil, nil, nil, nil
	c.pieces = [4][]byte{}
	c.req.Buffers = nil
	if c.verify.scratch != nil {
		c.verify.drop()
	}
	c.Aborted.Store(false)
	c.req.Cancel.Store(false)
}
