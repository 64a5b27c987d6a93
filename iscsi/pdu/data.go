package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// DataOut views a header as a SCSI Data-Out.
type DataOut BHS

// DataOut is the header seen as a SCSI Data-Out; the same memory.
func (b *BHS) DataOut() *DataOut { return (*DataOut)(b) }

// BHS is the header of the PDU; the same memory.
func (p *DataOut) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *DataOut) Init() { p.BHS().init(OpDataOut, false) }

func (p *DataOut) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *DataOut) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *DataOut) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *DataOut) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *DataOut) Final() bool     { return p[1]&0x80 != 0 }
func (p *DataOut) SetFinal(v bool) { setBit(&p[1], 0x80, v) }

func (p *DataOut) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *DataOut) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *DataOut) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *DataOut) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *DataOut) DataSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *DataOut) SetDataSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }

func (p *DataOut) BufferOffset() uint32     { return binary.BigEndian.Uint32(p[40:]) }
func (p *DataOut) SetBufferOffset(v uint32) { binary.BigEndian.PutUint32(p[40:], v) }

// DataIn views a header as a SCSI Data-In.
type DataIn BHS

// DataIn is the header seen as a SCSI Data-In; the same memory.
func (b *BHS) DataIn() *DataIn { return (*DataIn)(b) }

// BHS is the header of the PDU; the same memory.
func (p *DataIn) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *DataIn) Init() { p.BHS().init(OpDataIn, false) }

func (p *DataIn) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *DataIn) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *DataIn) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *DataIn) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *DataIn) Final() bool     { return p[1]&0x80 != 0 }
func (p *DataIn) SetFinal(v bool) { setBit(&p[1], 0x80, v) }

func (p *DataIn) Acknowledge() bool     { return p[1]&0x40 != 0 }
func (p *DataIn) SetAcknowledge(v bool) { setBit(&p[1], 0x40, v) }

func (p *DataIn) Overflow() bool     { return p[1]&0x4 != 0 }
func (p *DataIn) SetOverflow(v bool) { setBit(&p[1], 0x4, v) }

func (p *DataIn) Underflow() bool     { return p[1]&0x2 != 0 }
func (p *DataIn) SetUnderflow(v bool) { setBit(&p[1], 0x2, v) }

func (p *DataIn) HasStatus() bool     { return p[1]&0x1 != 0 }
func (p *DataIn) SetHasStatus(v bool) { setBit(&p[1], 0x1, v) }

func (p *DataIn) Status() uint8     { return uint8(p[3]) }
func (p *DataIn) SetStatus(v uint8) { p[3] = byte(v) }

func (p *DataIn) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *DataIn) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *DataIn) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *DataIn) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *DataIn) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *DataIn) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *DataIn) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *DataIn) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *DataIn) DataSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *DataIn) SetDataSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }

func (p *DataIn) BufferOffset() uint32     { return binary.BigEndian.Uint32(p[40:]) }
func (p *DataIn) SetBufferOffset(v uint32) { binary.BigEndian.PutUint32(p[40:], v) }

func (p *DataIn) ResidualCount() uint32     { return binary.BigEndian.Uint32(p[44:]) }
func (p *DataIn) SetResidualCount(v uint32) { binary.BigEndian.PutUint32(p[44:], v) }

// Residual is the residual flag and count; an overflow counts before an underflow, a count without a flag is none.
func (p *DataIn) Residual() (ResidualKind, uint32) {
	switch {
	case p.Overflow():
		return ResidualOverflow, p.ResidualCount()
	case p.Underflow():
		return ResidualUnderflow, p.ResidualCount()
	}
	return ResidualNone, 0
}

// SetResidual sets the count and exactly the flag that kind names.
func (p *DataIn) SetResidual(kind ResidualKind, count uint32) {
	p.SetOverflow(kind == ResidualOverflow)
	p.SetUnderflow(kind == ResidualUnderflow)
	p.SetResidualCount(count)
}
