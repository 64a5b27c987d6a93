package pdu

import (
	"encoding/binary"

	"iserd/internal/serial"
)

// SCSICommand views a header as a SCSI Command.
type SCSICommand BHS

// SCSICommand is the header seen as a SCSI Command; the same memory.
func (b *BHS) SCSICommand() *SCSICommand { return (*SCSICommand)(b) }

// BHS is the header of the PDU; the same memory.
func (p *SCSICommand) BHS() *BHS { return (*BHS)(p) }

// Init clears the header and sets the opcode.
func (p *SCSICommand) Init() { p.BHS().init(OpSCSICommand, false) }

func (p *SCSICommand) LUN() uint64     { return binary.BigEndian.Uint64(p[8:]) }
func (p *SCSICommand) SetLUN(v uint64) { binary.BigEndian.PutUint64(p[8:], v) }

func (p *SCSICommand) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(p[16:]) }
func (p *SCSICommand) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(p[16:], v) }

func (p *SCSICommand) Final() bool     { return p[1]&0x80 != 0 }
func (p *SCSICommand) SetFinal(v bool) { setBit(&p[1], 0x80, v) }

func (p *SCSICommand) Read() bool     { return p[1]&0x40 != 0 }
func (p *SCSICommand) SetRead(v bool) { setBit(&p[1], 0x40, v) }

func (p *SCSICommand) Write() bool     { return p[1]&0x20 != 0 }
func (p *SCSICommand) SetWrite(v bool) { setBit(&p[1], 0x20, v) }

// Attr is the task attribute.
func (p *SCSICommand) Attr() TaskAttribute     { return TaskAttribute(p[1] & 7) }
func (p *SCSICommand) SetAttr(a TaskAttribute) { p[1] = p[1]&^7 | byte(a)&7 }

func (p *SCSICommand) ExpectedDataTransferLength() uint32     { return binary.BigEndian.Uint32(p[20:]) }
func (p *SCSICommand) SetExpectedDataTransferLength(v uint32) { binary.BigEndian.PutUint32(p[20:], v) }

func (p *SCSICommand) CmdSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[24:])) }
func (p *SCSICommand) SetCmdSN(v serial.Number) { binary.BigEndian.PutUint32(p[24:], v.Uint32()) }

func (p *SCSICommand) ExpStatSN() serial.Number     { return serial.New(binary.BigEndian.Uint32(p[28:])) }
func (p *SCSICommand) SetExpStatSN(v serial.Number) { binary.BigEndian.PutUint32(p[28:], v.Uint32()) }

// CDB is the first 16 bytes of the CDB, in place; longer ones go on in an AHS.
func (p *SCSICommand) CDB() *[16]byte { return (*[16]byte)(p[32:48]) }
