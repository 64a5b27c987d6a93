package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// TextRequest views a header as a Text Request.
type TextRequest BHS

// TextRequest is the header seen as a Text Request; the same memory.
func (b *BHS) TextRequest() *TextRequest { return (*TextRequest)(b) }

// BHS is the header of the PDU; the same memory.
func (p *TextRequest) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *TextRequest) Init() { p.BHS().init(OpTextRequest, false) }

func (p *TextRequest) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *TextRequest) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *TextRequest) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *TextRequest) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *TextRequest) Final() bool     { return p[1]&0x80 != 0 }
func (p *TextRequest) SetFinal(v bool) { setBit(&p[1], 0x80, v) }

func (p *TextRequest) Continue() bool     { return p[1]&0x40 != 0 }
func (p *TextRequest) SetContinue(v bool) { setBit(&p[1], 0x40, v) }

func (p *TextRequest) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *TextRequest) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *TextRequest) CmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *TextRequest) SetCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *TextRequest) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *TextRequest) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

// TextResponse views a header as a Text Response.
type TextResponse BHS

// TextResponse is the header seen as a Text Response; the same memory.
func (b *BHS) TextResponse() *TextResponse { return (*TextResponse)(b) }

// BHS is the header of the PDU; the same memory.
func (p *TextResponse) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *TextResponse) Init() { p.BHS().init(OpTextResponse, false) }

func (p *TextResponse) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *TextResponse) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *TextResponse) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *TextResponse) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *TextResponse) Final() bool     { return p[1]&0x80 != 0 }
func (p *TextResponse) SetFinal(v bool) { setBit(&p[1], 0x80, v) }

func (p *TextResponse) Continue() bool     { return p[1]&0x40 != 0 }
func (p *TextResponse) SetContinue(v bool) { setBit(&p[1], 0x40, v) }

func (p *TextResponse) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *TextResponse) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *TextResponse) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *TextResponse) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *TextResponse) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *TextResponse) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *TextResponse) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *TextResponse) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }
