package pdu

import "encoding/binary"

// BHSLength is the length of the basic header segment, in bytes.
const BHSLength = 48

// ReservedTag is the value of a task tag or transfer tag that names nothing.
const ReservedTag = 0xffffffff

// BHS is the basic header segment of a PDU, in wire order. The methods read and write fields that all PDUs have; the
// conversions ([BHS.SCSICommand] and the like) give those of one kind, over the same memory.
type BHS [BHSLength]byte

// Opcode is what kind of PDU it is.
func (b *BHS) Opcode() Opcode { return Opcode(b[0] & 0x3f) }

// SetOpcode keeps the I bit.
func (b *BHS) SetOpcode(o Opcode) { b[0] = b[0]&^0x3f | byte(o)&0x3f }

// Immediate is the I bit.
func (b *BHS) Immediate() bool     { return b[0]&0x40 != 0 }
func (b *BHS) SetImmediate(v bool) { setBit(&b[0], 0x40, v) }

// Final is the F bit.
func (b *BHS) Final() bool     { return b[1]&0x80 != 0 }
func (b *BHS) SetFinal(v bool) { setBit(&b[1], 0x80, v) }

// TotalAHSLength is the length of all additional header segments, in bytes: a multiple of 4, up to 1020.
func (b *BHS) TotalAHSLength() int { return int(b[4]) * 4 }

// SetTotalAHSLength takes bytes, a multiple of 4 up to 1020.
func (b *BHS) SetTotalAHSLength(n int) { b[4] = byte(n / 4) }

// DataSegmentLength is the length of the data segment in bytes, without padding.
func (b *BHS) DataSegmentLength() int { return int(b[5])<<16 | int(b[6])<<8 | int(b[7]) }

// SetDataSegmentLength takes up to 2^24-1 bytes.
func (b *BHS) SetDataSegmentLength(n int) { b[5], b[6], b[7] = byte(n>>16), byte(n>>8), byte(n) }

// LUN is the logical unit number field, eight bytes in wire order.
func (b *BHS) LUN() uint64     { return binary.BigEndian.Uint64(b[8:]) }
func (b *BHS) SetLUN(v uint64) { binary.BigEndian.PutUint64(b[8:], v) }

// InitiatorTaskTag names the task.
func (b *BHS) InitiatorTaskTag() uint32     { return binary.BigEndian.Uint32(b[16:]) }
func (b *BHS) SetInitiatorTaskTag(v uint32) { binary.BigEndian.PutUint32(b[16:], v) }

// Reset clears the header.
func (b *BHS) Reset() { *b = BHS{} }

func (b *BHS) init(op Opcode, final bool) {
	*b = BHS{}
	b[0] = byte(op)
	if final {
		b[1] = 0x80
	}
}

func setBit(b *byte, mask byte, v bool) {
	if v {
		*b |= mask
	} else {
		*b &^= mask
	}
}

// Pad4 is n rounded up to a multiple of four, as data segments are padded.
func Pad4(n int) int { return (n + 3) &^ 3 }
