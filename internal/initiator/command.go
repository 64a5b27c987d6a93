package initiator

import (
	"encoding/binary"
	"fmt"

	"iserd/iscsi/pdu"
)

// Result is how a command ended. Data and Sense are valid until the task is started again or released.
type Result struct {
	Status              uint8
	Response            pdu.SCSIResponseCode
	Sense               []byte // without the length
	Data                []byte // data-in, as far as it came
	Overflow, Underflow bool
	Residual            uint32
}

// SenseKey is the sense key and the additional sense code with its qualifier, 0 without sense.
func (r *Result) SenseKey() (key uint8, asc uint16) {
	if len(r.Sense) < 14 {
		return 0, 0
	}
	return r.Sense[2] & 0xf, binary.BigEndian.Uint16(r.Sense[12:])
}

// Good is nil after GOOD status without a residual, else an error that says how the command ended.
func (r *Result) Good() error {
	if r.Status == 0 && r.Response == pdu.ResponseCompleted && !r.Overflow && !r.Underflow {
		return nil
	}
	if r.Response != pdu.ResponseCompleted {
		return fmt.Errorf("no status: %s", r.Response)
	}
	key, asc := r.SenseKey()
	switch {
	case r.Status != 0 && len(r.Sense) > 0:
		return fmt.Errorf("SCSI status %#02x, sense key %#x, additional sense code %#04x", r.Status, key, asc)
	case r.Status != 0:
		return fmt.Errorf("SCSI status %#02x without sense", r.Status)
	case r.Overflow:
		return fmt.Errorf("overflow: %d bytes more than expected", r.Residual)
	}
	return fmt.Errorf("underflow: %d bytes less than expected", r.Residual)
}

// LUN is a logical unit number below 256 in wire order.
func LUN(n int) uint64 { return uint64(n) << 48 }

// PutReadWrite10 and PutReadWrite16 fill a task's command descriptor block with READ or WRITE, without allocating. Lengths
// are in blocks.
func PutReadWrite10(cdb *[16]byte, write bool, lba uint32, blocks uint16) {
	*cdb = [16]byte{opRead10}
	if write {
		cdb[0] = opWrite10
	}
	binary.BigEndian.PutUint32(cdb[2:], lba)
	binary.BigEndian.PutUint16(cdb[7:], blocks)
}

// PutReadWrite16 is PutReadWrite10 for 64 bits of address.
func PutReadWrite16(cdb *[16]byte, write bool, lba uint64, blocks uint32) {
	*cdb = [16]byte{opRead16}
	if write {
		cdb[0] = opWrite16
	}
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
}

// The operation codes that the builders use; package scsi, which names them all, is the target's.
const (
	opRead10  = 0x28
	opWrite10 = 0x2a
	opRead16  = 0x88
	opWrite16 = 0x8a
)

// Read10 makes a command descriptor block, as do Write10, Read16 and Write16. Lengths are in blocks.
func Read10(lba uint32, blocks uint16) []byte { return cdb10(false, lba, blocks) }

// Write10 is WRITE(10).
func Write10(lba uint32, blocks uint16) []byte { return cdb10(true, lba, blocks) }

// Read16 is READ(16).
func Read16(lba uint64, blocks uint32) []byte { return cdb16(false, lba, blocks) }

// Write16 is WRITE(16).
func Write16(lba uint64, blocks uint32) []byte { return cdb16(true, lba, blocks) }

func cdb10(write bool, lba uint32, blocks uint16) []byte {
	var b [16]byte
	PutReadWrite10(&b, write, lba, blocks)
	return b[:10]
}

func cdb16(write bool, lba uint64, blocks uint32) []byte {
	var b [16]byte
	PutReadWrite16(&b, write, lba, blocks)
	return b[:]
}
