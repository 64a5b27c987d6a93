package scsi

import "fmt"

// Status is the SCSI status code of a finished command (SAM-5).
type Status uint8

const (
	StatusGood                Status = 0x00
	StatusCheckCondition      Status = 0x02
	StatusConditionMet        Status = 0x04
	StatusBusy                Status = 0x08
	StatusReservationConflict Status = 0x18
	StatusTaskSetFull         Status = 0x28
	StatusACAActive           Status = 0x30
	StatusTaskAborted         Status = 0x40
)

func (s Status) String() string {
	switch s {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusConditionMet:
		return "CONDITION MET"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusACAActive:
		return "ACA ACTIVE"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("status %02Xh", uint8(s))
}

// TaskAttribute says how a command is ordered among the others of its task set. The values are those of the ATTR field
// of the iSCSI SCSI Command PDU.
type TaskAttribute uint8

const (
	Untagged TaskAttribute = iota
	Simple
	Ordered
	HeadOfQueue
	ACA
)

func (a TaskAttribute) String() string {
	switch a {
	case Untagged:
		return "untagged"
	case Simple:
		return "simple"
	case Ordered:
		return "ordered"
	case HeadOfQueue:
		return "head of queue"
	case ACA:
		return "ACA"
	}
	return fmt.Sprintf("task attribute %d", uint8(a))
}
