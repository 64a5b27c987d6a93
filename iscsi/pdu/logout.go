package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// LogoutRequest views a header as a Logout Request.
type LogoutRequest BHS

// LogoutRequest is the header seen as a Logout Request; the same memory.
func (b *BHS) LogoutRequest() *LogoutRequest { return (*LogoutRequest)(b) }

// BHS is the header of the PDU; the same memory.
func (p *LogoutRequest) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *LogoutRequest) Init() { p.BHS().init(OpLogoutRequest, true) }

func (p *LogoutRequest) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *LogoutRequest) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

// Reason is what is to be closed.
func (p *LogoutRequest) Reason() LogoutReason     { return LogoutReason(p[1] & 0x7f) }
func (p *LogoutRequest) SetReason(r LogoutReason) { p[1] = p[1]&0x80 | byte(r)&0x7f }

func (p *LogoutRequest) CID() uint16     { return binary.BigEndian.Uint16(p[20:]) }
func (p *LogoutRequest) SetCID(v uint16) { binary.BigEndian.PutUint16(p[20:], v) }

func (p *LogoutRequest) CmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *LogoutRequest) SetCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *LogoutRequest) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *LogoutRequest) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

// LogoutResponse views a header as a Logout Response.
type LogoutResponse BHS

// LogoutResponse is the header seen as a Logout Response; the same memory.
func (b *BHS) LogoutResponse() *LogoutResponse { return (*LogoutResponse)(b) }

// BHS is the header of the PDU; the same memory.
func (p *LogoutResponse) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *LogoutResponse) Init() { p.BHS().init(OpLogoutResponse, true) }

func (p *LogoutResponse) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *LogoutResponse) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *LogoutResponse) Response() LogoutResponseCode     { return LogoutResponseCode(p[2]) }
func (p *LogoutResponse) SetResponse(v LogoutResponseCode) { p[2] = byte(v) }

func (p *LogoutResponse) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *LogoutResponse) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *LogoutResponse) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *LogoutResponse) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *LogoutResponse) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *LogoutResponse) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *LogoutResponse) Time2Wait() uint16     { return binary.BigEndian.Uint16(p[40:]) }
func (p *LogoutResponse) SetTime2Wait(v uint16) { binary.BigEndian.PutUint16(p[40:], v) }

func (p *LogoutResponse) Time2Retain() uint16     { return binary.BigEndian.Uint16(p[42:]) }
func (p *LogoutResponse) SetTime2Retain(v uint16) { binary.BigEndian.PutUint16(p[42:], v) }
