package pdu

import "strconv"

// name serves logs; nothing on the path of commands calls it.
func name[T ~uint8](names map[T]string, v T, kind string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return kind + " " + strconv.Itoa(int(v))
}

// TaskAttribute is the ATTR field of a SCSI Command.
type TaskAttribute uint8

const (
	AttrUntagged TaskAttribute = iota
	AttrSimple
	AttrOrdered
	AttrHeadOfQueue
	AttrACA
)

func (a TaskAttribute) String() string {
	return name(map[TaskAttribute]string{0: "untagged", 1: "simple", 2: "ordered", 3: "head of queue", 4: "ACA"}, a, "attribute")
}

// SCSIResponseCode is the iSCSI service response of a SCSI Response.
type SCSIResponseCode uint8

const (
	ResponseCompleted     SCSIResponseCode = 0x00
	ResponseTargetFailure SCSIResponseCode = 0x01
)

func (c SCSIResponseCode) String() string {
	return name(map[SCSIResponseCode]string{0: "command completed at target", 1: "target failure"}, c, "response")
}

// TMFunction is a task management function.
type TMFunction uint8

const (
	TMAbortTask        TMFunction = 1
	TMAbortTaskSet     TMFunction = 2
	TMClearACA         TMFunction = 3
	TMClearTaskSet     TMFunction = 4
	TMLogicalUnitReset TMFunction = 5
	TMTargetWarmReset  TMFunction = 6
	TMTargetColdReset  TMFunction = 7
	TMTaskReassign     TMFunction = 8
)

func (f TMFunction) String() string {
	return name(map[TMFunction]string{1: "ABORT TASK", 2: "ABORT TASK SET", 3: "CLEAR ACA", 4: "CLEAR TASK SET", 5: "LOGICAL UNIT RESET",
		6: "TARGET WARM RESET", 7: "TARGET COLD RESET", 8: "TASK REASSIGN"}, f, "function")
}

// TMResponse is the answer to a task management function.
type TMResponse uint8

const (
	TMFunctionComplete     TMResponse = 0
	TMTaskDoesNotExist     TMResponse = 1
	TMLUNDoesNotExist      TMResponse = 2
	TMTaskStillAllegiant   TMResponse = 3
	TMReassignNotSupported TMResponse = 4
	TMFunctionNotSupported TMResponse = 5
	TMAuthorizationFailed  TMResponse = 6
	TMFunctionRejected     TMResponse = 255
)

func (r TMResponse) String() string {
	return name(map[TMResponse]string{0: "function complete", 1: "task does not exist", 2: "LUN does not exist", 3: "task still allegiant",
		4: "task allegiance reassignment not supported", 5: "function not supported", 6: "function authorization failed",
		255: "function rejected"}, r, "response")
}

// LogoutReason is what a Logout Request asks to close.
type LogoutReason uint8

const (
	LogoutCloseSession      LogoutReason = 0
	LogoutCloseConnection   LogoutReason = 1
	LogoutRemoveForRecovery LogoutReason = 2
)

func (r LogoutReason) String() string {
	return name(map[LogoutReason]string{0: "close session", 1: "close connection", 2: "remove connection for recovery"}, r, "reason")
}

// LogoutResponseCode answers a Logout Request.
type LogoutResponseCode uint8

const (
	LogoutSuccess              LogoutResponseCode = 0
	LogoutCIDNotFound          LogoutResponseCode = 1
	LogoutRecoveryNotSupported LogoutResponseCode = 2
	LogoutCleanupFailed        LogoutResponseCode = 3
)

func (c LogoutResponseCode) String() string {
	return name(map[LogoutResponseCode]string{0: "success", 1: "CID not found", 2: "connection recovery not supported", 3: "cleanup failed"}, c, "response")
}

// AsyncEvent is the event of an Asynchronous Message.
type AsyncEvent uint8

const (
	AsyncSCSI               AsyncEvent = 0
	AsyncLogoutRequest      AsyncEvent = 1
	AsyncConnectionDrop     AsyncEvent = 2
	AsyncSessionDrop        AsyncEvent = 3
	AsyncNegotiationRequest AsyncEvent = 4
	AsyncTaskTermination    AsyncEvent = 5
	AsyncVendor             AsyncEvent = 255
)

func (e AsyncEvent) String() string {
	return name(map[AsyncEvent]string{0: "SCSI event", 1: "logout request", 2: "connection drop", 3: "session drop", 4: "negotiation request",
		5: "task termination", 255: "vendor event"}, e, "event")
}

// RejectReason is why a PDU was rejected.
type RejectReason uint8

const (
	RejectDataDigestError     RejectReason = 0x02
	RejectSNACK               RejectReason = 0x03
	RejectProtocolError       RejectReason = 0x04
	RejectCommandNotSupported RejectReason = 0x05
	RejectImmediateCommand    RejectReason = 0x06
	RejectTaskInProgress      RejectReason = 0x07
	RejectInvalidDataACK      RejectReason = 0x08
	RejectInvalidPDUField     RejectReason = 0x09
	RejectLongOperation       RejectReason = 0x0a
	RejectNegotiationReset    RejectReason = 0x0b
	RejectWaitingForLogout    RejectReason = 0x0c
)

func (r RejectReason) String() string {
	return name(map[RejectReason]string{2: "data digest error", 3: "SNACK reject", 4: "protocol error", 5: "command not supported",
		6: "immediate command reject: too many immediate commands", 7: "task in progress", 8: "invalid data ACK", 9: "invalid PDU field",
		10: "long operation reject", 11: "negotiation reset", 12: "waiting for logout"}, r, "reason")
}

// SNACKType is what a SNACK Request asks for.
type SNACKType uint8

const (
	SNACKDataOrR2T SNACKType = 0
	SNACKStatus    SNACKType = 1
	SNACKDataACK   SNACKType = 2
	SNACKRData     SNACKType = 3
)

func (t SNACKType) String() string {
	return name(map[SNACKType]string{0: "Data/R2T", 1: "status", 2: "DataACK", 3: "R-Data"}, t, "SNACK type")
}

// ResidualKind says which residual flag a response carries.
type ResidualKind uint8

const (
	ResidualNone ResidualKind = iota
	// ResidualUnderflow: less was transferred than the initiator expected.
	ResidualUnderflow
	// ResidualOverflow: the expected length was too short for all of the data.
	ResidualOverflow
)

func (k ResidualKind) String() string {
	return name(map[ResidualKind]string{0: "none", 1: "underflow", 2: "overflow"}, k, "residual")
}

// Stage is a stage of login.
type Stage uint8

const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

func (s Stage) String() string {
	return name(map[Stage]string{0: "security negotiation", 1: "login operational negotiation", 3: "full feature phase"}, s, "stage")
}
