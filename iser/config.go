package iser

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"iserd/rdma"
)

// CQMode says how many completion queues share the work of a device.
type CQMode uint8

const (
	// CQPerCore is one completion queue per shard, that is per core: the design, and the default.
	CQPerCore CQMode = iota
	// CQOne is one completion queue, and so one shard, for the whole device.
	CQOne
	// CQPerTarget is one completion queue per target.
	CQPerTarget
)

func (m CQMode) String() string {
	switch m {
	case CQPerCore:
		return "core"
	case CQOne:
		return "one"
	case CQPerTarget:
		return "target"
	}
	return "unknown"
}

// ParseCQMode reads the names that String gives.
func ParseCQMode(s string) (CQMode, error) {
	for _, m := range []CQMode{CQPerCore, CQOne, CQPerTarget} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("iser: completion queue mode %q is none of core, one, target", s)
}

// RemoteInvalidation says whether responses may invalidate the initiator's STag.
type RemoteInvalidation uint8

const (
	// InvalidateAuto uses Send with Invalidate where the initiator said that it takes it.
	InvalidateAuto RemoteInvalidation = iota
	// InvalidateOff never does; always safe.
	InvalidateOff
)

// Config is the configuration of a [Server]. The zero value is useful: every zero means the default beside it.
type Config struct {
	Shards    int    // shards per device; 0: one per CPU that the process may use
	Pin       bool   // lock each shard's loop to an OS thread and bind that to one CPU
	CQMode    CQMode // core
	CQDepth   int    // first depth of a completion queue; it grows as connections come. 4096
	PollBatch int    // completions reaped in one crossing. 64: 32 commands and as much slack
	// SpinTime is the longest time that an idle shard polls before it sleeps; it spins less when spinning did not pay.
	// 0: 20 µs. Negative: it never spins.
	SpinTime time.Duration
	// PoolBytes is the registered memory per shard, for data, receive and send buffers, that it begins with, 64 MiB. A
	// connection in full feature phase takes about 2 MiB of it. It grows, as long as that works, to PoolMaxBytes, 8 times
	// as much.
	PoolBytes, PoolMaxBytes int
	NoHugePages             bool // do not ask for huge pages, which the pool else falls back from
	Inline                  int  // largest inline send asked of a queue pair; 0: 128, negative: none
	SendDepth               int  // send queue of a queue pair, in work requests, clamped to the device. 256
	// RecvDepth is the most receives of one connection: a session's window and its allowance for immediate PDUs must fit.
	// Clamped to the device. 0: what the node's window needs.
	RecvDepth int
	// ReadDepth bounds the RDMA READs outstanding per connection, under what device and initiator allow. 0: they decide.
	ReadDepth          int
	RemoteInvalidation RemoteInvalidation
	Backlog            int           // connect requests waiting at a listener. 256
	GracefulTimeout    time.Duration // how long queued PDUs may take to leave at an orderly end. 1.5 s
	DrainTimeout       time.Duration // how long flushed work may take to come back. 3 s
	RescanInterval     time.Duration // how often a missing device or listener is looked for. 1 s
	Events             Events
}

// Events are told what happens outside the data path; nil functions are skipped. They are called from any goroutine,
// some with a shard's lock held: they must be quick and must not call the [Server].
type Events struct {
	DeviceOpened  func(DeviceReport)
	DeviceFailed  func(device string, err error) // a device that cannot be used, with the reason
	DeviceRemoved func(device string)
	Async         func(device string, e rdma.AsyncEvent)
	ListenerLost  func(addr netip.AddrPort, err error) // it will be retried
	ListenerBack  func(addr netip.AddrPort)
	Refused       func(remote netip.AddrPort, err error) // a connect request that was turned down
	Connected     func(remote netip.AddrPort, device string)
	// Disconnected: err is nil for an orderly end, whoever asked for it.
	Disconnected func(remote netip.AddrPort, err error)
}

// DeviceReport says what a device was opened with.
type DeviceReport struct {
	Device    string
	Shards    int
	PoolBytes int // of all shards
	HugePages bool
	// MemoryError is why memory of a store could not be registered here; reads from it are copied then.
	MemoryError error
}

const (
	minPoolBytes     = 4 << 20
	defaultPoolBytes = 64 << 20
	minSendDepth     = 8
	minRecvDepth     = 4
)

// Validate tells what is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("iser: "+format, args...)) }
	if c.Shards < 0 || c.Shards > 1024 {
		bad("%d shards: 0 to 1024 are possible", c.Shards)
	}
	switch c.CQMode {
	case CQPerCore:
	case CQOne:
		if c.Shards > 1 {
			bad("completion queue mode one has one shard, not %d", c.Shards)
		}
	case CQPerTarget:
		bad("completion queue mode target is not available in this version: the target is known only after login")
	default:
		bad("unknown completion queue mode %d", c.CQMode)
	}
	if c.CQDepth < 0 {
		bad("completion queue depth %d is negative", c.CQDepth)
	}
	if c.PollBatch < 0 || c.PollBatch > 4096 {
		bad("poll batch %d: 0 to 4096 are possible", c.PollBatch)
	}
	if c.PoolBytes != 0 && c.PoolBytes < minPoolBytes {
		bad("%d bytes of pool per shard: at least %d are needed", c.PoolBytes, minPoolBytes)
	}
	if c.PoolMaxBytes < 0 || c.PoolMaxBytes != 0 && c.PoolMaxBytes < max(c.PoolBytes, minPoolBytes) {
		bad("a pool of at most %d bytes per shard is smaller than what it begins with", c.PoolMaxBytes)
	}
	if c.SendDepth != 0 && c.SendDepth < minSendDepth {
		bad("send depth %d: at least %d is needed", c.SendDepth, minSendDepth)
	}
	if c.RecvDepth != 0 && c.RecvDepth < minRecvDepth {
		bad("receive depth %d: at least %d is needed", c.RecvDepth, minRecvDepth)
	}
	if c.ReadDepth < 0 || c.ReadDepth > 255 {
		bad("read depth %d: 0 to 255 are possible", c.ReadDepth)
	}
	if c.RemoteInvalidation > InvalidateOff {
		bad("unknown remote invalidation mode %d", c.RemoteInvalidation)
	}
	if c.Backlog < 0 || c.GracefulTimeout < 0 || c.DrainTimeout < 0 || c.RescanInterval < 0 {
		bad("backlog and times must not be negative")
	}
	return errors.Join(errs...)
}

// withDefaults replaces zeros.
func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	defTime := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.CQDepth, 4096)
	def(&c.PollBatch, 64)
	if c.PoolBytes == 0 {
		c.PoolBytes = defaultPoolBytes
		if c.PoolMaxBytes > 0 {
			c.PoolBytes = min(c.PoolBytes, c.PoolMaxBytes)
		}
	}
	def(&c.PoolMaxBytes, 8*c.PoolBytes)
	def(&c.Inline, 128) // a response without data is 76 bytes
	c.Inline = max(c.Inline, 0)
	def(&c.SendDepth, 256)
	def(&c.RecvDepth, 160)
	def(&c.Backlog, 256)
	defTime(&c.SpinTime, 20*time.Microsecond)
	defTime(&c.GracefulTimeout, 1500*time.Millisecond)
	defTime(&c.DrainTimeout, 3*time.Second)
	defTime(&c.RescanInterval, time.Second)
	return c
}
