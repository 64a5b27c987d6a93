package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// Reject views a header as a Reject.
type Reject BHS

// Reject is the header seen as a Reject; the same memory.
func (b *BHS) Reject() *Reject { return (*Reject)(b) }

// BHS is the header of the PDU; the same memory.
func (p *Reject) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode, the F bit and the reserved task tag.
func (p *Reject) Init() {
	p.BHS().init(OpReject, true)
	p.SetInitiatorTaskTag(ReservedTag)
}

func (p *Reject) Reason() RejectReason     { return RejectReason(p[2]) }
func (p *Reject) SetReason(v RejectReason) { p[2] = byte(v) }

func (p *Reject) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *Reject) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *Reject) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *Reject) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *Reject) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *Reject) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *Reject) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *Reject) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *Reject) DataSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *Reject) SetDataSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }
