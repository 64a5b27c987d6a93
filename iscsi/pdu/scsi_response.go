package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// SCSIResponse views a header as a SCSI Response.
type SCSIResponse BHS

// SCSIResponse is the header seen as a SCSI Response; the same memory.
func (b *BHS) SCSIResponse() *SCSIResponse { return (*SCSIResponse)(b) }

// BHS is the header of the PDU; the same memory.
func (p *SCSIResponse) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *SCSIResponse) Init() { p.BHS().init(OpSCSIResponse, true) }

func (p *SCSIResponse) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *SCSIResponse) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *SCSIResponse) Response() SCSIResponseCode     { return SCSIResponseCode(p[2]) }
func (p *SCSIResponse) SetResponse(v SCSIResponseCode) { p[2] = byte(v) }

func (p *SCSIResponse) Status() uint8     { return uint8(p[3]) }
func (p *SCSIResponse) SetStatus(v uint8) { p[3] = byte(v) }

func (p *SCSIResponse) SNACKTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *SCSIResponse) SetSNACKTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *SCSIResponse) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *SCSIResponse) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *SCSIResponse) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *SCSIResponse) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *SCSIResponse) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *SCSIResponse) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *SCSIResponse) ExpDataSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *SCSIResponse) SetExpDataSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }

func (p *SCSIResponse) BidiReadResidualCount() uint32     { return binary.BigEndian.Uint32(p[40:]) }
func (p *SCSIResponse) SetBidiReadResidualCount(v uint32) { binary.BigEndian.PutUint32(p[40:], v) }

func (p *SCSIResponse) ResidualCount() uint32     { return binary.BigEndian.Uint32(p[44:]) }
func (p *SCSIResponse) SetResidualCount(v uint32) { binary.BigEndian.PutUint32(p[44:], v) }

func (p *SCSIResponse) Overflow() bool     { return p[1]&0x4 != 0 }
func (p *SCSIResponse) SetOverflow(v bool) { setBit(&p[1], 0x4, v) }

func (p *SCSIResponse) Underflow() bool     { return p[1]&0x2 != 0 }
func (p *SCSIResponse) SetUnderflow(v bool) { setBit(&p[1], 0x2, v) }

func (p *SCSIResponse) BidiReadOverflow() bool     { return p[1]&0x10 != 0 }
func (p *SCSIResponse) SetBidiReadOverflow(v bool) { setBit(&p[1], 0x10, v) }

func (p *SCSIResponse) BidiReadUnderflow() bool     { return p[1]&0x8 != 0 }
func (p *SCSIResponse) SetBidiReadUnderflow(v bool) { setBit(&p[1], 0x8, v) }

// Residual is the residual flag and count; an overflow counts before an underflow, a count without a flag is none.
func (p *SCSIResponse) Residual() (ResidualKind, uint32) {
	switch {
	case p.Overflow():
		return ResidualOverflow, p.ResidualCount()
	case p.Underflow():
		return ResidualUnderflow, p.ResidualCount()
	}
	return ResidualNone, 0
}

// SetResidual sets the count and exactly the flag that kind names.
func (p *SCSIResponse) SetResidual(kind ResidualKind, count uint32) {
	p.SetOverflow(kind == ResidualOverflow)
	p.SetUnderflow(kind == ResidualUnderflow)
	p.SetResidualCount(count)
}

// BidiReadResidual is the residual of the read part of a bidirectional command.
func (p *SCSIResponse) BidiReadResidual() (ResidualKind, uint32) {
	switch {
	case p.BidiReadOverflow():
		return ResidualOverflow, p.BidiReadResidualCount()
	case p.BidiReadUnderflow():
		return ResidualUnderflow, p.BidiReadResidualCount()
	}
	return ResidualNone, 0
}

// SetBidiReadResidual is SetResidual for the read part of a bidirectional command.
func (p *SCSIResponse) SetBidiReadResidual(kind ResidualKind, count uint32) {
	p.SetBidiReadOverflow(kind == ResidualOverflow)
	p.SetBidiReadUnderflow(kind == ResidualUnderflow)
	p.SetBidiReadResidualCount(count)
}
