package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// NOPOut views a header as a NOP-Out.
type NOPOut BHS

// NOPOut is the header seen as a NOP-Out; the same memory.
func (b *BHS) NOPOut() *NOPOut { return (*NOPOut)(b) }

// BHS is the header of the PDU; the same memory.
func (p *NOPOut) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *NOPOut) Init() { p.BHS().init(OpNOPOut, true) }

func (p *NOPOut) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *NOPOut) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *NOPOut) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *NOPOut) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *NOPOut) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *NOPOut) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *NOPOut) CmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *NOPOut) SetCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *NOPOut) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *NOPOut) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

// NOPIn views a header as a NOP-In.
type NOPIn BHS

// NOPIn is the header seen as a NOP-In; the same memory.
func (b *BHS) NOPIn() *NOPIn { return (*NOPIn)(b) }

// BHS is the header of the PDU; the same memory.
func (p *NOPIn) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode and the F bit.
func (p *NOPIn) Init() { p.BHS().init(OpNOPIn, true) }

func (p *NOPIn) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *NOPIn) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *NOPIn) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *NOPIn) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *NOPIn) TargetTransferTag() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *NOPIn) SetTargetTransferTag(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *NOPIn) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *NOPIn) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *NOPIn) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *NOPIn) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *NOPIn) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *NOPIn) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }
