package bench

import (
	"fmt"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
)

// Failure is a request that did not end well.
type Failure struct {
	Write  bool   `json:"write"`
	LBA    uint64 `json:"lba"`
	Blocks uint32 `json:"blocks"`
	What   string `json:"what"`
}

func (f Failure) String() string {
	verb := "read"
	if f.Write {
		verb = "write"
	}
	return fmt.Sprintf("%s of %d blocks at LBA %d: %s", verb, f.Blocks, f.LBA, f.What)
}

// outcome says in words how a task ended that is not good.
func outcome(t *initiator.Task) string {
	if t.Err != nil {
		return t.Err.Error()
	}
	if t.Response != pdu.ResponseCompleted || t.Status == 0 {
		return t.Good().Error()
	}
	s := statusName(t.Status)
	if len(t.Sense) == 0 {
		return s
	}
	key, asc := t.SenseKey()
	s += ", " + senseKeys[key&0xf]
	if name := ascNames[asc]; name != "" {
		return fmt.Sprintf("%s (%02x/%02x), %s", s, asc>>8, asc&0xff, name)
	}
	return fmt.Sprintf("%s (%02x/%02x)", s, asc>>8, asc&0xff)
}

func statusName(s uint8) string {
	switch s {
	case 0x02:
		return "CHECK CONDITION"
	case 0x08:
		return "BUSY"
	case 0x18:
		return "RESERVATION CONFLICT"
	case 0x28:
		return "TASK SET FULL"
	case 0x40:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("SCSI status %#02x", s)
}

// senseKeys are the names of SPC-4 table 27.
var senseKeys = [16]string{"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST", "UNIT ATTENTION",
	"DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND", "sense key 0xc", "VOLUME OVERFLOW", "MISCOMPARE", "COMPLETED"}

// ascNames are the additional sense codes that reads and writes meet.
var ascNames = map[uint16]string{
	0x0401: "becoming ready", 0x0402: "initializing command required", 0x0403: "manual intervention required",
	0x0c00: "write error", 0x0c02: "write error, auto reallocation failed", 0x1100: "unrecovered read error",
	0x1a00: "parameter list length error", 0x2000: "invalid command operation code", 0x2100: "logical block address out of range",
	0x2400: "invalid field in CDB", 0x2500: "logical unit not supported", 0x2600: "invalid field in parameter list",
	0x2700: "write protected", 0x2707: "space allocation failed, write protect", 0x2900: "power on, reset, or bus device reset occurred",
	0x2901: "power on occurred", 0x2903: "bus device reset function occurred", 0x2904: "device internal reset",
	0x2907: "nexus loss occurred", 0x2a01: "mode parameters changed", 0x2a09: "capacity data has changed", 0x2a03: "reservations preempted",
	0x2a04: "reservations released", 0x2a05: "registrations preempted", 0x3f0e: "reported LUNs data has changed",
	0x3e01: "logical unit failure", 0x4400: "internal target failure", 0x4b00: "data phase error", 0x5500: "system resource failure",
}
