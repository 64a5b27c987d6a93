package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// R2T views a header as a Ready To Transfer.
type R2T BHS

// R2T is the header seen as a Ready To Transfer; the same memory.
func (b *BHS) R2T() *R2T { return (*R2T)(b) }

// BHS is the header of the PDU; the same memory.
func (p *R2T) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *R2T) Init() { p.BHS().init(OpR2T, true) }

func (p *R2T) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *R2T) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *R2T) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *R2T) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *R2T) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *R2T) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *R2T) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *R2T) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *R2T) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *R2T) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *R2T) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *R2T) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *R2T) R2TSN() uint32     { return binary.BigEndian.Uint32(p[36:]) }
func (p *R2T) SetR2TSN(v uint32) { binary.BigEndian.PutUint32(p[36:], v) }

func (p *R2T) BufferOffset() uint32     { return binary.BigEndian.Uint32(p[40:]) }
func (p *R2T) SetBufferOffset(v uint32) { binary.BigEndian.PutUint32(p[40:], v) }

func (p *R2T) DesiredDataTransferLength() uint32     { return binary.BigEndian.Uint32(p[44:]) }
func (p *R2T) SetDesiredDataTransferLength(v uint32) { binary.BigEndian.PutUint32(p[44:], v) }
