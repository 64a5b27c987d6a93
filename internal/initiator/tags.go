package initiator

// A task's tag ends with the number of its slot; other tags with noSlot. So an answer finds its task without a map, and
// the answer to an earlier user of the slot is told apart.
const (
	slotBits = 12
	noSlot   = 1<<slotBits - 1

	// MaxSlots is how many tasks a session can have.
	MaxSlots = noSlot
)

// Tags gives out initiator task tags.
type Tags struct {
	// ITT is the last one given.
	ITT      uint32
	requests uint32
}

// NextITT gives a tag for a request that is no task, not used for long.
func (t *Tags) NextITT() uint32 {
	t.requests = (t.requests + 1) & (1<<(32-slotBits-1) - 1) // never that of the reserved tag
	t.ITT = t.requests<<slotBits | noSlot
	return t.ITT
}

// SlotITT gives a tag for the task in a slot.
func (t *Tags) SlotITT(slot uint32) uint32 {
	t.ITT = t.NextITT()&^noSlot | slot
	return t.ITT
}

// SlotOf is the slot that a tag is for, at least [MaxSlots] for one of a request that is no task.
func SlotOf(itt uint32) uint32 { return itt & noSlot }
