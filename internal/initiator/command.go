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

// Command is what the header of a SCSI Command PDU says.
type Command struct {
	LUN uint64 // in wire order
	CDB []byte // beyond 16 bytes the caller adds an extended CDB
	ITT uint32
	// In and Out are the bytes expected each way; with both, Out goes into the header.
	In, Out int
	// Attr is simple when zero.
	Attr      pdu.TaskAttribute
	Immediate bool
	// More says that unsolicited Data-Out PDUs follow.
	More bool
}

// Put makes the header, all but its numbers ([Numbers.Number]) and lengths.
func (c *Command) Put(h *pdu.BHS) {
	s := h.SCSICommand()
	s.Init()
	h.SetImmediate(c.Immediate)
	s.SetFinal(!c.More)
	s.SetRead(c.In > 0)
	s.SetWrite(c.Out > 0)
	s.SetAttr(pdu.AttrSimple)
	if c.Attr != 0 {
		s.SetAttr(c.Attr)
	}
	s.SetLUN(c.LUN)
	s.SetInitiatorTaskTag(c.ITT)
	expected := c.In
	if c.Out > 0 {
		expected = c.Out
	}
	s.SetExpectedDataTransferLength(uint32(expected))
	copy(s.CDB()[:], c.CDB)
}

// PutPong makes the answer to a NOP-In with which the target asks for one, all but its numbers.
func PutPong(h *pdu.BHS, ping *pdu.BHS) {
	n := h.NOPOut()
	n.Init()
	h.SetImmediate(true)
	n.SetInitiatorTaskTag(pdu.ReservedTag)
	n.SetTargetTransferTag(ping.NOPIn().TargetTransferTag())
	n.SetLUN(ping.NOPIn().LUN())
}

// TakeStatus takes status and residual from a SCSI Response, and the sense that came as its data, which it copies into
// room. It sets everything but Data.
func (r *Result) TakeStatus(s *pdu.SCSIResponse, data, room []byte) error {
	r.Status, r.Response = s.Status(), s.Response()
	r.Overflow, r.Underflow, r.Residual = s.Overflow(), s.Underflow(), s.ResidualCount()
	r.Sense = nil
	if n := len(data); n >= 2 {
		k := int(binary.BigEndian.Uint16(data))
		if k > n-2 || k > len(room) {
			return fmt.Errorf("initiator: sense length %d in %d bytes", k, n)
		}
		r.Sense = room[:copy(room, data[2:2+k])]
	}
	return nil
}

// Unsolicited is the error of a PDU that answers nothing and means the end of what is under way: a Reject, or an
// asynchronous message other than a SCSI event. It is nil for every other PDU.
func Unsolicited(h *pdu.BHS, data []byte) error {
	switch h.Opcode() {
	case pdu.OpReject:
		if len(data) >= pdu.BHSLength {
			return fmt.Errorf("initiator: the target rejected a %s: %s", (*pdu.BHS)(data[:pdu.BHSLength]).Opcode(), h.Reject().Reason())
		}
		return fmt.Errorf("initiator: the target rejected a PDU: %s", h.Reject().Reason())
	case pdu.OpAsyncMessage:
		if e := h.AsyncMessage().AsyncEvent(); e != pdu.AsyncSCSI {
			return fmt.Errorf("initiator: asynchronous message of the target: %s", e)
		}
	}
	return nil
}
