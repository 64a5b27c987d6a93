package login

import "iserd/iscsi/pdu"

// keyKind is how a value reads and whether it is answered.
type keyKind uint8

const (
	kindText     keyKind = iota // a declared text; never answered
	kindSegment                 // a declared number that bounds what may be sent to the peer; a bad one ends login
	kindNumber                  // a negotiated number
	kindBool                    // a negotiated boolean
	kindList                    // a list of the peer's choices, of which one is taken
	kindNote                    // a declared number, kept and not answered
	kindNoteBool                // a declared boolean, kept and not answered
	kindAuth                    // belongs to the authenticator
	kindMarkers                 // obsolete: markers are off
	kindRejected                // obsolete or out of place: always "Reject"
)

// combine is the result function of a negotiated key.
type combine uint8

const (
	combineMin combine = iota
	combineMax
	combineAnd
	combineOr
)

type stageSet uint8

const (
	inSecurity stageSet = 1 << iota
	inOperational
	inFullFeature

	inLogin = inSecurity | inOperational
)

type transportSet uint8

const (
	overTCP transportSet = 1 << iota
	overISER
)

func (t Transport) set() transportSet { return 1 << t }

// keyRow is all that is known about a key.
type keyRow struct {
	name   string
	kind   keyKind
	lo, hi uint64
	fn     combine
	stages stageSet
	// target: only a target sends it.
	target bool
	// normal: irrelevant in a discovery session.
	normal bool
	// only: irrelevant on other transports; 0 is no limit.
	only transportSet
	// maxValue is the longest value in bytes; 0 is 255.
	maxValue int
	// ours is this side's value of a number or boolean (0, 1).
	ours func(*negotiation) uint64
	// accepts tells which member of a list this side takes.
	accepts func(n *negotiation, member string) bool
	// set keeps the result.
	set  func(*Params, uint64)
	sets func(*Params, string)
}

func constant(v uint64) func(*negotiation) uint64 { return func(*negotiation) uint64 { return v } }

func truth(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

// keyTable has the keys of RFC 7143, of RFC 7145 (iSER), NodeArchitecture and iSCSIProtocolLevel.
var keyTable = []keyRow{
	// Names.
	{name: "InitiatorName", stages: inLogin, maxValue: pdu.MaxNameLength},
	{name: "InitiatorAlias", stages: inLogin | inFullFeature},
	{name: "TargetName", stages: inLogin, maxValue: pdu.MaxNameLength},
	{name: "SessionType", stages: inLogin},
	{name: "NodeArchitecture", stages: inLogin},
	{name: "TargetAlias", kind: kindRejected, target: true},
	{name: "TargetAddress", kind: kindRejected, target: true},
	{name: "TargetPortalGroupTag", kind: kindRejected, target: true},
	{name: "SendTargets", kind: kindRejected, stages: inFullFeature},

	// Security.
	{name: "AuthMethod", kind: kindAuth, stages: inSecurity},
	{name: "CHAP_A", kind: kindAuth, stages: inSecurity},
	{name: "CHAP_I", kind: kindAuth, stages: inSecurity},
	{name: "CHAP_C", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "CHAP_N", kind: kindAuth, stages: inSecurity},
	{name: "CHAP_R", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_U", kind: kindAuth, stages: inSecurity},
	{name: "SRP_GROUP", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_A", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_B", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_M", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_HM", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "SRP_s", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "KRB_AP_REQ", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},
	{name: "KRB_AP_REP", kind: kindAuth, stages: inSecurity, maxValue: pdu.MaxBigValue},

	// Segments and bursts.
	{name: "MaxRecvDataSegmentLength", kind: kindSegment, lo: minSegment, hi: maxSegment, stages: inOperational | inFullFeature,
		set: func(p *Params, v uint64) { p.MaxSendDataSegmentLength = uint32(v) }},
	{name: "MaxBurstLength", kind: kindNumber, lo: minSegment, hi: maxSegment, stages: inOperational, normal: true,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.MaxBurstLength) },
		set:  func(p *Params, v uint64) { p.MaxBurstLength = uint32(v) }},
	{name: "FirstBurstLength", kind: kindNumber, lo: minSegment, hi: maxSegment, stages: inOperational, normal: true,
		// A first burst is a part of a burst, whatever the limits say.
		ours: func(n *negotiation) uint64 { return uint64(min(n.limits.FirstBurstLength, n.params.MaxBurstLength)) },
		set:  func(p *Params, v uint64) { p.FirstBurstLength = uint32(v) }},
	{name: "MaxOutstandingR2T", kind: kindNumber, lo: 1, hi: maxR2T, stages: inOperational, normal: true,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.MaxOutstandingR2T) },
		set:  func(p *Params, v uint64) { p.MaxOutstandingR2T = uint32(v) }},
	{name: "InitialR2T", kind: kindBool, fn: combineOr, stages: inOperational, normal: true,
		ours: func(n *negotiation) uint64 { return truth(n.limits.InitialR2T || n.params.Transport == TransportISER) },
		set:  func(p *Params, v uint64) { p.InitialR2T = v != 0 }},
	{name: "ImmediateData", kind: kindBool, fn: combineAnd, stages: inOperational, normal: true,
		ours: func(n *negotiation) uint64 { return truth(n.limits.ImmediateData) },
		set:  func(p *Params, v uint64) { p.ImmediateData = v != 0 }},
	{name: "DataPDUInOrder", kind: kindBool, fn: combineOr, stages: inOperational, normal: true, ours: constant(1),
		set: func(p *Params, v uint64) { p.DataPDUInOrder = v != 0 }},
	{name: "DataSequenceInOrder", kind: kindBool, fn: combineOr, stages: inOperational, normal: true, ours: constant(1),
		set: func(p *Params, v uint64) { p.DataSequenceInOrder = v != 0 }},

	// The session.
	{name: "MaxConnections", kind: kindNumber, lo: 1, hi: 65535, stages: inOperational, normal: true, ours: constant(1),
		set: func(p *Params, v uint64) { p.MaxConnections = uint32(v) }},
	{name: "ErrorRecoveryLevel", kind: kindNumber, lo: 0, hi: 2, stages: inOperational, ours: constant(0),
		set: func(p *Params, v uint64) { p.ErrorRecoveryLevel = uint32(v) }},
	{name: "DefaultTime2Wait", kind: kindNumber, hi: maxTime, fn: combineMax, stages: inOperational,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.DefaultTime2Wait) },
		set:  func(p *Params, v uint64) { p.DefaultTime2Wait = uint32(v) }},
	{name: "DefaultTime2Retain", kind: kindNumber, hi: maxTime, stages: inOperational,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.DefaultTime2Retain) },
		set:  func(p *Params, v uint64) { p.DefaultTime2Retain = uint32(v) }},
	{name: "TaskReporting", kind: kindList, stages: inOperational, normal: true,
		accepts: func(_ *negotiation, m string) bool { return m == "RFC3720" }},
	{name: "iSCSIProtocolLevel", kind: kindNumber, hi: 31, stages: inOperational, normal: true, ours: constant(1),
		set: func(p *Params, v uint64) { p.ProtocolLevel = uint32(v) }},

	// Digests.
	{name: "HeaderDigest", kind: kindList, stages: inOperational,
		accepts: (*negotiation).digest, sets: func(p *Params, s string) { p.HeaderDigest = s == digestCRC32C }},
	{name: "DataDigest", kind: kindList, stages: inOperational,
		accepts: (*negotiation).digest, sets: func(p *Params, s string) { p.DataDigest = s == digestCRC32C }},

	// iSER.
	{name: "RDMAExtensions", kind: kindBool, fn: combineAnd, stages: inOperational, normal: true,
		ours: func(n *negotiation) uint64 { return truth(n.params.Transport == TransportISER) },
		set:  func(p *Params, v uint64) { p.RDMAExtensions = v != 0 }},
	{name: "InitiatorRecvDataSegmentLength", kind: kindNumber, lo: minSegment, hi: maxSegment, stages: inOperational, normal: true, only: overISER,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.InitiatorRecvDataSegmentLength) },
		set:  func(p *Params, v uint64) { p.InitiatorRecvDataSegmentLength = uint32(v) }},
	{name: "TargetRecvDataSegmentLength", kind: kindNumber, lo: minSegment, hi: maxSegment, stages: inOperational, normal: true, only: overISER,
		ours: func(n *negotiation) uint64 { return uint64(n.limits.TargetRecvDataSegmentLength) },
		set:  func(p *Params, v uint64) { p.TargetRecvDataSegmentLength = uint32(v) }},
	{name: "MaxOutstandingUnexpectedPDUs", kind: kindNote, hi: 1<<32 - 1, stages: inOperational, normal: true, only: overISER,
		set: func(p *Params, v uint64) { p.MaxOutstandingUnexpectedPDUs = uint32(v) }},
	{name: "MaxAHSLength", kind: kindNote, hi: 1<<32 - 1, stages: inOperational, normal: true, only: overISER,
		set: func(p *Params, v uint64) { p.MaxAHSLength = uint32(v) }},
	{name: "TaggedBufferForSolicitedDataOnly", kind: kindNoteBool, stages: inOperational, normal: true, only: overISER,
		set: func(p *Params, v uint64) { p.TaggedBufferForSolicitedDataOnly = v != 0 }},
	{name: "iSERHelloRequired", kind: kindNoteBool, stages: inOperational, normal: true, only: overISER,
		set: func(p *Params, v uint64) { p.ISERHelloRequired = v != 0 }},

	// Obsolete in RFC 7143, which lets a target answer No or Reject to the first two, Reject to the others, and never
	// NotUnderstood. No is what open-iscsi expects.
	{name: "IFMarker", kind: kindMarkers, stages: inOperational},
	{name: "OFMarker", kind: kindMarkers, stages: inOperational},
	{name: "IFMarkInt", kind: kindRejected, stages: inOperational},
	{name: "OFMarkInt", kind: kindRejected, stages: inOperational},
}

var keyIndex = func() map[string]*keyRow {
	m := make(map[string]*keyRow, len(keyTable))
	for i := range keyTable {
		m[keyTable[i].name] = &keyTable[i]
	}
	return m
}()

// The values that are words of the negotiation itself.
const (
	notUnderstood = "NotUnderstood"
	irrelevant    = "Irrelevant"
	reject        = "Reject"

	none         = "None"
	digestCRC32C = "CRC32C"
)

func isAnswerWord(v string) bool { return v == notUnderstood || v == irrelevant || v == reject }
