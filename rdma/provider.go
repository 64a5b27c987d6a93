package rdma

import (
	"context"
	"net/netip"
	"time"
)

// Provider is one way to reach RDMA devices.
type Provider interface {
	// Name is "verbs", "softroce" or "rdmatest".
	Name() string
	// Devices opens every usable device and returns them, the same object for the same device each time. A device that
	// went away is left out; one that came since is added. [ErrNoDevice] when there is none, an error that says what
	// the build or machine lacks when the provider cannot work at all.
	Devices() ([]Device, error)
	// NewEventChannel makes a channel for connection events.
	NewEventChannel() (EventChannel, error)
	Close() error
}

// Counter is one number that a provider counts, since it was opened.
type Counter struct {
	Name  string // in the style of "bad_icrc"
	Value uint64
}

// Counted is a provider that counts what its transport does. Reading the counters stops nothing.
type Counted interface {
	Counters() []Counter
}

// Device is an opened RDMA device.
type Device interface {
	Info() DeviceInfo
	Attr() DeviceAttr
	AllocPD() (PD, error)
	NewCompletionChannel() (CompletionChannel, error)
	// Post hands over the work of several queue pairs of this device, in order: for each element its receives, then its
	// sends, each as one linked list. It fills Posted and Err of each element; an error of one element does not stop
	// the others. All slices are free for reuse on return.
	Post(posts []QPPost)
	// Events delivers the device's asynchronous events; the provider acknowledges them. The channel is never closed
	// before the provider is. When nobody reads, old events are dropped, never the provider blocked.
	Events() <-chan AsyncEvent
	// Removed is true once the device is known to be gone.
	Removed() bool
}

// PD is a protection domain.
type PD interface {
	Device() Device
	// RegMR registers buf, which must lie outside the Go heap and stay mapped until the region is closed. ENOMEM comes
	// back as an [OpError] whose Hint names RLIMIT_MEMLOCK and the remedy.
	RegMR(buf []byte, access Access) (MR, error)
	Close() error
}

// Access are the rights that a memory region grants. Local read is always granted.
type Access uint32

const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteWrite
	AccessRemoteRead
)

// MR is a registered memory region.
type MR interface {
	Bytes() []byte
	// Addr is the address of the first byte, as [SGE.Addr] and a remote peer's RemoteAddr use it.
	Addr() uint64
	LKey() uint32
	RKey() uint32
	// Close deregisters. The memory is then the owner's again; requests in flight that use it fail.
	Close() error
}

// CompletionChannel lets one goroutine sleep until one of its completion queues has something to say.
type CompletionChannel interface {
	// CreateCQ makes a completion queue with at least depth entries that reports to this channel. Depth above the
	// device's limit gives [ErrTooBig]. vector is a hint for the interrupt, taken modulo [DeviceAttr.NumCompVectors].
	CreateCQ(depth, vector int) (CQ, error)
	// Wait blocks the goroutine, not a thread, until an armed queue got a completion, Wake was called since the last
	// Wait returned, or the timeout has passed (negative: none). Events are consumed and acknowledged before it returns.
	// It returns the number of events consumed. ErrClosed after Close.
	Wait(timeout time.Duration) (events int, err error)
	// Wake makes the current or the next Wait return. Any goroutine may call it; calls may merge.
	Wake()
	// Close wakes the waiter. The queues must have been closed before.
	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll reaps up to len(wcs) completions without blocking.
	Poll(wcs []WC) (int, error)
	// Arm asks for one event on the channel at the next completion. After arming, poll once more before waiting.
	Arm() error
	// Depth is the number of entries that the queue really has.
	Depth() int
	// Resize changes the depth; [ErrUnsupported] where the provider cannot.
	Resize(depth int) error
	Close() error
}

// QPConfig asks for a queue pair. The provider refuses what is above the device's limits with [ErrTooBig]; it never
// shrinks a request silently, except MaxInline, where [QP.Caps] says what was granted.
type QPConfig struct {
	SendCQ, RecvCQ             CQ
	MaxSendWR, MaxRecvWR       int
	MaxSendSGE, MaxRecvSGE     int
	MaxInline                  int
	SignalAll                  bool
	UserContext                uint64 // reported by nobody; for the caller's own use
	MaxRDRead, MaxDestRDAtomic int    // hints to providers that need them at creation; 0 = as the ConnParam says
}

// QPCaps is what a queue pair was granted.
type QPCaps struct {
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
}

// QP is a reliable connected queue pair.
type QP interface {
	Num() uint32
	Caps() QPCaps
	// SetError moves the queue pair to the error state: everything posted completes with [StatusFlushed].
	SetError() error
	// SetMinRNRTimer sets the code (0..31, IBTA 9.7.5.2.8) of the delay that our RNR NAKs ask for. The connection
	// manager leaves 0, which means 655 ms. Legal once the connection is established.
	SetMinRNRTimer(code uint8) error
	// Close destroys the queue pair. Completions still in the queue are for the caller to ignore, by slot.
	Close() error
}

// EventChannel makes listeners and connections and delivers their events.
type EventChannel interface {
	// Listen binds and listens. An unspecified address listens on every device, IPv4 and IPv6 each on its own. Port 0
	// picks a free one. EADDRINUSE and EADDRNOTAVAIL come back as [OpError].
	Listen(addr netip.AddrPort, backlog int) (Listener, error)
	// Resolve makes a connection for the active side and resolves address and route, so that Device and CreateQP work.
	// It must be called by another goroutine than the one in Next, which has to run. local may be the zero value.
	Resolve(ctx context.Context, local netip.AddrPort, remote netip.AddrPort) (Conn, error)
	// Next blocks the goroutine until there is an event; the provider has already acknowledged it. ErrClosed at the end.
	Next() (Event, error)
	// Close ends Next. Listeners and connections must be closed before or after; both orders are legal.
	Close() error
}

// Listener is a listening identifier.
type Listener interface {
	Addr() netip.AddrPort
	// Device is nil for a wildcard listener.
	Device() Device
	Close() error
}

// ConnParam is what connect and accept exchange.
type ConnParam struct {
	PrivateData []byte
	// ResponderResources is how many RDMA READs the peer may have outstanding at us; InitiatorDepth how many we may have
	// at the peer. In a received event both are seen from our side already, as librdmacm swaps them.
	ResponderResources, InitiatorDepth uint8
	RetryCount, RNRRetryCount          uint8
	FlowControl                        bool
	QPNum                              uint32
}

// Conn is a connection identifier (an rdma_cm_id).
type Conn interface {
	// Device the connection runs on; nil before it is known.
	Device() Device
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	CreateQP(pd PD, cfg QPConfig) (QP, error)
	Accept(p ConnParam) error
	// Reject refuses a connect request.
	Reject(privateData []byte) error
	Connect(p ConnParam) error
	// Disconnect asks for the end; the queue pair goes to error. Repeated calls and calls on a dead connection return nil.
	Disconnect() error
	// NotifyEstablished tells the connection manager that data came before its own event did (rdma_notify COMM_EST).
	NotifyEstablished() error
	// Close destroys the identifier; its queue pair must be closed before. Events of it that are still queued are
	// dropped by the provider.
	Close() error
}

// EventType names a connection event as librdmacm does.
type EventType uint8

const (
	EventNone EventType = iota
	EventConnectRequest
	EventConnectResponse
	EventConnectError
	EventUnreachable
	EventRejected
	EventEstablished
	EventDisconnected
	EventDeviceRemoval
	EventAddrChange
	EventTimewaitExit
	EventAddrResolved
	EventAddrError
	EventRouteResolved
	EventRouteError
)

var eventNames = [...]string{"NONE", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED",
	"DISCONNECTED", "DEVICE_REMOVAL", "ADDR_CHANGE", "TIMEWAIT_EXIT", "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR"}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return "EVENT(?)"
}

// Event is a connection event. Conn is set for events of a connection, Listener for events of a listener (and, beside
// Conn, for a connect request). PrivateData is the receiver's to keep; on InfiniBand and RoCE it is padded with zeros.
type Event struct {
	Type     EventType
	Status   int
	Listener Listener
	Conn     Conn
	Param    ConnParam
}
