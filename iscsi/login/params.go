package login

import "fmt"

// Transport is what carries the connection.
type Transport uint8

const (
	TransportTCP Transport = iota
	TransportISER
)

func (t Transport) String() string {
	if t == TransportISER {
		return "iSER"
	}
	return "TCP"
}

// SessionType is what the session is for.
type SessionType uint8

const (
	SessionNormal SessionType = iota
	SessionDiscovery
)

func (t SessionType) String() string {
	if t == SessionDiscovery {
		return "Discovery"
	}
	return "Normal"
}

// Limits are our side of the negotiation. Lengths are bytes.
type Limits struct {
	MaxRecvDataSegmentLength       uint32 // what we take in one PDU over TCP
	MaxBurstLength                 uint32
	FirstBurstLength               uint32
	MaxOutstandingR2T              uint32
	InitialR2T                     bool // what we want over TCP; over iSER it is always Yes
	ImmediateData                  bool
	Digests                        bool // CRC32C is supported
	DefaultTime2Wait               uint32
	DefaultTime2Retain             uint32
	TargetRecvDataSegmentLength    uint32 // what we take in one control PDU over iSER
	InitiatorRecvDataSegmentLength uint32
}

// DefaultLimits fit Linux, ESXi and Windows initiators.
func DefaultLimits() Limits {
	return Limits{
		MaxRecvDataSegmentLength: 262144, MaxBurstLength: 16776192, FirstBurstLength: 262144, MaxOutstandingR2T: 8,
		ImmediateData: true, Digests: true, DefaultTime2Wait: 2, DefaultTime2Retain: 0,
		TargetRecvDataSegmentLength: 8192, InitiatorRecvDataSegmentLength: 262144,
	}
}

// Validate names what is out of the ranges of RFC 7143.
func (l Limits) Validate() error {
	length := func(name string, v uint32) error {
		if v < 512 || v > 1<<24-1 {
			return fmt.Errorf("%s: %d: want 512 to 16777215", name, v)
		}
		return nil
	}
	for name, v := range map[string]uint32{"MaxRecvDataSegmentLength": l.MaxRecvDataSegmentLength, "MaxBurstLength": l.MaxBurstLength,
		"FirstBurstLength": l.FirstBurstLength, "TargetRecvDataSegmentLength": l.TargetRecvDataSegmentLength,
		"InitiatorRecvDataSegmentLength": l.InitiatorRecvDataSegmentLength} {
		if err := length(name, v); err != nil {
			return err
		}
	}
	if l.FirstBurstLength > l.MaxBurstLength {
		return fmt.Errorf("FirstBurstLength %d is above MaxBurstLength %d", l.FirstBurstLength, l.MaxBurstLength)
	}
	if l.MaxOutstandingR2T < 1 || l.MaxOutstandingR2T > 65535 {
		return fmt.Errorf("MaxOutstandingR2T: %d: want 1 to 65535", l.MaxOutstandingR2T)
	}
	if l.DefaultTime2Wait > 3600 || l.DefaultTime2Retain > 3600 {
		return fmt.Errorf("DefaultTime2Wait and DefaultTime2Retain: want up to 3600")
	}
	return nil
}

// Params are what was negotiated.
type Params struct {
	HeaderDigest, DataDigest bool // CRC32C
	// MaxSendDataSegmentLength is the most data that the initiator takes in one PDU, MaxRecvDataSegmentLength what we
	// take. Over iSER they are InitiatorRecvDataSegmentLength and TargetRecvDataSegmentLength.
	MaxSendDataSegmentLength, MaxRecvDataSegmentLength uint32
	MaxBurstLength, FirstBurstLength                   uint32
	MaxOutstandingR2T                                  uint32
	InitialR2T, ImmediateData                          bool
	DefaultTime2Wait, DefaultTime2Retain               uint32
	RDMAExtensions                                     bool
}

// defaultParams are the values of keys that nobody mentions (RFC 7143, RFC 7145).
func defaultParams(t Transport) Params {
	return Params{MaxSendDataSegmentLength: 8192, MaxRecvDataSegmentLength: 8192, MaxBurstLength: 262144, FirstBurstLength: 65536,
		MaxOutstandingR2T: 1, InitialR2T: true, ImmediateData: true, DefaultTime2Wait: 2, DefaultTime2Retain: 20}
}

// Names identify who wants to log in where.
type Names struct {
	InitiatorName, InitiatorAlias, TargetName string
	SessionType                               SessionType
	ISID                                      [6]byte
	TSIH, CID                                 uint16
}

// Decision is what the engine says of Names, once they are known.
type Decision struct {
	// Status other than success ends the login; Cause then says why, for the log.
	Status Status
	Cause  string
	// TargetPortalGroupTag and TargetAlias are told in the first response of a normal session.
	TargetPortalGroupTag uint16
	TargetAlias          string
	// RedirectAddress goes with a status of class 1.
	RedirectAddress string
	// Authenticator demands authentication; nil lets the initiator in without.
	Authenticator Authenticator
}

// KeyValue is one pair of text.
type KeyValue struct{ Key, Value string }

// Authenticator carries one authentication of an initiator. It is used by one login only.
type Authenticator interface {
	// Methods are the AuthMethod values that will do, best first. Without "None" among them an initiator that offers
	// nothing else is refused.
	Methods() []string
	// Step takes the keys of one request that are not the login's own and returns the answer. done ends the
	// authentication; a status other than success refuses the login.
	Step(method string, keys []KeyValue) (answer []KeyValue, done bool, status Status, cause string)
}
