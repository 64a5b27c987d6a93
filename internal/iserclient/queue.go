package iserclient

import (
	"fmt"
	"time"

	"iserd/rdma"
)

// signalEvery: of so many sends one asks for a completion when they are batched. It is below half the slots, so that one is
// always under way when none is free.
const signalEvery = 16

// queue holds the work requests until they are posted.
type queue struct {
	post   [1]rdma.QPPost
	sends  []rdma.SendWR
	recvs  []rdma.RecvWR
	sge    [][2]rdma.SGE // by send slot: headers, and data that lies elsewhere
	rsge   [][1]rdma.SGE // by receive slot
	gather int
	batch  bool
	// A ring of the slots that were sent since the last completion was asked for or came, in order.
	order       []uint32
	first, used int
	every       int
	unsignaled  int
}

func (q *queue) init(o Options, recvs int) {
	q.sends, q.recvs = make([]rdma.SendWR, 0, o.Sends), make([]rdma.RecvWR, 0, recvs)
	q.sge, q.rsge = make([][2]rdma.SGE, o.Sends), make([][1]rdma.SGE, recvs)
	q.gather, q.every = 1, 1
	if q.batch = o.Batch; q.batch {
		q.gather, q.every = 2, max(1, min(signalEvery, o.Sends/2))
	}
	q.order = make([]uint32, o.Sends)
}

func (q *queue) recv(slot int, b []byte, key uint32) {
	q.rsge[slot][0] = rdma.SGE{Addr: rdma.AddrOf(b), Length: uint32(len(b)), LKey: key}
	q.recvs = append(q.recvs, rdma.RecvWR{ID: uint64(slot), SGE: q.rsge[slot][:]})
}

// send queues b and, if it is not empty, what data says.
func (q *queue) send(slot uint32, b []byte, key uint32, data rdma.SGE) {
	q.sge[slot] = [2]rdma.SGE{{Addr: rdma.AddrOf(b), Length: uint32(len(b)), LKey: key}, data}
	list := q.sge[slot][:1]
	if data.Length > 0 {
		list = q.sge[slot][:]
	}
	wr := rdma.SendWR{ID: sendBit | uint64(slot), Op: rdma.OpSend, SGE: list}
	if q.unsignaled++; q.unsignaled >= q.every {
		q.unsignaled, wr.Flags = 0, rdma.SendSignaled
	}
	q.sends = append(q.sends, wr)
	q.order[(q.first+q.used)%len(q.order)] = slot
	q.used++
}

// sent frees a slot whose completion came, and those sent before it.
func (q *queue) sent(slot uint32, free []uint32) []uint32 {
	for q.used > 0 {
		s := q.order[q.first]
		q.first = (q.first + 1) % len(q.order)
		q.used--
		free = append(free, s)
		if s == slot {
			break
		}
	}
	return free
}

// Flush posts what is queued. A failure to post ends a connection that batches.
func (c *Conn) Flush() error {
	q := &c.queue
	if len(q.sends) == 0 && len(q.recvs) == 0 {
		return nil
	}
	q.post[0] = rdma.QPPost{QP: c.qp, Recvs: q.recvs, Sends: q.sends}
	c.dev.Post(q.post[:])
	p := &q.post[0]
	c.posted += p.RecvsPosted
	err := p.Err
	if err != nil {
		what := "receive"
		if p.RecvsPosted == len(q.recvs) {
			what = "send"
		}
		err = fmt.Errorf("iserclient: post %s: %w", what, err)
		for _, wr := range q.sends[p.SendsPosted:] { // the last in the ring
			q.used--
			c.sendFree = append(c.sendFree, uint32(wr.ID))
		}
		if q.batch && c.failed == nil {
			c.failed = err
		}
	}
	q.sends, q.recvs = q.sends[:0], q.recvs[:0]
	return err
}

// takeSend waits for a free send slot.
func (c *Conn) takeSend() (uint32, error) {
	for deadline := time.Now().Add(c.opt.Timeout); len(c.sendFree) == 0; {
		if err := c.progress(deadline); err != nil {
			return 0, err
		}
	}
	return c.popSend(), nil
}

func (c *Conn) popSend() uint32 {
	slot := c.sendFree[len(c.sendFree)-1]
	c.sendFree = c.sendFree[:len(c.sendFree)-1]
	return slot
}

// postSend sends n bytes of a send slot, or queues them.
func (c *Conn) postSend(slot uint32, n int) error {
	c.queue.send(slot, c.sendAt(slot)[:n], c.mr.LKey(), rdma.SGE{})
	if c.opt.Batch {
		return nil
	}
	return c.Flush()
}
