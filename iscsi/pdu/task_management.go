package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// TaskManagementRequest views a header as a Task Management Function Request.
type TaskManagementRequest BHS

// TaskManagementRequest is the header seen as a Task Management Function Request; the same memory.
func (b *BHS) TaskManagementRequest() *TaskManagementRequest { return (*TaskManagementRequest)(b) }

// BHS is the header of the PDU; the same memory.
func (p *TaskManagementRequest) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *TaskManagementRequest) Init() { p.BHS().init(OpTaskManagementRequest, true) }

func (p *TaskManagementRequest) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *TaskManagementRequest) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *TaskManagementRequest) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *TaskManagementRequest) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

// Function is what is asked.
func (p *TaskManagementRequest) Function() TMFunction     { return TMFunction(p[1] & 0x7f) }
func (p *TaskManagementRequest) SetFunction(f TMFunction) { p[1] = p[1]&0x80 | byte(f)&0x7f }

func (p *TaskManagementRequest) ReferencedTaskTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *TaskManagementRequest) SetReferencedTaskTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *TaskManagementRequest) CmdSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[24:]))
}
func (p *TaskManagementRequest) SetCmdSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[24:], v.Uint32())
}

func (p *TaskManagementRequest) ExpStatSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[28:]))
}
func (p *TaskManagementRequest) SetExpStatSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[28:], v.Uint32())
}

func (p *TaskManagementRequest) RefCmdSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[32:]))
}
func (p *TaskManagementRequest) SetRefCmdSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[32:], v.Uint32())
}

func (p *TaskManagementRequest) ExpDataSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *TaskManagementRequest) SetExpDataSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }

// TaskManagementResponse views a header as a Task Management Function Response.
type TaskManagementResponse BHS

// TaskManagementResponse is the header seen as a Task Management Function Response; the same memory.
func (b *BHS) TaskManagementResponse() *TaskManagementResponse { return (*TaskManagementResponse)(b) }

// BHS is the header of the PDU; the same memory.
func (p *TaskManagementResponse) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *TaskManagementResponse) Init() { p.BHS().init(OpTaskManagementResponse, true) }

func (p *TaskManagementResponse) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *TaskManagementResponse) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *TaskManagementResponse) Response() TMResponse     { return TMResponse(p[2]) }
func (p *TaskManagementResponse) SetResponse(v TMResponse) { p[2] = byte(v) }

func (p *TaskManagementResponse) StatSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[24:]))
}
func (p *TaskManagementResponse) SetStatSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[24:], v.Uint32())
}

func (p *TaskManagementResponse) ExpCmdSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[28:]))
}
func (p *TaskManagementResponse) SetExpCmdSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[28:], v.Uint32())
}

func (p *TaskManagementResponse) MaxCmdSN() serial.Number {
	return serial.New(binary.BigEndian.Uint32(p[32:]))
}
func (p *TaskManagementResponse) SetMaxCmdSN(v serial.Number) {
	binary.BigEndian.PutUint32(p[32:], v.Uint32())
}
