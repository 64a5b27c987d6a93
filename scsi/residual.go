package scsi

import "fmt"

// ResidualKind says which residual flag a response carries.
type ResidualKind uint8

const (
	ResidualNone ResidualKind = iota
	// ResidualUnderflow: the initiator made room for, or offered, more than was transferred.
	ResidualUnderflow
	// ResidualOverflow: the initiator's expected length was too short for all of the data.
	ResidualOverflow
)

func (k ResidualKind) String() string {
	switch k {
	case ResidualNone:
		return "none"
	case ResidualUnderflow:
		return "underflow"
	case ResidualOverflow:
		return "overflow"
	}
	return fmt.Sprintf("residual kind %d", uint8(k))
}

// Residual compares what the command transferred with what the initiator expected. It is valid after NextDone, before
// Release. Bidirectional commands do not exist here; if both R and W are set, it is the direction of the CDB that counts.
//
// The rules (RFC 7143, SAM-5): a command that ends well and needed more than expected overflows by the rest; otherwise
// what was expected and not transferred is an underflow, all of it when the command failed before any data moved
// (known-faults B53) and when the data went the other way than the R and W bits say.
func (c *Command) Residual() (ResidualKind, uint32) {
	var expected, moved uint32
	var need uint64
	switch {
	case c.HasOut && (!c.HasIn || c.needIn == 0):
		expected, moved, need = c.ExpectedOut, c.outMoved, c.needOut
	default:
		expected, moved, need = c.ExpectedIn, c.DataInLength, c.needIn
		if !c.HasIn {
			// Neither bit is set: no data may move, and all that the CDB asks for is too much.
			expected, need = 0, max(c.needIn, c.needOut)
		}
	}
	if c.Status == StatusGood || c.Status == StatusConditionMet {
		if need > uint64(expected) {
			return ResidualOverflow, clampUint32(need - uint64(expected))
		}
	}
	if moved < expected {
		return ResidualUnderflow, expected - moved
	}
	return ResidualNone, 0
}

func clampUint32(n uint64) uint32 {
	if n > 0xFFFFFFFF {
		return 0xFFFFFFFF
	}
	return uint32(n)
}
