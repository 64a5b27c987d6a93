package iscsi

import (
	"net/netip"

	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/scsi"
)

// Datamover moves the PDUs and the data of one connection. It is the Datamover Architecture of RFC 5047 with its names:
// the protocol engine ([Connection]) calls these methods, the datamover calls the engine's notify methods.
//
// # Turns
//
// A connection is worked on in turns. A turn belongs to one goroutine at a time; the datamover provides the exclusion
// (the lock of a shard, or of a connection). Every method here except Wake is called inside a turn, and the datamover
// calls every notify method of [Connection] inside a turn. Calls queue work; the datamover sends what was queued, as one
// batch, at the end of the turn. Methods here never call back into the engine before they return.
//
// The engine asks for a turn with Wake, from any goroutine: when a store has finished, when a timer is due, when another
// connection wants this one ended. The datamover then calls [Connection.Turn] soon, inside a turn.
//
// # Order
//
// Control PDUs leave in the order of SendControl. The data of PutData leaves before a later SendControl of the same
// task. Receive buffers are made ready before a response that opens the command window leaves.
//
// # End
//
// ConnectionTerminate, or a lost peer, leads to exactly one [Connection.ConnectionTerminateNotify]: by then the datamover
// touches no task's buffers any more and will call no other notify method but Turn. Tasks that a store still holds keep
// their buffers until DeallocateTaskResources; the last call ever is DeallocateConnectionResources.
type Datamover interface {
	// SendControl queues a control-type PDU: header and data segment are copied before it returns, so both stay the
	// caller's. DataSegmentLength is set by the datamover. data is at most MaxSendDataSegmentLength bytes. For the
	// response that ends a task t is that task, nil otherwise; after the response and all data of the task have left and
	// its memory is no longer needed, the datamover calls [Connection.TaskReleased]. ExpDataSN of a SCSI Response is the
	// datamover's to set, which alone knows how many Data-In PDUs and R2Ts there were.
	SendControl(bhs *pdu.BHS, data []byte, t *Task)
	// PutData queues the data-in of t: the pieces in t.Command.Data, t.Command.DataInLength bytes. The memory is the
	// datamover's until TaskReleased. Over TCP it becomes Data-In PDUs, over iSER RDMA Writes.
	PutData(t *Task)
	// GetData brings length bytes of the initiator's data-out buffer, from offset on, into dst (which has exactly that
	// room), then calls [Connection.DataCompletionNotify]. Over TCP that is what arrives unsolicited and then R2Ts, over
	// iSER RDMA Reads. If t.Unsolicited is set, data is on its way unasked: a call with length 0 then means that it is to
	// be thrown away, and the notification comes when all of it has arrived.
	GetData(t *Task, offset, length uint32, dst [][]byte)
	// AllocateDataBuffers gives room for n bytes that this transport can move, in as few pieces as it can. The slices
	// are valid until DeallocateTaskResources. It fails when memory is short for now: the engine then waits for
	// [Connection.BuffersNotify].
	AllocateDataBuffers(t *Task, n uint32) ([][]byte, bool)
	// DeallocateTaskResources gives back the data buffers of t. The datamover has forgotten t afterwards.
	DeallocateTaskResources(t *Task)
	// ReleaseControl gives back the receive buffer of a control PDU that the engine retained (see [Control.Retain]).
	ReleaseControl(handle int)
	// AllocateConnectionResources is called once, before the final login response, with what the full feature phase
	// needs. An error refuses the login with "out of resources".
	AllocateConnectionResources(r Resources) error
	// NoticeKeyValues tells what login negotiated. It comes after AllocateConnectionResources, and again when a key
	// changed in full feature phase.
	NoticeKeyValues(p login.Params)
	// EnableDatamover queues the final login response and enters the full feature phase with it: receives for that
	// phase are ready before the response leaves, digests begin with the PDU after it.
	EnableDatamover(finalResponse *pdu.BHS, data []byte)
	// MaxSendDataSegmentLength is the largest data segment that SendControl may be given now: what the initiator declared
	// on TCP; 128 bytes in the full feature phase of a normal session over iSER.
	MaxSendDataSegmentLength() int
	// ConnectionTerminate ends the connection. With graceful set, what was queued leaves first, for a bounded time.
	// Calling it again, or after the peer is gone, is harmless.
	ConnectionTerminate(graceful bool)
	// DeallocateConnectionResources frees everything. It comes once, after ConnectionTerminateNotify.
	DeallocateConnectionResources()
	// Wake asks for a call of [Connection.Turn]. Any goroutine, any time, also after the end; it does not block.
	Wake()
}

// DataCanceler is a [Datamover] that can stop a GetData. Without it an aborted write waits until its data has come; an
// initiator that aborted the task may never send it.
type DataCanceler interface {
	// CancelData asks for the end of t's GetData: no R2T any more, what still comes is thrown away. The datamover calls
	// [Connection.DataCompletionNotify] for t as ever, with any error, once it touches the buffers no more; not before
	// CancelData returns.
	CancelData(t *Task)
}

// Resources is what a connection's full feature phase needs.
type Resources struct {
	// Tasks is the number of task slots; Task.Index is below it.
	Tasks int
	// Window is the largest number of non-immediate commands that the initiator may have unanswered, Immediate the
	// allowance for PDUs outside the window (immediate commands, NOP-Out, task management, logout).
	Window, Immediate int
	// Discovery is set for a discovery session: no tasks, one request at a time.
	Discovery bool
}

// Control is a control-type PDU on its way up. BHS, AHS and Data are valid during [Connection.ControlNotify].
type Control struct {
	BHS  *pdu.BHS
	AHS  []byte
	Data []byte // the data segment without padding
	// Private is copied to the task that the PDU starts, for the datamover alone (iSER: the STags).
	Private [4]uint64
	// Handle names the receive buffer. The engine sets Retain when Data stays in use after ControlNotify returned; it
	// then calls ReleaseControl(Handle) once.
	Handle int
	Retain bool
	// DataDigestError: the data segment did not match its digest (TCP); Data must not be used.
	DataDigestError bool
}

// Task is one slot of a connection's task table: a SCSI command from its arrival until its response has left. Slots are
// made at login and reused.
type Task struct {
	// Index is the slot's number, constant.
	Index int
	// BHS is the SCSI Command PDU.
	BHS     pdu.BHS
	Private [4]uint64
	// Unsolicited: the initiator sends unsolicited Data-Out PDUs for this command (W set, F clear).
	Unsolicited bool
	// ImmediateLength is the length of the immediate data, the offset at which unsolicited data begins.
	ImmediateLength uint32
	// Command is what the device server sees.
	Command scsi.Command

	taskState
}

// ConnInfo says between whom a connection runs.
type ConnInfo struct {
	Transport     login.Transport
	Local, Remote netip.AddrPort
	// Portal is the address that the listener was bound to (possibly a wildcard).
	Portal netip.AddrPort
	// Device is the RDMA device's name; empty on TCP.
	Device string
}

// Errors that a datamover gives to DataCompletionNotify are made with these.
var (
	// ErrDataDigest: a Data-Out PDU of the task did not match its digest.
	ErrDataDigest = dataError("data digest error")
	// ErrDataSequence: unsolicited or solicited data out of order, too much or too little.
	ErrDataSequence = dataError("data-out PDUs out of sequence")
	// ErrUnexpectedData: unsolicited data where none was negotiated, or more than FirstBurstLength.
	ErrUnexpectedData = dataError("unexpected unsolicited data")
)

type dataError string

func (e dataError) Error() string { return "iscsi: " + string(e) }
