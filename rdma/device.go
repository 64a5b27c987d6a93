package rdma

import "net/netip"

// LinkLayer is the link under a port.
type LinkLayer string

const (
	LinkEthernet   LinkLayer = "Ethernet"
	LinkInfiniBand LinkLayer = "InfiniBand"
	LinkUnknown    LinkLayer = "unknown"
)

// DeviceInfo names a device for people.
type DeviceInfo struct {
	Name      string // as the kernel calls it: mlx5_0, rxe0
	Driver    string // transport in words: "RoCE", "InfiniBand", "iWARP", "soft-RoCE"
	GUID      string
	VendorID  uint32
	PartID    uint32
	Firmware  string
	NUMANode  int // -1 when unknown
	Ports     []PortInfo
	Transport Transport
}

// Transport is the wire protocol family of a device.
type Transport uint8

const (
	TransportUnknown Transport = iota
	TransportIB                // InfiniBand and RoCE
	TransportIWARP
)

func (t Transport) String() string {
	switch t {
	case TransportIB:
		return "IB"
	case TransportIWARP:
		return "iWARP"
	}
	return "unknown"
}

// PortInfo is one port of a device.
type PortInfo struct {
	Number    int
	State     string // "ACTIVE", "DOWN", …
	LinkLayer LinkLayer
	NetDevs   []string
	Addrs     []netip.Addr // addresses of the netdevs
	GIDs      []string
	MTU       int // active path MTU in bytes
	Speed     string
}

// DeviceAttr are the limits of a device that callers must obey.
type DeviceAttr struct {
	MaxQP, MaxQPWR, MaxCQ, MaxCQE, MaxMR, MaxPD int
	MaxSGE, MaxSGERead                          int
	MaxQPRDAtom, MaxQPInitRDAtom                int
	MaxMRSize                                   uint64
	MaxInline                                   int // 0 when only creating a queue pair tells
	NumCompVectors                              int
	MaxMsgSize                                  uint32
}

// AsyncEventType names an asynchronous event of a device.
type AsyncEventType string

const (
	AsyncDeviceFatal   AsyncEventType = "DEVICE_FATAL"
	AsyncDeviceRemoved AsyncEventType = "DEVICE_REMOVED"
	AsyncPortActive    AsyncEventType = "PORT_ACTIVE"
	AsyncPortErr       AsyncEventType = "PORT_ERR"
	AsyncCQErr         AsyncEventType = "CQ_ERR"
	AsyncQPFatal       AsyncEventType = "QP_FATAL"
	AsyncQPReqErr      AsyncEventType = "QP_REQ_ERR"
	AsyncQPAccessErr   AsyncEventType = "QP_ACCESS_ERR"
	AsyncQPLastWQE     AsyncEventType = "QP_LAST_WQE_REACHED"
	AsyncCommEst       AsyncEventType = "COMM_EST"
	AsyncPathMig       AsyncEventType = "PATH_MIG"
	AsyncGIDChange     AsyncEventType = "GID_CHANGE"
	AsyncPKeyChange    AsyncEventType = "PKEY_CHANGE"
	AsyncLIDChange     AsyncEventType = "LID_CHANGE"
	AsyncSMChange      AsyncEventType = "SM_CHANGE"
	AsyncClientRereg   AsyncEventType = "CLIENT_REREGISTER"
	AsyncSRQErr        AsyncEventType = "SRQ_ERR"
	AsyncSRQLimit      AsyncEventType = "SRQ_LIMIT_REACHED"
	AsyncUnknown       AsyncEventType = "UNKNOWN"
	AsyncEventsDropped AsyncEventType = "EVENTS_DROPPED"
)

// AsyncEvent is an asynchronous event. QPNum is set for events of a queue pair, Port for those of a port.
type AsyncEvent struct {
	Type  AsyncEventType
	QPNum uint32
	Port  int
}
