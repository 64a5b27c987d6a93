package softroce

import (
	"net/netip"
	"sync"
	"time"

	"iserd/rdma"
)

// Options change a provider. The zero value is right.
type Options struct {
	// Addrs are the local addresses that the provider may use. Empty: all of the machine.
	Addrs []netip.Addr
	// MTU bounds the path MTU: 256, 512, 1024, 2048 or 4096. Zero: what the interfaces allow.
	MTU int
	// Timewait is how long a connection that is over is remembered. Zero: 2 s.
	Timewait time.Duration
	// Trace sees every packet. It is called with locks held and must not block.
	Trace Trace
	// Warn is told what an administrator should know.
	Warn func(message string)
}

// Trace sees packets: b is the UDP payload, from the base transport header to the ICRC, valid during the call. ipID is
// the IPv4 identification of a packet that is sent, and zero for one that came.
type Trace interface {
	Packet(sent bool, src, dst netip.AddrPort, ipID uint16, b []byte)
}

// Provider implements [rdma.Provider] with one device.
type Provider struct {
	opt  Options
	dev  *device
	once sync.Once
}

// New makes a provider. It opens no socket before it listens or connects.
func New(opt Options) *Provider {
	if opt.Timewait <= 0 {
		opt.Timewait = 2 * time.Second
	}
	if mtuCode[opt.MTU] == 0 {
		opt.MTU = 4096
	}
	p := &Provider{opt: opt}
	p.dev = newDevice(p)
	return p
}

// Name implements [rdma.Provider].
func (p *Provider) Name() string { return "softroce" }

// Devices implements [rdma.Provider].
func (p *Provider) Devices() ([]rdma.Device, error) {
	if p.dev.closed.Load() {
		return nil, rdma.ErrClosed
	}
	return []rdma.Device{p.dev}, nil
}

// NewEventChannel implements [rdma.Provider].
func (p *Provider) NewEventChannel() (rdma.EventChannel, error) {
	if p.dev.closed.Load() {
		return nil, rdma.ErrClosed
	}
	return newEventChannel(p), nil
}

// Close ends everything: sockets are closed, queue pairs go to error. Peers are not told; disconnect before.
func (p *Provider) Close() error {
	p.once.Do(func() {
		d := p.dev
		d.cm.mu.Lock()
		for _, x := range d.cm.byID {
			x.disarm()
			if x.qp != nil {
				_ = x.qp.SetError()
			}
		}
		d.cm.mu.Unlock()
		d.sockMu.Lock()
		d.closed.Store(true)
		for _, s := range d.socks {
			s.close()
		}
		d.sockMu.Unlock()
		close(d.timers.stop)
		d.wg.Wait()
	})
	return nil
}
