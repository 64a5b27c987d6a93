package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// LoginRequest views a header as a Login Request.
type LoginRequest BHS

// LoginRequest is the header seen as a Login Request; the same memory.
func (b *BHS) LoginRequest() *LoginRequest { return (*LoginRequest)(b) }

// BHS is the header of the PDU; the same memory.
func (p *LoginRequest) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the I bit: login requests are always immediate.
func (p *LoginRequest) Init() {
	p.BHS().init(OpLoginRequest, false)
	p.BHS().SetImmediate(true)
}

func (p *LoginRequest) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *LoginRequest) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *LoginRequest) TSIH() uint16     { return binary.BigEndian.Uint16(p[14:]) }
func (p *LoginRequest) SetTSIH(v uint16) { binary.BigEndian.PutUint16(p[14:], v) }

func (p *LoginRequest) Transit() bool     { return p[1]&0x80 != 0 }
func (p *LoginRequest) SetTransit(v bool) { setBit(&p[1], 0x80, v) }

func (p *LoginRequest) Continue() bool     { return p[1]&0x40 != 0 }
func (p *LoginRequest) SetContinue(v bool) { setBit(&p[1], 0x40, v) }

// CSG is the current stage.
func (p *LoginRequest) CSG() Stage     { return Stage(p[1] >> 2 & 3) }
func (p *LoginRequest) SetCSG(s Stage) { p[1] = p[1]&^0xc | byte(s)&3<<2 }

// NSG is the next stage; it counts when T is set.
func (p *LoginRequest) NSG() Stage     { return Stage(p[1] & 3) }
func (p *LoginRequest) SetNSG(s Stage) { p[1] = p[1]&^3 | byte(s)&3 }

// ISID is the initiator's part of the session identifier.
func (p *LoginRequest) ISID() [6]byte     { return [6]byte(p[8:14]) }
func (p *LoginRequest) SetISID(v [6]byte) { copy(p[8:14], v[:]) }

func (p *LoginRequest) VersionMax() uint8     { return uint8(p[2]) }
func (p *LoginRequest) SetVersionMax(v uint8) { p[2] = byte(v) }

func (p *LoginRequest) VersionMin() uint8     { return uint8(p[3]) }
func (p *LoginRequest) SetVersionMin(v uint8) { p[3] = byte(v) }

func (p *LoginRequest) CID() uint16     { return binary.BigEndian.Uint16(p[20:]) }
func (p *LoginRequest) SetCID(v uint16) { binary.BigEndian.PutUint16(p[20:], v) }

func (p *LoginRequest) CmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *LoginRequest) SetCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *LoginRequest) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *LoginRequest) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

// LoginResponse views a header as a Login Response.
type LoginResponse BHS

// LoginResponse is the header seen as a Login Response; the same memory.
func (b *BHS) LoginResponse() *LoginResponse { return (*LoginResponse)(b) }

// BHS is the header of the PDU; the same memory.
func (p *LoginResponse) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *LoginResponse) Init() { p.BHS().init(OpLoginResponse, false) }

func (p *LoginResponse) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *LoginResponse) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *LoginResponse) TSIH() uint16     { return binary.BigEndian.Uint16(p[14:]) }
func (p *LoginResponse) SetTSIH(v uint16) { binary.BigEndian.PutUint16(p[14:], v) }

func (p *LoginResponse) Transit() bool     { return p[1]&0x80 != 0 }
func (p *LoginResponse) SetTransit(v bool) { setBit(&p[1], 0x80, v) }

func (p *LoginResponse) Continue() bool     { return p[1]&0x40 != 0 }
func (p *LoginResponse) SetContinue(v bool) { setBit(&p[1], 0x40, v) }

// CSG is the current stage.
func (p *LoginResponse) CSG() Stage     { return Stage(p[1] >> 2 & 3) }
func (p *LoginResponse) SetCSG(s Stage) { p[1] = p[1]&^0xc | byte(s)&3<<2 }

// NSG is the next stage; it counts when T is set.
func (p *LoginResponse) NSG() Stage     { return Stage(p[1] & 3) }
func (p *LoginResponse) SetNSG(s Stage) { p[1] = p[1]&^3 | byte(s)&3 }

// ISID is the initiator's part of the session identifier.
func (p *LoginResponse) ISID() [6]byte     { return [6]byte(p[8:14]) }
func (p *LoginResponse) SetISID(v [6]byte) { copy(p[8:14], v[:]) }

func (p *LoginResponse) VersionMax() uint8     { return uint8(p[2]) }
func (p *LoginResponse) SetVersionMax(v uint8) { p[2] = byte(v) }

func (p *LoginResponse) VersionActive() uint8     { return uint8(p[3]) }
func (p *LoginResponse) SetVersionActive(v uint8) { p[3] = byte(v) }

func (p *LoginResponse) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *LoginResponse) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *LoginResponse) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *LoginResponse) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *LoginResponse) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *LoginResponse) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *LoginResponse) StatusClass() uint8     { return uint8(p[36]) }
func (p *LoginResponse) SetStatusClass(v uint8) { p[36] = byte(v) }

func (p *LoginResponse) StatusDetail() uint8     { return uint8(p[37]) }
func (p *LoginResponse) SetStatusDetail(v uint8) { p[37] = byte(v) }
