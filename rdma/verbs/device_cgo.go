//go:build linux && cgo && !nordma

package verbs

/*
#include <stdlib.h>
#include "shim_linux.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"iserd/rdma"
)

type device struct {
	p        *provider
	ctx      *C.struct_ibv_context
	name     string
	attr     rdma.DeviceAttr
	static   deviceFacts // what never changes of what Info reports
	events   chan rdma.AsyncEvent
	async    *asyncReader
	removed  atomic.Bool
	children atomic.Int32 // PDs and completion channels; negative once the device is released

	infoMu   sync.Mutex
	lastInfo rdma.DeviceInfo

	statMu  sync.Mutex
	queues  map[*completionQueue]struct{}
	chans   map[*completionChannel]struct{}
	retired Stats

	inlineMu sync.Mutex
	inline   map[inlineKey]int // what the device grants, where that is less than was asked for

	batchMu sync.Mutex
	free    []*batch
	batches []*batch
}

// openDevice takes over one reference to ctx when it succeeds.
func openDevice(p *provider, ctx *C.struct_ibv_context) (*device, error) {
	d := &device{
		p: p, ctx: ctx, name: C.GoString(C.ibv_get_device_name(ctx.device)),
		events: make(chan rdma.AsyncEvent, p.opts.AsyncQueue),
		inline: map[inlineKey]int{},
		queues: map[*completionQueue]struct{}{}, chans: map[*completionChannel]struct{}{},
	}
	var a C.struct_ibv_device_attr
	if rc := C.ibv_query_device(ctx, &a); rc != 0 {
		return nil, fmt.Errorf("%s: %w", d.name, &rdma.OpError{Op: "ibv_query_device", Errno: syscall.Errno(max(rc, -rc))})
	}
	d.attr = rdma.DeviceAttr{
		MaxQP: count(a.max_qp), MaxQPWR: count(a.max_qp_wr), MaxCQ: count(a.max_cq), MaxCQE: count(a.max_cqe),
		MaxMR: count(a.max_mr), MaxPD: count(a.max_pd), MaxSGE: count(a.max_sge), MaxSGERead: count(a.max_sge_rd),
		MaxQPRDAtom: count(a.max_qp_rd_atom), MaxQPInitRDAtom: count(a.max_qp_init_rd_atom),
		MaxMRSize: uint64(a.max_mr_size), NumCompVectors: max(1, int(ctx.num_comp_vectors)),
	}
	// iWARP drivers leave max_sge_rd at 0, and mean 1.
	d.attr.MaxSGERead = max(1, d.attr.MaxSGERead)
	d.static = deviceFacts{
		name: d.name, vendorID: uint32(a.vendor_id), partID: uint32(a.vendor_part_id), firmware: C.GoString(&a.fw_ver[0]),
		guid: guidString(*(*[8]byte)(cPointer(&a.node_guid))), ports: int(a.phys_port_cnt), transport: rdma.TransportUnknown,
	}
	switch ctx.device.transport_type {
	case C.IBV_TRANSPORT_IB:
		d.static.transport = rdma.TransportIB
	case C.IBV_TRANSPORT_IWARP:
		d.static.transport = rdma.TransportIWARP
	}
	d.attr.MaxMsgSize = math.MaxUint32
	for i := 1; i <= d.static.ports; i++ {
		var pa C.struct_ibv_port_attr
		if C.iserd_query_port(ctx, C.uint8_t(i), &pa) == 0 && pa.max_msg_sz != 0 {
			d.attr.MaxMsgSize = min(d.attr.MaxMsgSize, uint32(pa.max_msg_sz))
		}
	}
	var err error
	if d.async, err = startAsync(d); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	return d, nil
}

// count reads a C int that drivers treat as unsigned: some report 2^31 for "no limit".
func count(n C.int) int {
	if n < 0 {
		return math.MaxInt32
	}
	return int(n)
}

func (d *device) Attr() rdma.DeviceAttr          { return d.attr }
func (d *device) Events() <-chan rdma.AsyncEvent { return d.events }
func (d *device) Removed() bool                  { return d.removed.Load() }
func (d *device) markRemoved()                   { d.removed.Store(true) }
func (d *device) gone() error                    { return fmt.Errorf("%w: device %s was removed", rdma.ErrClosed, d.name) }
func (d *device) String() string                 { return d.name }

// hold keeps the device open for a child, until drop; an error when it is gone or released.
func (d *device) hold() error {
	if d.children.Add(1) <= 0 {
		d.children.Add(-1)
		return rdma.ErrClosed
	}
	if d.removed.Load() {
		d.drop()
		return d.gone()
	}
	return nil
}

func (d *device) drop() { d.children.Add(-1) }

// release is false while there are children; after true there can be none.
func (d *device) release() bool { return d.children.CompareAndSwap(0, math.MinInt32/2) }

// Info asks the device and sysfs anew, since states and addresses change; for a device that is gone it is what was
// known last.
func (d *device) Info() rdma.DeviceInfo {
	d.infoMu.Lock()
	defer d.infoMu.Unlock()
	if d.hold() != nil { // its context may be gone
		if d.lastInfo.Name == "" {
			return describe(d.static)
		}
		return d.lastInfo
	}
	defer d.drop()
	facts := d.static
	for i := 1; i <= d.static.ports; i++ {
		facts.port = append(facts.port, d.portFacts(i))
	}
	gids := make([]C.struct_ibv_gid_entry, 256)
	for _, g := range gids[:max(0, int(C.iserd_gids(d.ctx, &gids[0], C.int(len(gids)))))] {
		for i := range facts.port {
			if facts.port[i].number == int(g.port_num) {
				raw := *(*[16]byte)(cPointer(&g.gid))
				facts.port[i].gids = append(facts.port[i].gids, gidFact{raw: raw, ifIndex: int(g.ndev_ifindex)})
			}
		}
	}
	d.lastInfo = describe(facts)
	return d.lastInfo
}

func (d *device) portFacts(n int) portFacts {
	f := portFacts{number: n, state: "unknown", link: rdma.LinkUnknown}
	var a C.struct_ibv_port_attr
	if C.iserd_query_port(d.ctx, C.uint8_t(n), &a) != 0 {
		return f
	}
	switch a.state {
	case C.IBV_PORT_NOP:
		f.state = "NOP"
	case C.IBV_PORT_DOWN:
		f.state = "DOWN"
	case C.IBV_PORT_INIT:
		f.state = "INIT"
	case C.IBV_PORT_ARMED:
		f.state = "ARMED"
	case C.IBV_PORT_ACTIVE:
		f.state = "ACTIVE"
	case C.IBV_PORT_ACTIVE_DEFER:
		f.state = "ACTIVE_DEFER"
	}
	switch a.link_layer {
	case C.IBV_LINK_LAYER_ETHERNET:
		f.link = rdma.LinkEthernet
	case C.IBV_LINK_LAYER_INFINIBAND:
		f.link = rdma.LinkInfiniBand
	}
	if a.active_mtu >= C.IBV_MTU_256 && a.active_mtu <= C.IBV_MTU_4096 {
		f.mtu = 128 << a.active_mtu
	}
	f.speed = speed(int(a.active_width), int(a.active_speed))
	return f
}

func (d *device) addStats(s *Stats) {
	d.statMu.Lock()
	defer d.statMu.Unlock()
	add(s, &d.retired)
	for q := range d.queues {
		q.addStats(s)
	}
	for c := range d.chans {
		c.addStats(s)
	}
	d.batchMu.Lock()
	for _, b := range d.batches {
		b.addStats(s)
	}
	d.batchMu.Unlock()
	s.AsyncEvents += d.async.events.Load()
	s.AsyncLost += d.async.lost.Load()
}

// add is the inverse of [Stats.Sub].
func add(s, o *Stats) {
	var zero Stats
	*s = s.Sub(zero.Sub(*o))
}

// asyncReader is the goroutine that takes the asynchronous events of a device.
type asyncReader struct {
	d      *device
	file   *os.File
	done   chan struct{}
	events atomic.Uint64
	lost   atomic.Uint64
	// note is when, counted in events queued, the last note of dropped events was queued; 0 = never.
	note, queued uint64
}

func startAsync(d *device) (*asyncReader, error) {
	f, err := pollableDup(int(d.ctx.async_fd), "verbs:async:"+d.name)
	if err != nil {
		return nil, err
	}
	r := &asyncReader{d: d, file: f, done: make(chan struct{})}
	go r.run()
	return r, nil
}

func (r *asyncReader) run() {
	defer close(r.done)
	conn, err := r.file.SyscallConn()
	if err != nil {
		return
	}
	var ev C.struct_iserd_async
	var rc C.int
	read := func(uintptr) bool {
		rc = C.iserd_async_event(r.d.ctx, &ev)
		return rc != -C.EAGAIN
	}
	for {
		if err := conn.Read(read); err != nil {
			return // closed
		}
		switch {
		case rc == -C.EINTR:
			continue
		case rc != 0:
			// The kernel cut the device off from us.
			r.d.markRemoved()
			r.push(rdma.AsyncEvent{Type: rdma.AsyncDeviceRemoved})
			return
		}
		r.events.Add(1)
		e := rdma.AsyncEvent{Type: asyncType(uint32(ev._type)), QPNum: uint32(ev.qp_num), Port: int(ev.port)}
		if e.Type == rdma.AsyncDeviceFatal {
			r.d.markRemoved()
		}
		r.push(e)
	}
}

// push never blocks: the oldest events go, and one note in the queue says so.
func (r *asyncReader) push(e rdma.AsyncEvent) {
	r.queued++
	select {
	case r.d.events <- e:
		return
	default:
	}
	size := uint64(cap(r.d.events))
	note := r.note == 0 || r.queued-r.note > size
	for room := 0; room < 2; {
		select {
		case old := <-r.d.events:
			if old.Type == rdma.AsyncEventsDropped {
				note = true
			} else {
				r.lost.Add(1)
			}
			room++
		default:
			room = 2 // a reader came by
		}
		if !note {
			break
		}
	}
	if note {
		r.note = r.queued
		r.send(rdma.AsyncEvent{Type: rdma.AsyncEventsDropped})
		r.queued++
	}
	r.send(e)
}

func (r *asyncReader) send(e rdma.AsyncEvent) {
	select {
	case r.d.events <- e:
	default:
		r.lost.Add(1) // cannot be: we are the only writer and made room
	}
}

func (r *asyncReader) stop() {
	_ = r.file.Close()
	<-r.done
}

var asyncTypes = map[uint32]rdma.AsyncEventType{
	C.IBV_EVENT_CQ_ERR: rdma.AsyncCQErr, C.IBV_EVENT_QP_FATAL: rdma.AsyncQPFatal, C.IBV_EVENT_QP_REQ_ERR: rdma.AsyncQPReqErr,
	C.IBV_EVENT_QP_ACCESS_ERR: rdma.AsyncQPAccessErr, C.IBV_EVENT_COMM_EST: rdma.AsyncCommEst,
	C.IBV_EVENT_PATH_MIG: rdma.AsyncPathMig, C.IBV_EVENT_PATH_MIG_ERR: rdma.AsyncPathMig,
	C.IBV_EVENT_DEVICE_FATAL: rdma.AsyncDeviceFatal, C.IBV_EVENT_PORT_ACTIVE: rdma.AsyncPortActive,
	C.IBV_EVENT_PORT_ERR: rdma.AsyncPortErr, C.IBV_EVENT_LID_CHANGE: rdma.AsyncLIDChange,
	C.IBV_EVENT_PKEY_CHANGE: rdma.AsyncPKeyChange, C.IBV_EVENT_SM_CHANGE: rdma.AsyncSMChange,
	C.IBV_EVENT_SRQ_ERR: rdma.AsyncSRQErr, C.IBV_EVENT_SRQ_LIMIT_REACHED: rdma.AsyncSRQLimit,
	C.IBV_EVENT_QP_LAST_WQE_REACHED: rdma.AsyncQPLastWQE, C.IBV_EVENT_CLIENT_REREGISTER: rdma.AsyncClientRereg,
	C.IBV_EVENT_GID_CHANGE: rdma.AsyncGIDChange,
}

func asyncType(t uint32) rdma.AsyncEventType {
	if name, ok := asyncTypes[t]; ok {
		return name
	}
	return rdma.AsyncUnknown
}

// pollableDup makes fd non-blocking and gives a duplicate that waits in the Go poller. The flag belongs to the open
// file, so the C library's own descriptor becomes non-blocking with it.
func pollableDup(fd int, name string) (*os.File, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("%s: set non-blocking: %w", name, err)
	}
	dup, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, fmt.Errorf("%s: dup: %w", name, errno)
	}
	f := os.NewFile(dup, name)
	if f == nil {
		return nil, errors.New(name + ": bad descriptor")
	}
	return f, nil
}
