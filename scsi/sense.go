package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"

	"iserd/backstore"
)

// SenseKey is the coarse cause in sense data (SPC-4).
type SenseKey uint8

const (
	NoSense        SenseKey = 0x0
	RecoveredError SenseKey = 0x1
	NotReady       SenseKey = 0x2
	MediumError    SenseKey = 0x3
	HardwareError  SenseKey = 0x4
	IllegalRequest SenseKey = 0x5
	UnitAttention  SenseKey = 0x6
	DataProtect    SenseKey = 0x7
	BlankCheck     SenseKey = 0x8
	CopyAborted    SenseKey = 0xA
	AbortedCommand SenseKey = 0xB
	Miscompare     SenseKey = 0xE
)

func (k SenseKey) String() string {
	switch k {
	case NoSense:
		return "NO SENSE"
	case RecoveredError:
		return "RECOVERED ERROR"
	case NotReady:
		return "NOT READY"
	case MediumError:
		return "MEDIUM ERROR"
	case HardwareError:
		return "HARDWARE ERROR"
	case IllegalRequest:
		return "ILLEGAL REQUEST"
	case UnitAttention:
		return "UNIT ATTENTION"
	case DataProtect:
		return "DATA PROTECT"
	case BlankCheck:
		return "BLANK CHECK"
	case CopyAborted:
		return "COPY ABORTED"
	case AbortedCommand:
		return "ABORTED COMMAND"
	case Miscompare:
		return "MISCOMPARE"
	}
	return fmt.Sprintf("sense key %Xh", uint8(k))
}

// AdditionalSense is the additional sense code in the high byte and its qualifier in the low byte (SPC-4).
type AdditionalSense uint16

const (
	NoAdditionalSense                     AdditionalSense = 0x0000
	NotReadyInitializingRequired          AdditionalSense = 0x0402
	WriteError                            AdditionalSense = 0x0C00
	UnexpectedUnsolicitedData             AdditionalSense = 0x0C0C
	NotEnoughUnsolicitedData              AdditionalSense = 0x0C0D
	InvalidFieldInInformationUnit         AdditionalSense = 0x0E03
	UnrecoveredReadError                  AdditionalSense = 0x1100
	ParameterListLengthError              AdditionalSense = 0x1A00
	MiscompareDuringVerify                AdditionalSense = 0x1D00
	InvalidCommandOperationCode           AdditionalSense = 0x2000
	LBAOutOfRange                         AdditionalSense = 0x2100
	InvalidFieldInCDB                     AdditionalSense = 0x2400
	LogicalUnitNotSupported               AdditionalSense = 0x2500
	InvalidFieldInParameterList           AdditionalSense = 0x2600
	InvalidReleaseOfPersistentReservation AdditionalSense = 0x2604
	WriteProtected                        AdditionalSense = 0x2700
	SpaceAllocationFailed                 AdditionalSense = 0x2707
	PowerOnResetOrBusDeviceReset          AdditionalSense = 0x2900
	PowerOnOccurred                       AdditionalSense = 0x2901
	SCSIBusResetOccurred                  AdditionalSense = 0x2902
	BusDeviceResetFunctionOccurred        AdditionalSense = 0x2903
	ITNexusLossOccurred                   AdditionalSense = 0x2907
	ReservationsPreempted                 AdditionalSense = 0x2A03
	ReservationsReleased                  AdditionalSense = 0x2A04
	RegistrationsPreempted                AdditionalSense = 0x2A05
	CapacityDataHasChanged                AdditionalSense = 0x2A09
	CommandsClearedByAnotherPort          AdditionalSense = 0x2F00
	SavingParametersNotSupported          AdditionalSense = 0x3900
	InquiryDataHasChanged                 AdditionalSense = 0x3F03
	ReportedLUNsDataHasChanged            AdditionalSense = 0x3F0E
	InternalTargetFailure                 AdditionalSense = 0x4400
	SelectOrReselectFailure               AdditionalSense = 0x4500
	ProtocolServiceCRCError               AdditionalSense = 0x4705
	InvalidMessageError                   AdditionalSense = 0x4900
	DataPhaseError                        AdditionalSense = 0x4B00
	InsufficientRegistrationResources     AdditionalSense = 0x5504
)

// ASC is the additional sense code, ASCQ its qualifier.
func (a AdditionalSense) ASC() uint8  { return uint8(a >> 8) }
func (a AdditionalSense) ASCQ() uint8 { return uint8(a) }

var additionalSenseNames = map[AdditionalSense]string{
	NoAdditionalSense:                     "no additional sense information",
	NotReadyInitializingRequired:          "logical unit not ready, initializing command required",
	WriteError:                            "write error",
	UnexpectedUnsolicitedData:             "write error, unexpected unsolicited data",
	NotEnoughUnsolicitedData:              "write error, not enough unsolicited data",
	InvalidFieldInInformationUnit:         "invalid field in command information unit",
	UnrecoveredReadError:                  "unrecovered read error",
	ParameterListLengthError:              "parameter list length error",
	MiscompareDuringVerify:                "miscompare during verify operation",
	InvalidCommandOperationCode:           "invalid command operation code",
	LBAOutOfRange:                         "logical block address out of range",
	InvalidFieldInCDB:                     "invalid field in CDB",
	LogicalUnitNotSupported:               "logical unit not supported",
	InvalidFieldInParameterList:           "invalid field in parameter list",
	InvalidReleaseOfPersistentReservation: "invalid release of persistent reservation",
	WriteProtected:                        "write protected",
	SpaceAllocationFailed:                 "space allocation failed write protect",
	PowerOnResetOrBusDeviceReset:          "power on, reset, or bus device reset occurred",
	PowerOnOccurred:                       "power on occurred",
	SCSIBusResetOccurred:                  "SCSI bus reset occurred",
	BusDeviceResetFunctionOccurred:        "bus device reset function occurred",
	ITNexusLossOccurred:                   "I_T nexus loss occurred",
	ReservationsPreempted:                 "reservations preempted",
	ReservationsReleased:                  "reservations released",
	RegistrationsPreempted:                "registrations preempted",
	CapacityDataHasChanged:                "capacity data has changed",
	CommandsClearedByAnotherPort:          "commands cleared by another initiator",
	SavingParametersNotSupported:          "saving parameters not supported",
	InquiryDataHasChanged:                 "INQUIRY data has changed",
	ReportedLUNsDataHasChanged:            "reported LUNs data has changed",
	InternalTargetFailure:                 "internal target failure",
	SelectOrReselectFailure:               "select or reselect failure",
	ProtocolServiceCRCError:               "protocol service CRC error",
	InvalidMessageError:                   "invalid message error",
	DataPhaseError:                        "data phase error",
	InsufficientRegistrationResources:     "insufficient registration resources",
}

func (a AdditionalSense) String() string {
	if s, ok := additionalSenseNames[a]; ok {
		return s
	}
	return fmt.Sprintf("additional sense %02Xh/%02Xh", a.ASC(), a.ASCQ())
}

// Lengths of the two sense data formats without further descriptors.
const (
	fixedSenseLength      = 18
	descriptorSenseLength = 8
)

// putFixedSense fills 18 bytes of current, fixed format sense data.
func putFixedSense(b []byte, key SenseKey, code AdditionalSense) {
	clear(b[:fixedSenseLength])
	b[0] = 0x70
	b[2] = uint8(key)
	b[7] = fixedSenseLength - 8
	b[12] = code.ASC()
	b[13] = code.ASCQ()
}

// putDescriptorSense fills 8 bytes of current, descriptor format sense data.
func putDescriptorSense(b []byte, key SenseKey, code AdditionalSense) {
	clear(b[:descriptorSenseLength])
	b[0] = 0x72
	b[1] = uint8(key)
	b[2] = code.ASC()
	b[3] = code.ASCQ()
}

// Fail ends the command with CHECK CONDITION and this sense data. No data-in remains. Transports use it for the errors
// that they find themselves, such as ProtocolServiceCRCError with AbortedCommand; the command is then as after NextDone
// and Execute must not be called.
func (c *Command) Fail(key SenseKey, code AdditionalSense) Next {
	putFixedSense(c.Sense[:], key, code)
	c.SenseLength = fixedSenseLength
	return c.end(StatusCheckCondition)
}

// FailStatus ends the command with a status that has no sense data, such as BUSY or TASK SET FULL. No data-in remains.
func (c *Command) FailStatus(s Status) Next {
	c.SenseLength = 0
	return c.end(s)
}

// end finishes a command without data-in.
func (c *Command) end(s Status) Next {
	c.Status = s
	c.Data = nil
	c.DataInLength = 0
	c.needIn = 0
	return NextDone
}

// good finishes a command that has no data-in.
func (c *Command) good() Next {
	c.Status = StatusGood
	c.Data = nil
	return NextDone
}

// invalidField refuses the CDB and points at the byte that is wrong.
func (c *Command) invalidField(at int) Next {
	next := c.Fail(IllegalRequest, InvalidFieldInCDB)
	// Sense key specific: SKSV and C/D (the error is in the CDB), then the field pointer.
	c.Sense[15] = 0xC0
	binary.BigEndian.PutUint16(c.Sense[16:], uint16(at))
	return next
}

// invalidParameter refuses the parameter list and points at the byte that is wrong.
func (c *Command) invalidParameter(at int) Next {
	next := c.Fail(IllegalRequest, InvalidFieldInParameterList)
	c.Sense[15] = 0x80 // SKSV
	binary.BigEndian.PutUint16(c.Sense[16:], uint16(at))
	return next
}

// failAt is Fail with the LBA of the error in the INFORMATION field, where it fits.
func (c *Command) failAt(key SenseKey, code AdditionalSense, lba uint64) Next {
	next := c.Fail(key, code)
	if lba <= 0xFFFFFFFF {
		c.Sense[0] |= 0x80 // VALID
		binary.BigEndian.PutUint32(c.Sense[3:], uint32(lba))
	}
	return next
}

// senseOf maps a store's error to sense data. It is the only place that does.
func senseOf(op backstore.Op, err error) (SenseKey, AdditionalSense) {
	switch {
	case errors.Is(err, backstore.ErrNoSpace):
		return DataProtect, SpaceAllocationFailed
	case errors.Is(err, backstore.ErrReadOnly):
		return DataProtect, WriteProtected
	case errors.Is(err, backstore.ErrOutOfRange):
		return IllegalRequest, LBAOutOfRange
	case errors.Is(err, backstore.ErrCanceled):
		return AbortedCommand, NoAdditionalSense
	case errors.Is(err, backstore.ErrClosed):
		return IllegalRequest, LogicalUnitNotSupported
	case op == backstore.OpRead:
		return MediumError, UnrecoveredReadError
	}
	return MediumError, WriteError
}

// storeFailed ends the command with the sense data of its store request's error.
func (c *Command) storeFailed() Next {
	key, code := senseOf(c.req.Op, c.req.Err)
	return c.Fail(key, code)
}
