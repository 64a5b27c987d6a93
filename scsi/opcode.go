package scsi

import (
	"fmt"
	"sync"
)

// Opcode is the operation code of a CDB, its first byte.
type Opcode uint8

const (
	OpTestUnitReady      Opcode = 0x00
	OpRequestSense       Opcode = 0x03
	OpRead6              Opcode = 0x08
	OpWrite6             Opcode = 0x0A
	OpInquiry            Opcode = 0x12
	OpReserve6           Opcode = 0x16
	OpRelease6           Opcode = 0x17
	OpModeSense6         Opcode = 0x1A
	OpStartStopUnit      Opcode = 0x1B
	OpReadCapacity10     Opcode = 0x25
	OpRead10             Opcode = 0x28
	OpWrite10            Opcode = 0x2A
	OpVerify10           Opcode = 0x2F
	OpSynchronizeCache10 Opcode = 0x35
	OpReserve10          Opcode = 0x56
	OpRelease10          Opcode = 0x57
	OpModeSense10        Opcode = 0x5A
	OpRead16             Opcode = 0x88
	OpWrite16            Opcode = 0x8A
	OpVerify16           Opcode = 0x8F
	OpSynchronizeCache16 Opcode = 0x91
	OpServiceActionIn16  Opcode = 0x9E
	OpReportLUNs         Opcode = 0xA0
	OpMaintenanceIn      Opcode = 0xA3
	OpRead12             Opcode = 0xA8
	OpWrite12            Opcode = 0xAA
	OpVerify12           Opcode = 0xAF
)

// Service actions.
const (
	saReadCapacity16  = 0x10
	saReportOpcodes   = 0x0C
	noServiceAction   = -1
	serviceActionMask = 0x1F
)

func (o Opcode) String() string {
	for _, op := range standardCommands().rows {
		if op.code == o {
			if op.serviceAction != noServiceAction {
				break
			}
			return op.name
		}
	}
	switch o {
	case OpServiceActionIn16:
		return "SERVICE ACTION IN(16)"
	case OpMaintenanceIn:
		return "MAINTENANCE IN"
	}
	return fmt.Sprintf("opcode %02Xh", uint8(o))
}

// commandFlags say how a command fits into the general rules.
type commandFlags uint8

const (
	// ignoresAttention: executed although a unit attention is pending, which stays (SAM-5).
	ignoresAttention commandFlags = 1 << iota
	// ignoresReservation: executed although another nexus holds a reservation (SPC-2).
	ignoresReservation
	// worksWithoutUnit: answered at LUNs where there is no logical unit.
	worksWithoutUnit
)

// opcode is one row of the command table: everything there is to know of a command.
type opcode struct {
	code          Opcode
	serviceAction int // noServiceAction, or the low five bits of byte 1
	name          string
	length        uint8 // of the CDB
	// usage is the CDB usage data that REPORT SUPPORTED OPERATION CODES returns: a bit is set where the device server
	// looks at the bit of the CDB.
	usage string
	flags commandFlags
	// timeout is the nominal and the recommended command timeout in seconds.
	timeout struct{ nominal, recommended uint32 }
	// start checks the CDB and says what is next. execute runs after the transport's part; finish after a store request.
	start, execute, finish func(*Command) Next
}

// commandSet is the table with its index.
type commandSet struct {
	rows []opcode
	// index holds the row of an operation code, or the first of its rows if it has service actions (they stand together).
	index [256]*opcode
	next  map[*opcode]*opcode // the next row of the same operation code
}

var standardCommands = sync.OnceValue(newCommandSet)

func newCommandSet() *commandSet {
	s := &commandSet{rows: commandTable(), next: map[*opcode]*opcode{}}
	var before *opcode
	for i := range s.rows {
		op := &s.rows[i]
		if s.index[op.code] == nil {
			s.index[op.code] = op
		} else {
			s.next[before] = op
		}
		before = op
	}
	return s
}

// find is the row of a CDB, nil if there is none.
func (s *commandSet) find(cdb []byte) *opcode {
	op := s.index[cdb[0]]
	if op == nil || op.serviceAction == noServiceAction {
		return op
	}
	for sa := int(cdb[1] & serviceActionMask); op != nil && op.serviceAction != sa; {
		op = s.next[op]
	}
	return op
}

// lookup is the row of an operation code and a service action.
func (s *commandSet) lookup(code Opcode, serviceAction int) *opcode {
	op := s.index[code]
	for op != nil && op.serviceAction != serviceAction {
		op = s.next[op]
	}
	return op
}

// hasServiceActions is true for operation codes that mean something only together with a service action.
func (s *commandSet) hasServiceActions(code Opcode) bool {
	op := s.index[code]
	return op != nil && op.serviceAction != noServiceAction
}

// Timeouts in seconds: commands that touch no medium, that move data, and that empty a cache.
var (
	timeoutQuick = struct{ nominal, recommended uint32 }{1, 10}
	timeoutMove  = struct{ nominal, recommended uint32 }{5, 30}
	timeoutFlush = struct{ nominal, recommended uint32 }{10, 60}
)

// commandTable is the one list of commands, in order of operation code. The usage strings are written so that each byte
// is two hexadecimal digits of the CDB; byte 0 is the operation code itself.
func commandTable() []opcode {
	const (
		anyway = ignoresAttention | ignoresReservation | worksWithoutUnit
		free   = ignoresReservation
	)
	no := noServiceAction
	return []opcode{
		{OpTestUnitReady, no, "TEST UNIT READY", 6, "\x00\x00\x00\x00\x00\x00", 0, timeoutQuick, testUnitReady, nil, nil},
		{OpRequestSense, no, "REQUEST SENSE", 6, "\x03\x01\x00\x00\xff\x00", anyway, timeoutQuick, requestSense, nil, nil},
		{OpRead6, no, "READ(6)", 6, "\x08\x1f\xff\xff\xff\x00", 0, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite6, no, "WRITE(6)", 6, "\x0a\x1f\xff\xff\xff\x00", 0, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpInquiry, no, "INQUIRY", 6, "\x12\x01\xff\xff\xff\x00", anyway, timeoutQuick, inquiry, nil, nil},
		{OpReserve6, no, "RESERVE(6)", 6, "\x16\x00\x00\x00\x00\x00", 0, timeoutQuick, reserve, nil, nil},
		{OpRelease6, no, "RELEASE(6)", 6, "\x17\x00\x00\x00\x00\x00", free, timeoutQuick, release, nil, nil},
		{OpModeSense6, no, "MODE SENSE(6)", 6, "\x1a\x08\xff\xff\xff\x00", 0, timeoutQuick, modeSense, nil, nil},
		{OpStartStopUnit, no, "START STOP UNIT", 6, "\x1b\x01\x00\x00\xf7\x00", 0, timeoutFlush, startStopUnit, executeFlush, finishFlush},
		{OpReadCapacity10, no, "READ CAPACITY(10)", 10, "\x25\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0, timeoutQuick, readCapacity10, nil, nil},
		{OpRead10, no, "READ(10)", 10, "\x28\xf8\xff\xff\xff\xff\x00\xff\xff\x00", 0, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite10, no, "WRITE(10)", 10, "\x2a\xf8\xff\xff\xff\xff\x00\xff\xff\x00", 0, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify10, no, "VERIFY(10)", 10, "\x2f\xf6\xff\xff\xff\xff\x00\xff\xff\x00", 0, timeoutMove, startVerify, executeVerify, finishVerify},
		{OpSynchronizeCache10, no, "SYNCHRONIZE CACHE(10)", 10, "\x35\x02\xff\xff\xff\xff\x00\xff\xff\x00", 0, timeoutFlush, synchronizeCache, executeFlush, finishFlush},
		{OpReserve10, no, "RESERVE(10)", 10, "\x56\x12\x00\x00\x00\x00\x00\xff\xff\x00", 0, timeoutQuick, reserve, nil, nil},
		{OpRelease10, no, "RELEASE(10)", 10, "\x57\x12\x00\x00\x00\x00\x00\xff\xff\x00", free, timeoutQuick, release, nil, nil},
		{OpModeSense10, no, "MODE SENSE(10)", 10, "\x5a\x18\xff\xff\x00\x00\x00\xff\xff\x00", 0, timeoutQuick, modeSense, nil, nil},
		{OpRead16, no, "READ(16)", 16, "\x88\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite16, no, "WRITE(16)", 16, "\x8a\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify16, no, "VERIFY(16)", 16, "\x8f\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startVerify, executeVerify, finishVerify},
		{OpSynchronizeCache16, no, "SYNCHRONIZE CACHE(16)", 16, "\x91\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutFlush, synchronizeCache, executeFlush, finishFlush},
		{OpServiceActionIn16, saReadCapacity16, "READ CAPACITY(16)", 16, "\x9e\x10\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00", 0, timeoutQuick, readCapacity16, nil, nil},
		{OpReportLUNs, no, "REPORT LUNS", 12, "\xa0\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x00", anyway, timeoutQuick, reportLUNs, nil, nil},
		{OpMaintenanceIn, saReportOpcodes, "REPORT SUPPORTED OPERATION CODES", 12, "\xa3\x0c\x87\xff\xff\xff\xff\xff\xff\xff\x00\x00", free, timeoutQuick, reportOpcodes, nil, nil},
		{OpRead12, no, "READ(12)", 12, "\xa8\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite12, no, "WRITE(12)", 12, "\xaa\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify12, no, "VERIFY(12)", 12, "\xaf\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, timeoutMove, startVerify, executeVerify, finishVerify},
	}
}
