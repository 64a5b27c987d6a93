package rdmatest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"iserd/rdma"
)

// Fabric connects providers. All of it is under one lock.
type Fabric struct {
	mu         sync.Mutex
	cfg        Config
	faults     Faults
	providers  []*Provider
	qps        map[uint32]*qp // open ones
	nextQP     uint32
	open       map[leak]struct{}
	conns      map[*Conn]struct{}
	listeners  map[*listener]struct{}
	down       bool
	heldReads  []heldRead
	heldEvents []heldEvent
	events     uint64
	nextPort   uint16
	nextConn   int
}

// leak is something that was opened.
type leak interface{ describe() string }

type heldRead struct {
	q   *qp
	seq uint64
}

type heldEvent struct {
	ch *eventChannel
	ev rdma.Event
}

// New makes a fabric without providers.
func New(cfg Config) *Fabric {
	return &Fabric{cfg: cfg.withDefaults(), qps: map[uint32]*qp{}, nextQP: 0x11, open: map[leak]struct{}{}, conns: map[*Conn]struct{}{},
		listeners: map[*listener]struct{}{}, nextPort: 49152}
}

// Pair makes a fabric with two machines, the target's with the addresses 192.0.2.1 and 2001:db8::1, the initiator's
// with 192.0.2.2 and 2001:db8::2, and a device in each.
func Pair(cfg Config) (f *Fabric, target, initiator *Provider) {
	f = New(cfg)
	return f, f.NewProvider(DeviceConfig{Addrs: addrs("192.0.2.1", "2001:db8::1")}), f.NewProvider(DeviceConfig{Addrs: addrs("192.0.2.2", "2001:db8::2")})
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// NewProvider adds a machine with devices to the fabric. Every address of a fabric belongs to one device.
func (f *Fabric) NewProvider(devices ...DeviceConfig) *Provider {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &Provider{f: f}
	f.providers = append(f.providers, p)
	for _, d := range devices {
		if d.Name == "" {
			d.Name = fmt.Sprintf("mem%d", len(p.devices))
		}
		p.addDevice(d)
	}
	return p
}

// Leaks names every object that was made and not closed.
func (f *Fabric) Leaks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]string, 0, len(f.open))
	for x := range f.open {
		out = append(out, x.describe())
	}
	slices.Sort(out)
	return out
}

// misuse reports wrong use.
func (f *Fabric) misuse(m Misuse, format string, args ...any) {
	if f.cfg.Misuse != nil {
		f.cfg.Misuse(m, fmt.Sprintf(format, args...))
	}
}

// after calls fn later, with the lock held.
func (f *Fabric) after(d time.Duration, fn func()) {
	time.AfterFunc(d, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		fn()
	})
}

// sortedQPs are the open queue pairs, oldest first.
func (f *Fabric) sortedQPs() []*qp {
	return slices.SortedFunc(maps.Values(f.qps), func(a, b *qp) int { return cmp.Compare(a.num, b.num) })
}

func (f *Fabric) allCQs() (out []*cq) {
	for x := range f.open {
		if c, ok := x.(*cq); ok {
			out = append(out, c)
		}
	}
	return out
}

func (f *Fabric) channelsOf(d *Device) (out []*completionChannel) {
	for x := range f.open {
		if c, ok := x.(*completionChannel); ok && c.dev == d {
			out = append(out, c)
		}
	}
	return out
}

func (f *Fabric) connsOf(d *Device) (out []*Conn) {
	for c := range f.conns {
		if c.dev == d {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *Conn) int { return cmp.Compare(a.number, b.number) })
	return out
}

func (f *Fabric) listenersOf(d *Device) (out []*listener) {
	for l := range f.listeners {
		if l.dev == d {
			out = append(out, l)
		}
	}
	return out
}

// deviceAt finds the device that has an address.
func (f *Fabric) deviceAt(a netip.Addr) *Device {
	for _, p := range f.providers {
		if d := p.deviceAt(a); d != nil {
			return d
		}
	}
	return nil
}

// linked tells whether messages pass between two devices.
func (f *Fabric) linked(a, b *Device) bool {
	return !f.down && !a.down && !b.down && !a.removed.Load() && !b.removed.Load()
}
