//go:build linux && cgo && !nordma

package verbs

/*
#include <stdlib.h>
#include "shim_linux.h"
#cgo noescape iserd_post_batch
#cgo nocallback iserd_post_batch
*/
import "C"

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"unsafe"

	"iserd/rdma"
)

const (
	maxPosts = C.ISERD_MAX_POSTS
	maxRecvs = C.ISERD_MAX_RECVS
	maxSends = C.ISERD_MAX_SENDS
	maxSGEs  = C.ISERD_MAX_SGES
)

var errNotConnected = &rdma.OpError{Op: "ibv_post_send", Errno: syscall.EINVAL, Hint: "the queue pair is not connected yet"}

// batch is the C memory that one Post fills. One Post owns it at a time; a device makes as many as there are Posts at
// once, which is the number of shards.
type batch struct {
	c      *C.struct_iserd_batch
	handle C.uintptr_t
	owner  [maxPosts]int32 // the element of the caller's slice that each C element belongs to
	recvs  int
	sends  int
	sges   int

	crossings, doorbells, sent, received atomic.Uint64
}

func (d *device) takeBatch() *batch {
	d.batchMu.Lock()
	if n := len(d.free); n > 0 {
		b := d.free[n-1]
		d.free = d.free[:n-1]
		d.batchMu.Unlock()
		return b
	}
	b := &batch{c: (*C.struct_iserd_batch)(C.calloc(1, C.sizeof_struct_iserd_batch))}
	b.handle = C.uintptr_t(uintptr(unsafe.Pointer(b.c)))
	d.batches = append(d.batches, b)
	d.batchMu.Unlock()
	return b
}

func (d *device) giveBatch(b *batch) {
	d.batchMu.Lock()
	d.free = append(d.free, b)
	d.batchMu.Unlock()
}

func (d *device) freeBatches() {
	d.batchMu.Lock()
	defer d.batchMu.Unlock()
	for _, b := range d.batches {
		C.free(unsafe.Pointer(b.c))
	}
	d.batches, d.free = nil, nil
}

func (b *batch) addStats(s *Stats) {
	s.Posts += b.crossings.Load()
	s.Doorbells += b.doorbells.Load()
	s.Sends += b.sent.Load()
	s.Recvs += b.received.Load()
}

var sendOps = [...]uint32{
	rdma.OpSend: C.IBV_WR_SEND, rdma.OpSendWithInv: C.IBV_WR_SEND_WITH_INV,
	rdma.OpRDMAWrite: C.IBV_WR_RDMA_WRITE, rdma.OpRDMARead: C.IBV_WR_RDMA_READ,
}

// sendFlags maps each combination of flags.
var sendFlags = func() (t [16]C.uint) {
	for f := range t {
		for ours, theirs := range map[rdma.SendFlags]C.uint{
			rdma.SendSignaled: C.IBV_SEND_SIGNALED, rdma.SendInline: C.IBV_SEND_INLINE,
			rdma.SendFence: C.IBV_SEND_FENCE, rdma.SendSolicited: C.IBV_SEND_SOLICITED,
		} {
			if rdma.SendFlags(f)&ours != 0 {
				t[f] |= theirs
			}
		}
	}
	return t
}()

func (d *device) Post(posts []rdma.QPPost) {
	b := d.takeBatch()
	for i := range posts {
		p := &posts[i]
		p.RecvsPosted, p.SendsPosted, p.Err = 0, 0, nil
		qp, ok := p.QP.(*queuePair)
		switch {
		case !ok || qp.conn.dev != d:
			p.Err = &rdma.OpError{Op: "post", Errno: syscall.EINVAL, Hint: "not a queue pair of this device"}
		case qp.handle == 0:
			p.Err = rdma.ErrClosed
		default:
			d.queue(b, posts, i, qp)
		}
	}
	b.flush(posts)
	d.giveBatch(b)
}

// queue adds the work of posts[i], crossing over whenever the batch is full.
func (d *device) queue(b *batch, posts []rdma.QPPost, i int, qp *queuePair) {
	p := &posts[i]
	c := b.open(posts, i, qp)
	for k := range p.Recvs {
		r := &p.Recvs[k]
		if len(r.SGE) > qp.caps.MaxRecvSGE {
			b.refuse(posts, i, tooBig("receive with %d pieces, the queue pair allows %d", len(r.SGE), qp.caps.MaxRecvSGE))
			return
		}
		if b.recvs == maxRecvs || b.sges+len(r.SGE) > maxSGEs {
			b.flush(posts)
			if p.Err != nil {
				return
			}
			c = b.open(posts, i, qp)
		}
		w := &b.c.recv[b.recvs]
		w.wr_id = C.uint64_t(r.ID)
		w.num_sge = C.int(len(r.SGE))
		b.add(r.SGE)
		b.recvs++
		c.recvs++
	}
	if len(p.Sends) > 0 && !qp.conn.ready.Load() {
		// Drivers differ: some take the request and say EINVAL nevertheless.
		b.refuse(posts, i, errNotConnected)
		return
	}
	for k := range p.Sends {
		s := &p.Sends[k]
		if err := qp.checkSend(s); err != nil {
			b.refuse(posts, i, err)
			return
		}
		if b.sends == maxSends || b.sges+len(s.SGE) > maxSGEs {
			b.flush(posts)
			if p.Err != nil {
				return
			}
			c = b.open(posts, i, qp)
		}
		w := &b.c.send[b.sends]
		w.wr_id = C.uint64_t(s.ID)
		w.num_sge = C.int(len(s.SGE))
		w.opcode = sendOps[s.Op]
		w.send_flags = sendFlags[s.Flags&15]
		// The two unions: invalidate_rkey, and wr.rdma.
		binary.NativeEndian.PutUint32(w.anon0[:], s.InvRKey)
		binary.NativeEndian.PutUint64(w.wr[0:], s.RemoteAddr)
		binary.NativeEndian.PutUint32(w.wr[8:], s.RKey)
		b.add(s.SGE)
		b.sends++
		c.sends++
	}
}

// open starts the C element for posts[i].
func (b *batch) open(posts []rdma.QPPost, i int, qp *queuePair) *C.struct_iserd_post {
	if b.c.nposts == maxPosts {
		b.flush(posts)
	}
	n := b.c.nposts
	b.owner[n] = int32(i)
	b.c.nposts++
	c := &b.c.post[n]
	c.qp, c.recvs, c.sends = C.uint64_t(qp.handle), 0, 0
	return c
}

func (b *batch) add(list []rdma.SGE) {
	for k := range list {
		s, g := &list[k], &b.c.sge[b.sges]
		g.addr, g.length, g.lkey = C.uint64_t(s.Addr), C.uint32_t(s.Length), C.uint32_t(s.LKey)
		b.sges++
	}
}

// refuse posts what was queued before the bad request, in order, and then reports it, unless something before failed.
func (b *batch) refuse(posts []rdma.QPPost, i int, err error) {
	b.flush(posts)
	if posts[i].Err == nil {
		posts[i].Err = err
	}
}

// flush crosses over and hands out the results.
func (b *batch) flush(posts []rdma.QPPost) {
	if b.recvs+b.sends > 0 {
		C.iserd_post_batch(b.handle)
		b.crossings.Add(1)
		b.doorbells.Add(uint64(b.c.doorbells))
		for n := range b.c.nposts {
			c, p := &b.c.post[n], &posts[b.owner[n]]
			p.RecvsPosted += int(c.recvs_done)
			p.SendsPosted += int(c.sends_done)
			b.received.Add(uint64(c.recvs_done))
			b.sent.Add(uint64(c.sends_done))
			switch {
			case c.recv_err != 0:
				p.Err = opError("ibv_post_recv", C.int(c.recv_err))
			case c.send_err != 0:
				p.Err = opError("ibv_post_send", C.int(c.send_err))
			}
		}
	}
	b.c.nposts = 0
	b.recvs, b.sends, b.sges = 0, 0, 0
}

// checkSend refuses what would read beyond arrays, or what drivers report as a bare EINVAL.
func (qp *queuePair) checkSend(s *rdma.SendWR) error {
	if int(s.Op) >= len(sendOps) {
		return &rdma.OpError{Op: "ibv_post_send", Errno: syscall.EINVAL, Hint: "operation " + s.Op.String()}
	}
	limit := qp.caps.MaxSendSGE
	if s.Op == rdma.OpRDMARead {
		limit = qp.readSGE
	}
	if len(s.SGE) > limit {
		return tooBig("%s with %d pieces, the queue pair allows %d", s.Op, len(s.SGE), limit)
	}
	if s.Flags&rdma.SendInline != 0 {
		n := 0
		for k := range s.SGE {
			n += int(s.SGE[k].Length)
		}
		if n > qp.caps.MaxInline {
			return tooBig("%d bytes inline, the queue pair allows %d", n, qp.caps.MaxInline)
		}
	}
	return nil
}
