package scsi

import (
	"fmt"
	"sync"
)

// Opcode is the operation code of a CDB, its first byte.
type Opcode uint8

const (
	OpTestUnitReady        Opcode = 0x00
	OpRequestSense         Opcode = 0x03
	OpRead6                Opcode = 0x08
	OpWrite6               Opcode = 0x0A
	OpInquiry              Opcode = 0x12
	OpReserve6             Opcode = 0x16
	OpRelease6             Opcode = 0x17
	OpModeSense6           Opcode = 0x1A
	OpStartStopUnit        Opcode = 0x1B
	OpReadCapacity10       Opcode = 0x25
	OpRead10               Opcode = 0x28
	OpWrite10              Opcode = 0x2A
	OpVerify10             Opcode = 0x2F
	OpSynchronizeCache10   Opcode = 0x35
	OpReserve10            Opcode = 0x56
	OpRelease10            Opcode = 0x57
	OpModeSense10          Opcode = 0x5A
	OpPersistentReserveIn  Opcode = 0x5E
	OpPersistentReserveOut Opcode = 0x5F
	OpRead16               Opcode = 0x88
	OpWrite16              Opcode = 0x8A
	OpVerify16             Opcode = 0x8F
	OpSynchronizeCache16   Opcode = 0x91
	OpServiceActionIn16    Opcode = 0x9E
	OpReportLUNs           Opcode = 0xA0
	OpMaintenanceIn        Opcode = 0xA3
	OpRead12               Opcode = 0xA8
	OpWrite12              Opcode = 0xAA
	OpVerify12             Opcode = 0xAF
)

// Service actions.
const (
	saReadCapacity16     = 0x10
	saReportOpcodes      = 0x0C
	saReadKeys           = 0x00
	saReadReservation    = 0x01
	saReportCapabilities = 0x02
	saReadFullStatus     = 0x03
	saRegister           = 0x00
	saReserve            = 0x01
	saRelease            = 0x02
	saClear              = 0x03
	saPreempt            = 0x04
	saPreemptAndAbort    = 0x05
	saRegisterAndIgnore  = 0x06
	noServiceAction      = -1
	serviceActionMask    = 0x1F
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
	case OpPersistentReserveIn:
		return "PERSISTENT RESERVE IN"
	case OpPersistentReserveOut:
		return "PERSISTENT RESERVE OUT"
	}
	return fmt.Sprintf("opcode %02Xh", uint8(o))
}

// commandFlags say how a command fits into the general rules.
type commandFlags uint8

const (
	// ignoresAttention: executed although a unit attention is pending, which stays (SAM-5).
	ignoresAttention commandFlags = 1 << iota
	// worksWithoutUnit: answered at LUNs where there is no logical unit.
	worksWithoutUnit
	// needsAbort: there only if the device can abort tasks ([DeviceConfig].AbortTasks).
	needsAbort
)

// conflictRule says which reservations, held by others, a command conflicts with (SPC-2, SPC-4, SBC-3).
type conflictRule uint8

const (
	// neverConflicts is a bit of its own, so that a row without a rule is told from one that has this.
	neverConflicts conflictRule = 1 << iota
	// withSPC2: a reservation by RESERVE.
	withSPC2
	// withWriteExclusive and withExclusiveAccess: persistent reservations of these types, unless the nexus holds it or is
	// registered and the type shares.
	withWriteExclusive
	withExclusiveAccess
	// unlessStarting: START STOP UNIT with START does not conflict with a persistent reservation.
	unlessStarting

	conflictsAsRead  = withSPC2 | withExclusiveAccess
	conflictsAsWrite = withSPC2 | withWriteExclusive | withExclusiveAccess
	// decidesItself: the commands that manage reservations look under the lock.
	decidesItself = neverConflicts
)

// opcode is one row of the command table: everything there is to know of a command.
type opcode struct {
	code          Opcode
	serviceAction int // noServiceAction, or the low five bits of byte 1
	name          string
	length        uint8 // of the CDB
	// usage is the CDB usage data that REPORT SUPPORTED OPERATION CODES returns: a bit is set where the device server
	// looks at the bit of the CDB.
	usage    string
	flags    commandFlags
	conflict conflictRule
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

var (
	standardCommands = sync.OnceValue(func() *commandSet { return newCommandSet(false) })
	abortingCommands = sync.OnceValue(func() *commandSet { return newCommandSet(true) })
)

// newCommandSet makes the index; canAbort says whether the device can abort tasks.
func newCommandSet(canAbort bool) *commandSet {
	s := &commandSet{next: map[*opcode]*opcode{}}
	for _, op := range commandTable() {
		if canAbort || op.flags&needsAbort == 0 {
			s.rows = append(s.rows, op)
		}
	}
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
	const anyway = ignoresAttention | worksWithoutUnit
	no := noServiceAction
	return []opcode{
		{OpTestUnitReady, no, "TEST UNIT READY", 6, "\x00\x00\x00\x00\x00\x00", 0, withSPC2, timeoutQuick, testUnitReady, nil, nil},
		{OpRequestSense, no, "REQUEST SENSE", 6, "\x03\x01\x00\x00\xff\x00", anyway, neverConflicts, timeoutQuick, requestSense, nil, nil},
		{OpRead6, no, "READ(6)", 6, "\x08\x1f\xff\xff\xff\x00", 0, conflictsAsRead, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite6, no, "WRITE(6)", 6, "\x0a\x1f\xff\xff\xff\x00", 0, conflictsAsWrite, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpInquiry, no, "INQUIRY", 6, "\x12\x01\xff\xff\xff\x00", anyway, neverConflicts, timeoutQuick, inquiry, nil, nil},
		{OpReserve6, no, "RESERVE(6)", 6, "\x16\x00\x00\x00\x00\x00", 0, decidesItself, timeoutQuick, reserve, nil, nil},
		{OpRelease6, no, "RELEASE(6)", 6, "\x17\x00\x00\x00\x00\x00", 0, decidesItself, timeoutQuick, release, nil, nil},
		{OpModeSense6, no, "MODE SENSE(6)", 6, "\x1a\x08\xff\xff\xff\x00", 0, conflictsAsRead, timeoutQuick, modeSense, nil, nil},
		{OpStartStopUnit, no, "START STOP UNIT", 6, "\x1b\x01\x00\x00\xf7\x00", 0, conflictsAsWrite | unlessStarting, timeoutFlush, startStopUnit, executeFlush, finishFlush},
		{OpReadCapacity10, no, "READ CAPACITY(10)", 10, "\x25\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0, withSPC2, timeoutQuick, readCapacity10, nil, nil},
		{OpRead10, no, "READ(10)", 10, "\x28\xf8\xff\xff\xff\xff\x00\xff\xff\x00", 0, conflictsAsRead, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite10, no, "WRITE(10)", 10, "\x2a\xf8\xff\xff\xff\xff\x00\xff\xff\x00", 0, conflictsAsWrite, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify10, no, "VERIFY(10)", 10, "\x2f\xf6\xff\xff\xff\xff\x00\xff\xff\x00", 0, conflictsAsRead, timeoutMove, startVerify, executeVerify, finishVerify},
		{OpSynchronizeCache10, no, "SYNCHRONIZE CACHE(10)", 10, "\x35\x02\xff\xff\xff\xff\x00\xff\xff\x00", 0, conflictsAsWrite, timeoutFlush, synchronizeCache, executeFlush, finishFlush},
		{OpReserve10, no, "RESERVE(10)", 10, "\x56\x12\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, reserve, nil, nil},
		{OpRelease10, no, "RELEASE(10)", 10, "\x57\x12\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, release, nil, nil},
		{OpModeSense10, no, "MODE SENSE(10)", 10, "\x5a\x18\xff\xff\x00\x00\x00\xff\xff\x00", 0, conflictsAsRead, timeoutQuick, modeSense, nil, nil},
		{OpPersistentReserveIn, saReadKeys, "PERSISTENT RESERVE IN, READ KEYS", 10, "\x5e\x00\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, persistentIn(readKeys), nil, nil},
		{OpPersistentReserveIn, saReadReservation, "PERSISTENT RESERVE IN, READ RESERVATION", 10, "\x5e\x01\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, persistentIn(readReservation), nil, nil},
		{OpPersistentReserveIn, saReportCapabilities, "PERSISTENT RESERVE IN, REPORT CAPABILITIES", 10, "\x5e\x02\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, persistentIn(reportCapabilities), nil, nil},
		{OpPersistentReserveIn, saReadFullStatus, "PERSISTENT RESERVE IN, READ FULL STATUS", 10, "\x5e\x03\x00\x00\x00\x00\x00\xff\xff\x00", 0, decidesItself, timeoutQuick, persistentIn(readFullStatus), nil, nil},
		{OpPersistentReserveOut, saRegister, "PERSISTENT RESERVE OUT, REGISTER", 10, "\x5f\x00\x00\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(registerAs(false)), nil},
		{OpPersistentReserveOut, saReserve, "PERSISTENT RESERVE OUT, RESERVE", 10, "\x5f\x01\xff\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(reservePersistent), nil},
		{OpPersistentReserveOut, saRelease, "PERSISTENT RESERVE OUT, RELEASE", 10, "\x5f\x02\xff\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(releasePersistent), nil},
		{OpPersistentReserveOut, saClear, "PERSISTENT RESERVE OUT, CLEAR", 10, "\x5f\x03\x00\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(clearPersistent), nil},
		{OpPersistentReserveOut, saPreempt, "PERSISTENT RESERVE OUT, PREEMPT", 10, "\x5f\x04\xff\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(preempt), nil},
		{OpPersistentReserveOut, saPreemptAndAbort, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", 10, "\x5f\x05\xff\x00\x00\xff\xff\xff\xff\x00", needsAbort, decidesItself, timeoutQuick, startPersistentOut, executePreemptAndAbort, nil},
		{OpPersistentReserveOut, saRegisterAndIgnore, "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", 10, "\x5f\x06\x00\x00\x00\xff\xff\xff\xff\x00", 0, decidesItself, timeoutQuick, startPersistentOut, persistentOut(registerAs(true)), nil},
		{OpRead16, no, "READ(16)", 16, "\x88\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsRead, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite16, no, "WRITE(16)", 16, "\x8a\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsWrite, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify16, no, "VERIFY(16)", 16, "\x8f\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsRead, timeoutMove, startVerify, executeVerify, finishVerify},
		{OpSynchronizeCache16, no, "SYNCHRONIZE CACHE(16)", 16, "\x91\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsWrite, timeoutFlush, synchronizeCache, executeFlush, finishFlush},
		{OpServiceActionIn16, saReadCapacity16, "READ CAPACITY(16)", 16, "\x9e\x10\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00", 0, withSPC2, timeoutQuick, readCapacity16, nil, nil},
		{OpReportLUNs, no, "REPORT LUNS", 12, "\xa0\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x00", anyway, neverConflicts, timeoutQuick, reportLUNs, nil, nil},
		{OpMaintenanceIn, saReportOpcodes, "REPORT SUPPORTED OPERATION CODES", 12, "\xa3\x0c\x87\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, withExclusiveAccess, timeoutQuick, reportOpcodes, nil, nil},
		{OpRead12, no, "READ(12)", 12, "\xa8\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsRead, timeoutMove, startRead, executeRead, finishRead},
		{OpWrite12, no, "WRITE(12)", 12, "\xaa\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsWrite, timeoutMove, startWrite, executeWrite, finishWrite},
		{OpVerify12, no, "VERIFY(12)", 12, "\xaf\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00", 0, conflictsAsRead, timeoutMove, startVerify, executeVerify, finishVerify},
	}
}
