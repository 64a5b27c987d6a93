package softroce

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"sync"
	"sync/atomic"

	"iserd/rdma"
)

// Limits of the device.
const (
	maxQP      = 1 << 14
	maxQPWR    = 1 << 14
	maxCQ      = 1 << 16
	maxCQE     = 1 << 20
	maxSGE     = 32
	maxInline  = 512
	maxRDAtom  = 64
	maxMsgSize = 1 << 30
	maxPD      = 1 << 16
)

// openCount is what is open.
type openCount struct {
	pds, mrs, cqs, channels, qps, conns, listeners, events atomic.Int32
}

// device is the one device of a provider.
type device struct {
	prov       *Provider
	mrs        mrTable
	qps        qpTable
	cm         cm
	timers     timers
	counters   counters
	open       openCount
	events     chan rdma.AsyncEvent
	guid       uint64
	wg         sync.WaitGroup
	closed     atomic.Bool
	early      atomic.Int64 // bytes of packets that came before their turn
	warnBuffer sync.Once
	// arrive stands, in tests, for the network: it hands on what came, or does not, or changes it, or another time.
	arrive func(from netip.AddrPort, b []byte, handle func(netip.AddrPort, []byte))

	sockMu sync.Mutex
	socks  map[netip.Addr]*socket
}

func newDevice(p *Provider) *device {
	d := &device{prov: p, timers: newTimers(), events: make(chan rdma.AsyncEvent, 64), socks: map[netip.Addr]*socket{},
		guid: uint64(randomKey())<<32 | uint64(randomKey())}
	d.mrs.byKey = map[uint32]*mr{}
	d.cm.init(d)
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		d.timers.run()
	}()
	return d
}

func (d *device) warn(m string) {
	if d.prov.opt.Warn != nil {
		d.prov.opt.Warn(m)
	}
}

func (d *device) trace(sent bool, f *flow, b []byte, ipID uint16) {
	if t := d.prov.opt.Trace; t != nil {
		t.Packet(sent, netip.AddrPortFrom(f.src, f.srcPort), netip.AddrPortFrom(f.dst, f.dstPort), ipID, b)
	}
}

// async delivers an event; when nobody reads, the oldest is dropped.
func (d *device) async(e rdma.AsyncEvent) {
	for {
		select {
		case d.events <- e:
			return
		default:
		}
		select {
		case <-d.events:
		default:
		}
	}
}

// overrun kills the queue pairs of a completion queue that was too small. It is called with one of them locked.
func (d *device) overrun(c *cq) {
	d.async(rdma.AsyncEvent{Type: rdma.AsyncCQErr})
	go func() {
		for i := range d.qps.slots {
			if q := d.qps.slots[i].Load(); q != nil && (q.sendCQ == c || q.recvCQ == c) {
				_ = q.SetError()
				d.async(rdma.AsyncEvent{Type: rdma.AsyncQPFatal, QPNum: q.num})
			}
		}
	}()
}

func (d *device) Events() <-chan rdma.AsyncEvent { return d.events }
func (d *device) Removed() bool                  { return false }

func (d *device) Attr() rdma.DeviceAttr {
	return rdma.DeviceAttr{MaxQP: maxQP, MaxQPWR: maxQPWR, MaxCQ: maxCQ, MaxCQE: maxCQE, MaxMR: maxMR, MaxPD: maxPD, MaxSGE: maxSGE,
		MaxSGERead: maxSGE, MaxQPRDAtom: maxRDAtom, MaxQPInitRDAtom: maxRDAtom, MaxMRSize: 1 << 40, MaxInline: maxInline, NumCompVectors: 1,
		MaxMsgSize: maxMsgSize}
}

func (d *device) Info() rdma.DeviceInfo {
	var g [8]byte
	binary.BigEndian.PutUint64(g[:], d.guid)
	port := rdma.PortInfo{Number: 1, State: "ACTIVE", LinkLayer: rdma.LinkEthernet, MTU: 4096}
	seen := map[string]bool{}
	for _, a := range d.prov.addrs() {
		port.Addrs = append(port.Addrs, a.addr)
		if a.netdev != "" && !seen[a.netdev] {
			seen[a.netdev] = true
			port.NetDevs = append(port.NetDevs, a.netdev)
		}
	}
	return rdma.DeviceInfo{Name: "softroce", Driver: "RoCEv2 in user space", GUID: hex.EncodeToString(g[:]), NUMANode: -1,
		Transport: rdma.TransportIB, Ports: []rdma.PortInfo{port}}
}

// socketAt gives the socket of a local address. Once opened it stays until the provider is closed: a machine with an
// RDMA device answers on its address whether somebody listens or not.
func (d *device) socketAt(a netip.Addr) (*socket, error) {
	d.sockMu.Lock()
	defer d.sockMu.Unlock()
	if d.closed.Load() {
		return nil, rdma.ErrClosed
	}
	s := d.socks[a]
	if s == nil {
		var err error
		if s, err = d.openSocket(a); err != nil {
			return nil, err
		}
		d.socks[a] = s
	}
	return s, nil
}

// qpTable finds queue pairs by number, without a lock. A number is a slot and ten random bits, so that what was meant
// for a queue pair that is gone does not find the next one.
type qpTable struct {
	slots [maxQP]atomic.Pointer[qp]
	mu    sync.Mutex
	next  int
}

func (t *qpTable) find(num uint32) *qp {
	q := t.slots[num%maxQP].Load()
	if q == nil || q.num != num {
		return nil
	}
	return q
}

func (t *qpTable) add(q *qp) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range maxQP {
		t.next = (t.next + 1) % maxQP
		if t.slots[t.next].Load() != nil {
			continue
		}
		for q.num < 16 || q.num == psnMask { // the management queue pairs and the multicast one
			q.num = (randomKey()&^(maxQP-1) | uint32(t.next)) & psnMask
		}
		t.slots[t.next].Store(q)
		return nil
	}
	return tooBig("queue pairs", maxQP+1, maxQP)
}

func (t *qpTable) remove(q *qp) {
	t.slots[q.num%maxQP].CompareAndSwap(q, nil)
}
