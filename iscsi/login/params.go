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
		return "tcp"
	case TransportISER:
		return "iser"
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

// Digest is a digest algorithm; in [Limits], a set of them.
type Digest uint8

const (
	DigestNone   Digest = 1 << iota // no digest
	DigestCRC32C                    // CRC32C
)

func (d Digest) String() string {
	switch d {
	case 0, DigestNone:
		return "None"
	case DigestCRC32C:
		return "CRC32C"
	case DigestNone | DigestCRC32C:
		return "CRC32C,None"
	}
	return fmt.Sprintf("digest %d", uint8(d))
}

// Bounds that RFC 7143 and RFC 7145 set on the keys.
const (
	minSegment = 512
	maxSegment = 1<<24 - 1
	maxTime    = 3600
	maxR2T     = 65535

	// DefaultSegment is every RecvDataSegmentLength that was not negotiated, and the limit of a login PDU.
	DefaultSegment    = 8192
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
	// HeaderDigest and DataDigest are the sets that this side agrees to over TCP in a normal session; elsewhere None.
	HeaderDigest, DataDigest Digest
}

// DefaultLimits is what a target uses if it was not told otherwise.
func DefaultLimits() Limits {
	return Limits{
		// 256 KiB is what open-iscsi declares; larger segments no longer help.
		MaxRecvDataSegmentLength:       262144,
		InitiatorRecvDataSegmentLength: 262144,
		// A receive slot over iSER holds 8 KiB of immediate data.
		TargetRecvDataSegmentLength: DefaultSegment,
		MaxBurstLength:              1 << 20,
		// The default of the RFC: unsolicited data needs memory before anything was asked.
		FirstBurstLength:   defaultFirstBurst,
		MaxOutstandingR2T:  8,
		DefaultTime2Wait:   2,
		DefaultTime2Retain: 20,
		ImmediateData:      true,
		HeaderDigest:       DigestNone | DigestCRC32C,
		DataDigest:         DigestNone | DigestCRC32C,
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
	const all = DigestNone | DigestCRC32C
	if l.HeaderDigest&^all != 0 || l.DataDigest&^all != 0 {
		errs = append(errs, errors.New("login: unknown digest"))
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
	HeaderDigest, DataDigest                                    Digest // DigestNone or DigestCRC32C
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
		MaxSendDataSegmentLength:       DefaultSegment,
		MaxRecvDataSegmentLength:       DefaultSegment,
		InitiatorRecvDataSegmentLength: DefaultSegment,
		TargetRecvDataSegmentLength:    DefaultSegment,
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
		HeaderDigest:                   DigestNone,
		DataDigest:                     DigestNone,
		MaxAHSLength:                   256,
		ProtocolLevel:                  1,
	}
}
