package login

import (
	"errors"
	"fmt"
)

// Transport is what carries the connection.
type Transport uint8

const (
	TransportTCP Transport = iota
	TransportISER
)

func (t Transport) String() string {
	switch t {
	case TransportTCP:
		return "TCP"
	case TransportISER:
		return "iSER"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// SessionType is the value of the key of that name.
type SessionType uint8

const (
	SessionNormal SessionType = iota
	SessionDiscovery
)

func (t SessionType) String() string {
	switch t {
	case SessionNormal:
		return "Normal"
	case SessionDiscovery:
		return "Discovery"
	}
	return fmt.Sprintf("session type %d", uint8(t))
}

// Bounds that RFC 7143 and RFC 7145 set on the keys.
const (
	minSegment = 512
	maxSegment = 1<<24 - 1
	maxTime    = 3600
	maxR2T     = 65535

	// MaxSegment is the most that a login PDU's data segment may hold, and every RecvDataSegmentLength that was not
	// negotiated.
	MaxSegment        = 8192
	defaultMaxBurst   = 262144
	defaultFirstBurst = 65536
)

// Limits are a side's own values, which negotiation combines with the peer's. A target's MaxConnections is 1 and its
// ErrorRecoveryLevel 0: the engine has no more.
type Limits struct {
	// MaxRecvDataSegmentLength is what this side declares over TCP.
	MaxRecvDataSegmentLength uint32
	// InitiatorRecvDataSegmentLength and TargetRecvDataSegmentLength bound the data segments of control-type PDUs over
	// iSER, towards the initiator and towards the target.
	InitiatorRecvDataSegmentLength, TargetRecvDataSegmentLength uint32
	// MaxBurstLength and FirstBurstLength are in bytes; the first must not be less than the second.
	MaxBurstLength, FirstBurstLength uint32
	MaxOutstandingR2T                uint32
	// DefaultTime2Wait and DefaultTime2Retain are in seconds.
	DefaultTime2Wait, DefaultTime2Retain uint32
	// InitialR2T set forbids unsolicited Data-Out PDUs. Over iSER a target always does: libiscsi would send them
	// without data.
	InitialR2T    bool
	ImmediateData bool
	// Digests lets CRC32C be agreed on over TCP, in a normal session. None is always possible.
	Digests bool
}

// DefaultLimits is what a target uses if it was not told otherwise.
func DefaultLimits() Limits {
	return Limits{
		// 256 KiB is what open-iscsi declares; larger segments no longer help.
		MaxRecvDataSegmentLength:       262144,
		InitiatorRecvDataSegmentLength: 262144,
		// A receive slot over iSER holds 8 KiB of immediate data.
		TargetRecvDataSegmentLength: MaxSegment,
		// What open-iscsi offers.
		MaxBurstLength:    16776192,
		FirstBurstLength:  262144,
		MaxOutstandingR2T: 8,
		DefaultTime2Wait:  2,
		// Nothing is retained at error recovery level 0.
		DefaultTime2Retain: 0,
		ImmediateData:      true,
		Digests:            true,
	}
}

// Validate says what is wrong with l.
func (l Limits) Validate() error {
	var errs []error
	check := func(name string, v, lo, hi uint32) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("login: %s is %d, want %d to %d", name, v, lo, hi))
		}
	}
	check("MaxRecvDataSegmentLength", l.MaxRecvDataSegmentLength, minSegment, maxSegment)
	check("InitiatorRecvDataSegmentLength", l.InitiatorRecvDataSegmentLength, minSegment, maxSegment)
	check("TargetRecvDataSegmentLength", l.TargetRecvDataSegmentLength, minSegment, maxSegment)
	check("MaxBurstLength", l.MaxBurstLength, minSegment, maxSegment)
	check("FirstBurstLength", l.FirstBurstLength, minSegment, maxSegment)
	check("MaxOutstandingR2T", l.MaxOutstandingR2T, 1, maxR2T)
	check("DefaultTime2Wait", l.DefaultTime2Wait, 0, maxTime)
	check("DefaultTime2Retain", l.DefaultTime2Retain, 0, maxTime)
	if l.FirstBurstLength > l.MaxBurstLength {
		errs = append(errs, fmt.Errorf("login: FirstBurstLength %d is more than MaxBurstLength %d", l.FirstBurstLength, l.MaxBurstLength))
	}
	return errors.Join(errs...)
}

// Params is what login negotiated. Keys that were not negotiated have the RFC's defaults.
type Params struct {
	Transport   Transport
	SessionType SessionType
	// MaxSendDataSegmentLength is the longest data segment that this side may send, MaxRecvDataSegmentLength the longest
	// that it must take: over TCP what the two sides declared, over iSER (normal sessions) the RecvDataSegmentLength
	// keys below.
	MaxSendDataSegmentLength, MaxRecvDataSegmentLength uint32
	// InitiatorRecvDataSegmentLength and TargetRecvDataSegmentLength count over iSER only.
	InitiatorRecvDataSegmentLength, TargetRecvDataSegmentLength uint32
	MaxBurstLength, FirstBurstLength                            uint32 // FirstBurstLength is never more
	MaxOutstandingR2T                                           uint32
	MaxConnections                                              uint32
	ErrorRecoveryLevel                                          uint32
	DefaultTime2Wait, DefaultTime2Retain                        uint32 // seconds
	InitialR2T, ImmediateData                                   bool
	DataPDUInOrder, DataSequenceInOrder                         bool
	HeaderDigest, DataDigest                                    bool // CRC32C
	RDMAExtensions                                              bool
	// What the peer declared over iSER: 0 unexpected PDUs means no limit was declared.
	MaxOutstandingUnexpectedPDUs     uint32
	MaxAHSLength                     uint32
	TaggedBufferForSolicitedDataOnly bool
	ISERHelloRequired                bool
	ProtocolLevel                    uint32 // iSCSIProtocolLevel of RFC 7144
}

func defaultParams(t Transport) Params {
	return Params{
		Transport:                      t,
		MaxSendDataSegmentLength:       MaxSegment,
		MaxRecvDataSegmentLength:       MaxSegment,
		InitiatorRecvDataSegmentLength: MaxSegment,
		TargetRecvDataSegmentLength:    MaxSegment,
		MaxBurstLength:                 defaultMaxBurst,
		FirstBurstLength:               defaultFirstBurst,
		MaxOutstandingR2T:              1,
		MaxConnections:                 1,
		DefaultTime2Wait:               2,
		DefaultTime2Retain:             20,
		InitialR2T:                     true,
		ImmediateData:                  true,
		DataPDUInOrder:                 true,
		DataSequenceInOrder:            true,
		MaxAHSLength:                   256,
		ProtocolLevel:                  1,
	}
}
