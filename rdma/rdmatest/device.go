package rdmatest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"iserd/rdma"
)

// Provider is one machine of a fabric. It implements [rdma.Provider].
type Provider struct {
	f        *Fabric
	devices  []*Device // removed ones too
	channels int
	closed   bool
}

// Name implements [rdma.Provider].
func (p *Provider) Name() string { return "rdmatest" }

// Devices implements [rdma.Provider].
func (p *Provider) Devices() ([]rdma.Device, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.closed {
		return nil, rdma.ErrClosed
	}
	var out []rdma.Device
	for _, d := range p.devices {
		if !d.removed.Load() {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil, rdma.ErrNoDevice
	}
	return out, nil
}

// Device is the newest device of that name, nil if there was none.
func (p *Provider) Device(name string) *Device {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	for _, d := range slices.Backward(p.devices) {
		if d.cfg.Name == name {
			return d
		}
	}
	return nil
}

// NewEventChannel implements [rdma.Provider].
func (p *Provider) NewEventChannel() (rdma.EventChannel, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.closed {
		return nil, rdma.ErrClosed
	}
	if err := p.f.verb(nil, "NewEventChannel"); err != nil {
		return nil, err
	}
	return newEventChannel(p), nil
}

// Close implements [rdma.Provider].
func (p *Provider) Close() error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.channels > 0 {
		return busy("close provider", "event channels, listeners or connections", p.channels)
	}
	for _, d := range p.devices {
		if n := d.pds + d.channels; n > 0 {
			return busy("close provider", "objects on device "+d.cfg.Name, n)
		}
	}
	p.closed = true
	for _, d := range p.devices {
		close(d.async)
	}
	return nil
}

func busy(op, what string, n int) error {
	return &rdma.OpError{Op: op, Errno: syscall.EBUSY, Hint: fmt.Sprintf("%d %s open", n, what)}
}

func (p *Provider) addDevice(cfg DeviceConfig) *Device {
	attr := DefaultAttr()
	if cfg.Attr != nil {
		cfg.Attr(&attr)
	}
	d := &Device{f: p.f, p: p, cfg: cfg, attr: attr, async: make(chan rdma.AsyncEvent, 64)}
	p.devices = append(p.devices, d)
	return d
}

func (p *Provider) deviceAt(a netip.Addr) *Device {
	for _, d := range p.devices {
		if !d.removed.Load() && slices.Contains(d.cfg.Addrs, a.WithZone("")) {
			return d
		}
	}
	return nil
}

// Device implements [rdma.Device].
type Device struct {
	f        *Fabric
	p        *Provider
	cfg      DeviceConfig
	attr     rdma.DeviceAttr
	async    chan rdma.AsyncEvent
	removed  atomic.Bool
	down     bool
	mrs      []*mr // by key >> 8
	freeMRs  []uint32
	pds      int
	channels int
	qps      int
	stats    statistics
}

// Info implements [rdma.Device].
func (d *Device) Info() rdma.DeviceInfo {
	i := rdma.DeviceInfo{Name: d.cfg.Name, Driver: "rdmatest", GUID: "0002:c900:0000:0001", NUMANode: d.cfg.NUMANode, Transport: rdma.TransportIB,
		Ports: []rdma.PortInfo{{Number: 1, State: "ACTIVE", LinkLayer: rdma.LinkEthernet, NetDevs: []string{d.cfg.Name + "n"},
			Addrs: slices.Clone(d.cfg.Addrs), MTU: 4096, Speed: "memory"}}}
	if d.f.cfg.IWARP {
		i.Transport = rdma.TransportIWARP
	}
	return i
}

// Attr implements [rdma.Device].
func (d *Device) Attr() rdma.DeviceAttr { return d.attr }

// Removed implements [rdma.Device].
func (d *Device) Removed() bool { return d.removed.Load() }

// Events implements [rdma.Device].
func (d *Device) Events() <-chan rdma.AsyncEvent { return d.async }

// raise drops the oldest event when nobody reads.
func (d *Device) raise(e rdma.AsyncEvent) {
	if d.p.closed {
		return
	}
	d.stats.asyncEvents.Add(1)
	for {
		select {
		case d.async <- e:
			return
		default:
		}
		select {
		case <-d.async:
		default:
		}
	}
}

// check refuses what a removed device cannot do.
func (d *Device) check(op string) error {
	if d.removed.Load() || d.p.closed {
		return fmt.Errorf("%s: %w", op, rdma.ErrClosed)
	}
	return d.f.verb(d, op)
}

func tooBig(what string, n, limit int) error {
	return fmt.Errorf("%w: %s %d, at most %d", rdma.ErrTooBig, what, n, limit)
}

func invalid(op, hint string) error {
	return &rdma.OpError{Op: op, Errno: syscall.EINVAL, Hint: hint}
}

// AllocPD implements [rdma.Device].
func (d *Device) AllocPD() (rdma.PD, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.check("AllocPD"); err != nil {
		return nil, err
	}
	if d.pds >= d.attr.MaxPD {
		return nil, tooBig("protection domains", d.pds+1, d.attr.MaxPD)
	}
	p := &pd{dev: d}
	d.pds++
	d.f.open[p] = struct{}{}
	return p, nil
}

type pd struct {
	dev    *Device
	users  int // memory regions and queue pairs
	closed bool
}

func (p *pd) describe() string    { return "PD of " + p.dev.cfg.Name }
func (p *pd) Device() rdma.Device { return p.dev }

func (p *pd) Close() error {
	p.dev.f.mu.Lock()
	defer p.dev.f.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.users > 0 {
		return busy("ibv_dealloc_pd", "memory regions or queue pairs", p.users)
	}
	p.closed = true
	p.dev.pds--
	delete(p.dev.f.open, p)
	return nil
}

// mr is a memory region. Its keys are index<<8 and something that changes with each tenant of the index; local and
// remote key differ, so that one in place of the other is found out.
type mr struct {
	pd          *pd
	b           []byte
	addr        uint64
	lkey, rkey  uint32
	access      rdma.Access
	closed      bool
	invalidated bool // by a peer's SEND_WITH_INV: the remote key is dead
}

const remoteKeyBit = 0x80

func (p *pd) RegMR(b []byte, access rdma.Access) (rdma.MR, error) {
	d := p.dev
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if p.closed {
		return nil, rdma.ErrClosed
	}
	if err := d.check("RegMR"); err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, invalid("ibv_reg_mr", "no memory")
	}
	if access&rdma.AccessRemoteWrite != 0 && access&rdma.AccessLocalWrite == 0 {
		return nil, invalid("ibv_reg_mr", "remote write needs local write")
	}
	if uint64(len(b)) > d.attr.MaxMRSize {
		return nil, tooBig("bytes in a region", len(b), int(min(d.attr.MaxMRSize, 1<<62)))
	}
	if len(d.mrs)-len(d.freeMRs) >= d.attr.MaxMR {
		return nil, &rdma.OpError{Op: "ibv_reg_mr", Errno: syscall.ENOMEM, Hint: "the device has no more regions"}
	}
	m := &mr{pd: p, b: b, addr: rdma.AddrOf(b), access: access}
	var index uint32
	if n := len(d.freeMRs); n > 0 {
		index, d.freeMRs = d.freeMRs[n-1], d.freeMRs[:n-1]
		m.lkey = index<<8 | (d.mrs[index].lkey+1)&0x7F
	} else {
		index = uint32(len(d.mrs))
		d.mrs = append(d.mrs, nil)
		m.lkey = index<<8 | 0x11
	}
	m.rkey = m.lkey | remoteKeyBit
	d.mrs[index] = m
	p.users++
	d.f.open[m] = struct{}{}
	return m, nil
}

func (m *mr) describe() string {
	return fmt.Sprintf("MR of %s: %d bytes, lkey %#x", m.pd.dev.cfg.Name, len(m.b), m.lkey)
}
func (m *mr) Bytes() []byte { return m.b }
func (m *mr) Addr() uint64  { return m.addr }
func (m *mr) LKey() uint32  { return m.lkey }
func (m *mr) RKey() uint32  { return m.rkey }

func (m *mr) Close() error {
	d := m.pd.dev
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.pd.users--
	d.freeMRs = append(d.freeMRs, m.lkey>>8)
	delete(d.f.open, m)
	return nil
}

// Invalidated tells whether a peer invalidated the region's remote key, false for a region of another provider.
func Invalidated(r rdma.MR) bool {
	m, ok := r.(*mr)
	if !ok {
		return false
	}
	m.pd.dev.f.mu.Lock()
	defer m.pd.dev.f.mu.Unlock()
	return m.invalidated
}

func (d *Device) byKey(key uint32) *mr {
	if i := key >> 8; int(i) < len(d.mrs) {
		if m := d.mrs[i]; !m.closed {
			return m
		}
	}
	return nil
}

// local finds the memory of an SGE, nil if it may not be used so.
func (p *pd) local(s *rdma.SGE, write bool) []byte {
	m := p.dev.byKey(s.LKey)
	if m == nil || m.lkey != s.LKey || m.pd != p || write && m.access&rdma.AccessLocalWrite == 0 {
		return nil
	}
	return m.slice(s.Addr, uint64(s.Length))
}

// remote finds memory by the key and address that a peer names.
func (p *pd) remote(addr uint64, n uint32, key uint32, need rdma.Access) []byte {
	m := p.dev.byKey(key)
	if m == nil || m.rkey != key || m.pd != p || m.invalidated || m.access&need == 0 {
		return nil
	}
	return m.slice(addr, uint64(n))
}

func (m *mr) slice(addr, n uint64) []byte {
	if addr < m.addr || addr-m.addr > uint64(len(m.b)) || n > uint64(len(m.b))-(addr-m.addr) {
		return nil
	}
	off := addr - m.addr
	return m.b[off : off+n]
}

// invalidate is what an arriving SEND_WITH_INV does.
func (p *pd) invalidate(key uint32) bool {
	m := p.dev.byKey(key)
	if m == nil || m.rkey != key || m.pd != p || m.invalidated {
		return false
	}
	m.invalidated = true
	return true
}
