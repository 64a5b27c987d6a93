package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// AsyncMessage views a header as an Asynchronous Message.
type AsyncMessage BHS

// AsyncMessage is the header seen as an Asynchronous Message; the same memory.
func (b *BHS) AsyncMessage() *AsyncMessage { return (*AsyncMessage)(b) }

// BHS is the header of the PDU; the same memory.
func (p *AsyncMessage) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode, the F bit and the reserved task tag.
func (p *AsyncMessage) Init() {
	p.BHS().init(OpAsyncMessage, true)
	p.BHS().SetInitiatorTaskTag(ReservedTag)
}

func (p *AsyncMessage) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *AsyncMessage) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *AsyncMessage) StatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *AsyncMessage) SetStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *AsyncMessage) ExpCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *AsyncMessage) SetExpCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

func (p *AsyncMessage) MaxCmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[32:])) }
func (p *AsyncMessage) SetMaxCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[32:], v.Uint32()) }

func (p *AsyncMessage) AsyncEvent() AsyncEvent     { return AsyncEvent(p[36]) }
func (p *AsyncMessage) SetAsyncEvent(v AsyncEvent) { p[36] = byte(v) }

func (p *AsyncMessage) AsyncVCode() uint8     { return uint8(p[37]) }
func (p *AsyncMessage) SetAsyncVCode(v uint8) { p[37] = byte(v) }

func (p *AsyncMessage) Parameter1() uint16     { return binary.BigEndian.Uint16(p[38:]) }
func (p *AsyncMessage) SetParameter1(v uint16) { binary.BigEndian.PutUint16(p[38:], v) }

func (p *AsyncMessage) Parameter2() uint16     { return binary.BigEndian.Uint16(p[40:]) }
func (p *AsyncMessage) SetParameter2(v uint16) { binary.BigEndian.PutUint16(p[40:], v) }

func (p *AsyncMessage) Parameter3() uint16     { return binary.BigEndian.Uint16(p[42:]) }
func (p *AsyncMessage) SetParameter3(v uint16) { binary.BigEndian.PutUint16(p[42:], v) }
