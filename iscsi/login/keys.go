package login

import (
	"strconv"

	"iserd/iscsi/pdu"
)

// kind is how a key is negotiated.
type kind uint8

const (
	kindDeclare    kind = iota // the sender says; no answer
	kindMin                    // the smaller number
	kindMax                    // the larger number
	kindAnd                    // Yes if both say Yes
	kindOr                     // Yes if one says Yes
	kindDigest                 // the first of a list that both know
	kindNo                     // a boolean that we always answer with No
	kindIrrelevant             // obsolete: answered with Irrelevant
)

// where are the transports and session types that a key belongs to.
type where uint8

const (
	onTCP where = 1 << iota
	onISER
	everywhere = onTCP | onISER
)

// rule is one operational key. lo and hi bound numbers; ours gives our value, set keeps the result.
type rule struct {
	kind   kind
	on     where
	lo, hi uint64
	ours   func(m *Machine) uint64
	set    func(m *Machine, v uint64)
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

const maxLength = 1<<24 - 1

func constant(v uint64) func(*Machine) uint64 { return func(*Machine) uint64 { return v } }
func ignore(*Machine, uint64)                 {}

// rules are the operational keys (RFC 7143 and, for iSER, RFC 7145). Keys that are not here and not the login's own are
// answered with NotUnderstood.
var rules = map[string]rule{
	"HeaderDigest": {kind: kindDigest, on: everywhere, set: func(m *Machine, v uint64) { m.params.HeaderDigest = v != 0 }},
	"DataDigest":   {kind: kindDigest, on: everywhere, set: func(m *Machine, v uint64) { m.params.DataDigest = v != 0 }},
	"MaxRecvDataSegmentLength": {kind: kindDeclare, on: everywhere, lo: 512, hi: maxLength, set: func(m *Machine, v uint64) {
		// Over iSER the key is not used (RFC 7145), though libiscsi sends it.
		if m.transport == TransportTCP {
			m.params.MaxSendDataSegmentLength = uint32(v)
		}
	}},
	"MaxBurstLength": {kind: kindMin, on: everywhere, lo: 512, hi: maxLength,
		ours: func(m *Machine) uint64 { return uint64(m.limits.MaxBurstLength) },
		set:  func(m *Machine, v uint64) { m.params.MaxBurstLength = uint32(v) }},
	"FirstBurstLength": {kind: kindMin, on: everywhere, lo: 512, hi: maxLength,
		// Never above MaxBurstLength, which is answered first whatever the order of the keys.
		ours: func(m *Machine) uint64 { return uint64(min(m.limits.FirstBurstLength, m.params.MaxBurstLength)) },
		set:  func(m *Machine, v uint64) { m.params.FirstBurstLength = uint32(v) }},
	"MaxOutstandingR2T": {kind: kindMin, on: everywhere, lo: 1, hi: 65535,
		ours: func(m *Machine) uint64 { return uint64(m.limits.MaxOutstandingR2T) },
		set:  func(m *Machine, v uint64) { m.params.MaxOutstandingR2T = uint32(v) }},
	"InitialR2T": {kind: kindOr, on: everywhere,
		// libiscsi sends unsolicited Data-Out over iSER without their data, so none may come there.
		ours: func(m *Machine) uint64 { return flag(m.limits.InitialR2T || m.transport == TransportISER) },
		set:  func(m *Machine, v uint64) { m.params.InitialR2T = v != 0 }},
	"ImmediateData": {kind: kindAnd, on: everywhere,
		ours: func(m *Machine) uint64 { return flag(m.limits.ImmediateData) },
		set:  func(m *Machine, v uint64) { m.params.ImmediateData = v != 0 }},
	"DataPDUInOrder":      {kind: kindOr, on: everywhere, ours: constant(1), set: ignore},
	"DataSequenceInOrder": {kind: kindOr, on: everywhere, ours: constant(1), set: ignore},
	"MaxConnections":      {kind: kindMin, on: everywhere, lo: 1, hi: 65535, ours: constant(1), set: ignore},
	"ErrorRecoveryLevel":  {kind: kindMin, on: everywhere, lo: 0, hi: 2, ours: constant(0), set: ignore},
	"DefaultTime2Wait": {kind: kindMax, on: everywhere, lo: 0, hi: 3600,
		ours: func(m *Machine) uint64 { return uint64(m.limits.DefaultTime2Wait) },
		set:  func(m *Machine, v uint64) { m.params.DefaultTime2Wait = uint32(v) }},
	"DefaultTime2Retain": {kind: kindMin, on: everywhere, lo: 0, hi: 3600,
		ours: func(m *Machine) uint64 { return uint64(m.limits.DefaultTime2Retain) },
		set:  func(m *Machine, v uint64) { m.params.DefaultTime2Retain = uint32(v) }},
	"OFMarker":  {kind: kindNo, on: everywhere, set: ignore},
	"IFMarker":  {kind: kindNo, on: everywhere, set: ignore},
	"OFMarkInt": {kind: kindIrrelevant, on: everywhere},
	"IFMarkInt": {kind: kindIrrelevant, on: everywhere},

	"RDMAExtensions": {kind: kindAnd, on: everywhere,
		ours: func(m *Machine) uint64 { return flag(m.transport == TransportISER) },
		set:  func(m *Machine, v uint64) { m.params.RDMAExtensions = v != 0 }},
	"TargetRecvDataSegmentLength": {kind: kindMin, on: onISER, lo: 512, hi: maxLength,
		ours: func(m *Machine) uint64 { return uint64(m.limits.TargetRecvDataSegmentLength) },
		set:  func(m *Machine, v uint64) { m.params.MaxRecvDataSegmentLength = uint32(v) }},
	"InitiatorRecvDataSegmentLength": {kind: kindMin, on: onISER, lo: 512, hi: maxLength,
		ours: func(m *Machine) uint64 { return uint64(m.limits.InitiatorRecvDataSegmentLength) },
		set:  func(m *Machine, v uint64) { m.params.MaxSendDataSegmentLength = uint32(v) }},
	"MaxAHSLength":                     {kind: kindMin, on: onISER, lo: 2, hi: 1 << 32, ours: constant(256), set: ignore},
	"TaggedBufferForSolicitedDataOnly": {kind: kindAnd, on: onISER, ours: constant(0), set: ignore},
	"iSERHelloRequired":                {kind: kindOr, on: onISER, ours: constant(0), set: ignore},
	// The initiator declares how many PDUs beyond the window it may take; we send none.
	"MaxOutstandingUnexpectedPDUs": {kind: kindDeclare, on: onISER, lo: 0, hi: 1<<32 - 1, set: ignore},
}

const (
	notUnderstood = "NotUnderstood"
	reject        = "Reject"
	irrelevant    = "Irrelevant"
)

// operational negotiates one key. answer is empty for a declaration that was taken.
func (m *Machine) operational(key string, value []byte) (answer string) {
	r, ok := rules[key]
	here := onTCP
	if m.transport == TransportISER {
		here = onISER
	}
	if !ok || r.on&here == 0 {
		return notUnderstood
	}
	switch r.kind {
	case kindIrrelevant:
		return irrelevant
	case kindNo:
		if _, err := pdu.ParseBool(value); err != nil {
			return reject
		}
		return "No"
	case kindDigest:
		return m.digest(r, value)
	case kindAnd, kindOr:
		b, err := pdu.ParseBool(value)
		if err != nil {
			return reject
		}
		v := flag(b) & r.ours(m)
		if r.kind == kindOr {
			v = flag(b) | r.ours(m)
		}
		r.set(m, v)
		if v != 0 {
			return "Yes"
		}
		return "No"
	}
	n, err := pdu.ParseNumber(value)
	if err != nil || n < r.lo || n > r.hi {
		return reject
	}
	switch r.kind {
	case kindMin:
		n = min(n, r.ours(m))
	case kindMax:
		n = max(n, r.ours(m))
	}
	r.set(m, n)
	if r.kind == kindDeclare {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// digest picks the first digest of the initiator's list that is possible here: CRC32C only on TCP in a normal session,
// so that a discovery session never has to do what it was not made for (known-faults B5).
func (m *Machine) digest(r rule, list []byte) string {
	crc := m.limits.Digests && m.transport == TransportTCP && m.names.SessionType == SessionNormal
	answer := reject
	pdu.EachValue(list, func(v []byte) bool {
		switch {
		case string(v) == "CRC32C" && crc:
			answer = "CRC32C"
		case string(v) == "None":
			answer = "None"
		default:
			return true
		}
		return false
	})
	if answer != reject {
		r.set(m, flag(answer == "CRC32C"))
	}
	return answer
}
