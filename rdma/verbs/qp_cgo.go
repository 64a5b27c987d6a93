//go:build linux && cgo && !nordma

package verbs

/*
#include "shim_linux.h"
*/
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"iserd/rdma"
)

type queuePair struct {
	conn       *conn
	pd         *protectionDomain
	send, recv *completionQueue
	c          *C.struct_ibv_qp
	handle     C.uintptr_t // 0 when closed
	num        uint32
	caps       rdma.QPCaps
	readSGE    int // pieces of one RDMA READ: iWARP devices have fewer than for a send
}

func (c *conn) CreateQP(pd rdma.PD, cfg rdma.QPConfig) (rdma.QP, error) {
	qp, err := c.newQP(pd, cfg)
	if err != nil {
		return nil, err
	}
	return qp, nil
}

func (c *conn) newQP(pdi rdma.PD, cfg rdma.QPConfig) (*queuePair, error) {
	d := c.dev
	if d == nil {
		return nil, &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EINVAL, Hint: "the connection has no device yet"}
	}
	if d.removed.Load() {
		return nil, d.gone()
	}
	pd, ok1 := pdi.(*protectionDomain)
	send, ok2 := cfg.SendCQ.(*completionQueue)
	recv, ok3 := cfg.RecvCQ.(*completionQueue)
	if !ok1 || !ok2 || !ok3 || pd.d != d || send.ch.d != d || recv.ch.d != d {
		return nil, &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EINVAL,
			Hint: "protection domain and completion queues must be of the connection's device " + d.name}
	}
	if send.handle == 0 || recv.handle == 0 {
		return nil, rdma.ErrClosed
	}
	if err := d.checkConfig(&cfg); err != nil {
		return nil, err
	}
	c.ch.fetchMu.Lock()
	defer c.ch.fetchMu.Unlock()
	pd.mu.Lock()
	defer pd.mu.Unlock()
	switch {
	case c.id == nil || pd.c == nil:
		return nil, rdma.ErrClosed
	case c.qp != nil:
		return nil, &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EEXIST, Hint: "the connection has a queue pair"}
	}
	qp := &queuePair{conn: c, pd: pd, send: send, recv: recv}
	var err error
	if qp.caps, err = c.create(pd, &cfg); err != nil {
		return nil, err
	}
	qp.c = c.id.qp
	qp.handle = C.uintptr_t(uintptr(unsafe.Pointer(qp.c)))
	qp.num = uint32(qp.c.qp_num)
	qp.readSGE = qp.caps.MaxSendSGE
	if d.static.transport == rdma.TransportIWARP {
		qp.readSGE = min(qp.readSGE, d.attr.MaxSGERead)
	}
	pd.pairs.Add(1)
	send.pairs.Add(1)
	recv.pairs.Add(1)
	c.qp = qp
	return qp, nil
}

// inlineKey is what the inline data that a device grants can depend on.
type inlineKey struct{ ask, wr, sge int }

// create makes the queue pair with as much inline data as the device grants, up to what was asked for. No attribute tells
// that limit, devices just refuse; so search once and remember.
func (c *conn) create(pd *protectionDomain, cfg *rdma.QPConfig) (rdma.QPCaps, error) {
	d := c.dev
	key := inlineKey{cfg.MaxInline, cfg.MaxSendWR, cfg.MaxSendSGE}
	ask := cfg.MaxInline
	d.inlineMu.Lock()
	defer d.inlineMu.Unlock()
	if n, ok := d.inline[key]; ok {
		ask = n
	}
	caps, rc := c.try(pd, cfg, ask)
	if rc == 0 || ask == 0 || rc != -C.EINVAL && rc != -C.ENOMEM {
		return caps, opError("rdma_create_qp", rc)
	}
	good, bad := 0, ask
	for bad-good > 4 {
		ask = (good + bad) / 2
		if caps, rc = c.try(pd, cfg, ask); rc != 0 {
			bad = ask
			continue
		}
		// What was granted, often more than was asked for, is good by definition.
		good = max(ask, min(caps.MaxInline, bad-1))
		if rc = C.iserd_destroy_qp(c.id); rc != 0 {
			return caps, opError("ibv_destroy_qp", rc)
		}
	}
	if caps, rc = c.try(pd, cfg, good); rc == 0 {
		d.inline[key] = good
	}
	return caps, opError("rdma_create_qp", rc)
}

func (c *conn) try(pd *protectionDomain, cfg *rdma.QPConfig, inline int) (rdma.QPCaps, C.int) {
	attr := C.struct_ibv_qp_init_attr{
		send_cq: cfg.SendCQ.(*completionQueue).c, recv_cq: cfg.RecvCQ.(*completionQueue).c, qp_type: C.IBV_QPT_RC,
		cap: C.struct_ibv_qp_cap{
			max_send_wr: C.uint32_t(max(1, cfg.MaxSendWR)), max_recv_wr: C.uint32_t(max(1, cfg.MaxRecvWR)),
			max_send_sge: C.uint32_t(max(1, cfg.MaxSendSGE)), max_recv_sge: C.uint32_t(max(1, cfg.MaxRecvSGE)),
			max_inline_data: C.uint32_t(inline),
		},
	}
	if cfg.SignalAll {
		attr.sq_sig_all = 1
	}
	rc := C.iserd_create_qp(c.id, pd.c, &attr)
	return rdma.QPCaps{
		MaxSendWR: int(attr.cap.max_send_wr), MaxRecvWR: int(attr.cap.max_recv_wr),
		MaxSendSGE: int(attr.cap.max_send_sge), MaxRecvSGE: int(attr.cap.max_recv_sge), MaxInline: int(attr.cap.max_inline_data),
	}, rc
}

func (d *device) checkConfig(cfg *rdma.QPConfig) error {
	for _, l := range [...]struct {
		what       string
		ask, limit int
	}{
		{"send work requests", cfg.MaxSendWR, d.attr.MaxQPWR},
		{"receive work requests", cfg.MaxRecvWR, d.attr.MaxQPWR},
		{"pieces per send", cfg.MaxSendSGE, d.attr.MaxSGE},
		{"pieces per receive", cfg.MaxRecvSGE, d.attr.MaxSGE},
	} {
		if l.ask > l.limit {
			return tooBig("queue pair with %d %s, device %s allows %d", l.ask, l.what, d.name, l.limit)
		}
		if l.ask < 0 {
			return &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EINVAL, Hint: "negative number of " + l.what}
		}
	}
	if cfg.MaxInline < 0 {
		return &rdma.OpError{Op: "rdma_create_qp", Errno: syscall.EINVAL, Hint: "negative MaxInline"}
	}
	return nil
}

func (qp *queuePair) Num() uint32       { return qp.num }
func (qp *queuePair) Caps() rdma.QPCaps { return qp.caps }

func (qp *queuePair) SetError() error {
	if qp.handle == 0 {
		return rdma.ErrClosed
	}
	rc := C.iserd_qp_error(qp.c)
	if rc == 0 {
		qp.conn.ready.Store(true)
	}
	return opError("ibv_modify_qp(ERR)", rc)
}

func (qp *queuePair) SetMinRNRTimer(code uint8) error {
	if qp.handle == 0 {
		return rdma.ErrClosed
	}
	if code > 31 {
		return &rdma.OpError{Op: "ibv_modify_qp(MIN_RNR_TIMER)", Errno: syscall.EINVAL, Hint: "the code has five bits"}
	}
	err := opError("ibv_modify_qp(MIN_RNR_TIMER)", C.iserd_qp_rnr_timer(qp.c, C.uint8_t(code)))
	if err != nil && qp.conn.dev.static.transport == rdma.TransportIWARP {
		// iWARP has no RNR NAK: TCP holds the message back.
		return errors.Join(rdma.ErrUnsupported, err)
	}
	return err
}

func (qp *queuePair) Close() error {
	if qp.handle == 0 {
		return nil
	}
	c := qp.conn
	c.ch.fetchMu.Lock()
	defer c.ch.fetchMu.Unlock()
	rc := C.iserd_destroy_qp(c.id)
	if rc == -C.EBUSY {
		return opError("ibv_destroy_qp", rc)
	}
	qp.handle, qp.c, c.qp = 0, nil, nil
	qp.pd.pairs.Add(-1)
	qp.send.pairs.Add(-1)
	qp.recv.pairs.Add(-1)
	if c.dev.removed.Load() {
		return nil
	}
	return opError("ibv_destroy_qp", rc)
}
