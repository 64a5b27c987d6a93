package rdmatest

import (
	"net/netip"
	"time"

	"iserd/rdma"
)

// Config is how a fabric behaves. The zero value is usable.
type Config struct {
	// IWARP makes it behave as iWARP: a peer's disconnect flushes our queue pair, private data has its true length,
	// memory that RDMA READ puts data in must allow remote writes.
	IWARP bool
	// NoFlushAfterError leaves receives that are posted to a queue pair in error unanswered, as soft-RoCE does.
	NoFlushAfterError bool
	// RetryTimeout is when a request that nobody acknowledges fails with RETRY_EXC_ERR; default 30 ms.
	RetryTimeout time.Duration
	// MaxRNRDelay bounds the time between two tries after RNR, which the min RNR timer of the peer's queue pair says;
	// default 2 ms.
	MaxRNRDelay time.Duration
	// CMTimeout is when the connection manager gives up on an answer that does not come; default 250 ms.
	CMTimeout time.Duration
	// Timewait is the time from the end of a connection to TIMEWAIT_EXIT; default 5 ms.
	Timewait time.Duration
	// Misuse, if not nil, is told of what a correct user never does although a device may let it pass: more RDMA READs
	// outstanding than the peer granted, a completion queue overrun, RNR, posting after an error. The fabric's lock is
	// held: it must not call anything of this package. See [FailOnMisuse].
	Misuse func(Misuse, string)
}

// Misuse is a kind of wrong use.
type Misuse string

const (
	MisuseReadDepth  Misuse = "RDMA READs above the depth that the peer granted"
	MisuseOverrun    Misuse = "completion queue overrun"
	MisuseRNR        Misuse = "receiver not ready"
	MisuseQueueFull  Misuse = "post to a full queue"
	MisuseAfterError Misuse = "post to a queue pair in error"
	MisuseWrongState Misuse = "call in the wrong state"
)

// FailOnMisuse is a [Config.Misuse] that fails a test, except for the kinds listed.
func FailOnMisuse(t interface{ Errorf(string, ...any) }, except ...Misuse) func(Misuse, string) {
	return func(m Misuse, what string) {
		for _, e := range except {
			if e == m {
				return
			}
		}
		t.Errorf("rdmatest: %s: %s", m, what)
	}
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	set(&c.RetryTimeout, 30*time.Millisecond)
	set(&c.MaxRNRDelay, 2*time.Millisecond)
	set(&c.CMTimeout, 250*time.Millisecond)
	set(&c.Timewait, 5*time.Millisecond)
	return c
}

// DeviceConfig is a device to make.
type DeviceConfig struct {
	Name  string // default mem0, mem1, … by provider
	Addrs []netip.Addr
	// Attr changes the limits that the device reports and keeps; see [DefaultAttr]. MaxInline 0 means no inline data.
	Attr     func(*rdma.DeviceAttr)
	NUMANode int
}

// DefaultAttr are a device's limits unless changed: enough for any test, small enough to be met.
func DefaultAttr() rdma.DeviceAttr {
	return rdma.DeviceAttr{MaxQP: 1 << 16, MaxQPWR: 16384, MaxCQ: 1 << 16, MaxCQE: 1 << 20, MaxMR: 1 << 20, MaxPD: 1 << 16, MaxSGE: 16,
		MaxSGERead: 16, MaxQPRDAtom: 16, MaxQPInitRDAtom: 16, MaxMRSize: 1 << 40, MaxInline: 512, NumCompVectors: 4, MaxMsgSize: 1 << 30}
}

// The limits of private data of the connection manager for the TCP port space, in bytes.
const (
	reqPrivate   = 56
	repPrivate   = 196
	rejPrivate   = 148
	privateIWARP = 255
)
