package pdu

// Check says whether a header from an initiator is one that a target can look at further: a known opcode and field
// values that RFC 7143 allows. If not, the reason is what a Reject carries. It does not know stages or sessions. Reserved
// fields are not checked: receivers ignore them.
func (b *BHS) Check() (RejectReason, bool) {
	switch b.Opcode() {
	case OpNOPOut:
		// A NOP-Out without a task tag is an answer to a ping or nothing; it must be immediate.
		if b.InitiatorTaskTag() == ReservedTag && !b.Immediate() {
			return RejectProtocolError, false
		}
	case OpSCSICommand:
		c := b.SCSICommand()
		if b.InitiatorTaskTag() == ReservedTag {
			return RejectInvalidPDUField, false
		}
		// Without W nothing follows, so the PDU is final.
		if !c.Write() && !c.Final() {
			return RejectProtocolError, false
		}
		if c.Attr() > AttrACA {
			return RejectInvalidPDUField, false
		}
		// Immediate data is a part of what the command writes.
		if n := b.DataSegmentLength(); n != 0 && (!c.Write() || uint64(n) > uint64(c.ExpectedDataTransferLength())) {
			return RejectProtocolError, false
		}
	case OpTaskManagementRequest:
		if b.InitiatorTaskTag() == ReservedTag || b.DataSegmentLength() != 0 {
			return RejectInvalidPDUField, false
		}
	case OpLoginRequest:
		l := b.LoginRequest()
		if l.Transit() && l.Continue() {
			return RejectProtocolError, false
		}
	case OpTextRequest:
		t := b.TextRequest()
		if b.InitiatorTaskTag() == ReservedTag || t.Final() && t.Continue() {
			return RejectProtocolError, false
		}
	case OpLogoutRequest:
		if b.InitiatorTaskTag() == ReservedTag || b.DataSegmentLength() != 0 || b.LogoutRequest().Reason() > LogoutRemoveForRecovery {
			return RejectInvalidPDUField, false
		}
	case OpDataOut:
		// The LUN field is not looked at (known-faults B87).
		if b.InitiatorTaskTag() == ReservedTag {
			return RejectInvalidPDUField, false
		}
	case OpSNACK:
		if b.DataSegmentLength() != 0 {
			return RejectInvalidPDUField, false
		}
	default:
		return RejectCommandNotSupported, false
	}
	if b.TotalAHSLength() != 0 && b.Opcode() != OpSCSICommand {
		return RejectProtocolError, false
	}
	return 0, true
}
