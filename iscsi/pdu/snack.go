package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// SNACK views a header as a SNACK Request.
type SNACK BHS

// SNACK is the header seen as a SNACK Request; the same memory.
func (b *BHS) SNACK() *SNACK { return (*SNACK)(b) }

// BHS is the header of the PDU; the same memory.
func (p *SNACK) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *SNACK) Init() { p.BHS().init(OpSNACK, true) }

func (p *SNACK) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *SNACK) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *SNACK) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *SNACK) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

// Type is the kind of SNACK.
func (p *SNACK) Type() SNACKType     { return SNACKType(p[1] & 0xf) }
func (p *SNACK) SetType(v SNACKType) { p[1] = p[1]&^0xf | byte(v)&0xf }

func (p *SNACK) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *SNACK) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *SNACK) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *SNACK) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *SNACK) BegRun() uint32     { return binary.BigEndian.Uint32(p[40:]) }
func (p *SNACK) SetBegRun(v uint32) { binary.BigEndian.PutUint32(p[40:], v) }

func (p *SNACK) RunLength() uint32     { return binary.BigEndian.Uint32(p[44:]) }
func (p *SNACK) SetRunLength(v uint32) { binary.BigEndian.PutUint32(p[44:], v) }
