package softroce

import (
	"syscall"

	"iserd/rdma"
)

// Post implements [rdma.Device].
func (d *device) Post(posts []rdma.QPPost) {
	for i := range posts {
		p := &posts[i]
		p.RecvsPosted, p.SendsPosted = 0, 0
		q, ok := p.QP.(*qp)
		if !ok || q.dev != d {
			p.Err = invalid("post", "a queue pair of another device")
			continue
		}
		q.mu.Lock()
		p.Err = nil
		for j := range p.Recvs {
			if p.Err = q.postRecv(&p.Recvs[j]); p.Err != nil {
				break
			}
			p.RecvsPosted++
		}
		if p.Err == nil {
			for j := range p.Sends {
				if p.Err = q.postSend(&p.Sends[j]); p.Err != nil {
					break
				}
				p.SendsPosted++
			}
		}
		var sock *socket
		switch q.state {
		case qpReady:
			if p.SendsPosted > 0 {
				q.pump()
				sock = q.path.sock
			}
		case qpError:
			q.flush()
		}
		q.mu.Unlock()
		if sock != nil {
			sock.flush()
		}
	}
}

// Errors of posts are made once: a full queue is no reason to allocate.
var (
	errRecvFull  = error(&rdma.OpError{Op: "post_recv", Errno: syscall.ENOMEM, Hint: "the queue is full"})
	errSendFull  = error(&rdma.OpError{Op: "post_send", Errno: syscall.ENOMEM, Hint: "the queue is full"})
	errRecvSGE   = invalid("post_recv", "more pieces than the queue pair was made for")
	errSendSGE   = invalid("post_send", "more pieces than the queue pair was made for")
	errSendState = invalid("post_send", "the queue pair is not connected")
	errSendOp    = invalid("post_send", "no such operation")
	errSendLong  = invalid("post_send", "the message is longer than the device's limit")
	errInline    = invalid("post_send", "more inline data than the queue pair was made for")
	errInlineMem = error(&rdma.OpError{Op: "post_send", Errno: syscall.EFAULT, Hint: "inline data must lie in a registered region here"})
)

func (q *qp) postRecv(wr *rdma.RecvWR) error {
	r := &q.rq
	switch {
	case q.state == qpClosed:
		return rdma.ErrClosed
	case int(q.recvHeld.Load()) >= len(r.ring):
		return errRecvFull
	case len(wr.SGE) > r.sge:
		return errRecvSGE
	}
	i := int(r.tail % uint64(len(r.ring)))
	w := &r.ring[i]
	total := uint64(0)
	for j := range wr.SGE {
		total += uint64(wr.SGE[j].Length)
	}
	*w = recvWQE{id: wr.ID, nsge: uint8(len(wr.SGE)), length: uint32(min(total, 1<<32-1))}
	copy(r.sges[i*r.sge:], wr.SGE)
	r.tail++
	q.recvHeld.Add(1)
	return nil
}

func (q *qp) postSend(wr *rdma.SendWR) error {
	s := &q.sq
	switch {
	case q.state == qpClosed:
		return rdma.ErrClosed
	case q.state == qpInit:
		return errSendState
	case wr.Op > rdma.OpRDMARead:
		return errSendOp
	case int(q.sendHeld.Load()) >= len(s.ring):
		return errSendFull
	case len(wr.SGE) > s.sge:
		return errSendSGE
	}
	total := uint64(0)
	for j := range wr.SGE {
		total += uint64(wr.SGE[j].Length)
	}
	if total > maxMsgSize {
		return errSendLong
	}
	i := int(s.tail % uint64(len(s.ring)))
	w := &s.ring[i]
	*w = sendWQE{id: wr.ID, op: wr.Op, signaled: q.signalAll || wr.Flags&rdma.SendSignaled != 0, solicited: wr.Flags&rdma.SendSolicited != 0,
		fence: wr.Flags&rdma.SendFence != 0, inv: wr.InvRKey, raddr: wr.RemoteAddr, rkey: wr.RKey, length: uint32(total), nsge: uint8(len(wr.SGE))}
	if wr.Flags&rdma.SendInline != 0 && wr.Op != rdma.OpRDMARead {
		if int(total) > q.caps.MaxInline {
			return errInline
		}
		if !q.copyInline(s.inline[i*q.caps.MaxInline:][:total], wr.SGE) {
			return errInlineMem
		}
		w.inline = true
	} else {
		copy(s.sges[i*s.sge:], wr.SGE)
	}
	if q.state == qpReady {
		w.first = s.post
		s.post = (s.post + packets(w.length, q.path.mtu)) & psnMask
		w.last = (s.post - 1) & psnMask
	}
	s.tail++
	q.sendHeld.Add(1)
	return nil
}

// copyInline copies the data of a request during its post. Inline data comes without a key, so its memory is found by
// its address.
func (q *qp) copyInline(dst []byte, sges []rdma.SGE) bool {
	t := &q.dev.mrs
	for i := range sges {
		g := &sges[i]
		if g.Length == 0 {
			continue
		}
		key, ok := t.byAddr.LookupAddr(g.Addr, uint64(g.Length))
		if !ok {
			return false
		}
		m := t.find(key)
		if m == nil {
			return false
		}
		b, m, ok := t.acquire(m.pd, key, g.Addr, g.Length, 0)
		if !ok {
			return false
		}
		dst = dst[copy(dst, b):]
		m.release()
	}
	return true
}
