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
)

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
// Release once for each Start, after NextDone and after the data has left.
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
	Status                      Status
	Sense                       [MaxSense]byte
	SenseLength                 int
	DataOutLength, DataInLength uint32
	// Data are the pieces of data-in to send (sum = DataInLength after NextDone) or the buffers of data-out.
	Data [][]byte
	// Aborted may be set by the transport at any time: the command's result will be thrown away. A store request that
	// has not begun is cancelled.
	Aborted atomic.Bool
	// LU is the logical unit that Start found; nil when there is none at that LUN.
	LU *LogicalUnit

	nexus  *ITNexus
	op     *opcode
	inline [InlineData]byte
	pieces [4][]byte
	req    backstore.Request
	lba    uint64
	blocks uint64
}
