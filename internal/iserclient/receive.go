package iserclient

import (
	"bytes"
	"fmt"
	"runtime"
	"time"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// progress reaps what there is, or waits for something until the deadline.
func (c *Conn) progress(deadline time.Time) error {
	if err := c.Flush(); err != nil {
		return err
	}
	n, err := c.reap()
	if n > 0 || err != nil {
		return err
	}
	if c.down.Load() {
		// What came before the disconnect counts.
		if n, err := c.reap(); n > 0 || err != nil {
			return err
		}
		return ErrDisconnected
	}
	left := time.Until(deadline)
	if left <= 0 {
		return ErrTimeout
	}
	if !c.opt.Sleep {
		runtime.Gosched()
		return nil
	}
	if err := c.cq.Arm(); err != nil {
		return err
	}
	if n, err := c.reap(); n > 0 || err != nil {
		return err
	}
	_, err = c.cc.Wait(left)
	return err
}

// reap takes completions and acts on each.
func (c *Conn) reap() (int, error) {
	if c.failed != nil {
		return 0, c.failed
	}
	n, err := c.cq.Poll(c.wcs[:])
	if err != nil {
		return 0, err
	}
	for i := range c.wcs[:n] {
		if err := c.complete(&c.wcs[i]); err != nil && c.failed == nil {
			c.failed = err
		}
	}
	for len(c.owed) > 0 && len(c.sendFree) > 0 && c.failed == nil {
		ping := c.owed[0]
		c.owed = c.owed[:copy(c.owed, c.owed[1:])]
		c.failed = c.pong(ping)
	}
	return n, c.failed
}

func (c *Conn) complete(wc *rdma.WC) error {
	if wc.ID&sendBit != 0 {
		if wc.Status != rdma.StatusSuccess {
			return c.broken("send", wc)
		}
		c.sendFree = c.queue.sent(uint32(wc.ID), c.sendFree)
		return nil
	}
	c.posted--
	if wc.Status != rdma.StatusSuccess {
		return c.broken("receive", wc)
	}
	slot := int(wc.ID)
	p := &c.pdu
	*p = PDU{}
	if err := parse(c.recvAt(slot)[:wc.ByteLen], p); err != nil {
		return err
	}
	if wc.WithInv {
		p.Invalidated = wc.InvRKey
		c.Invalidations++
		if !c.inv {
			return fmt.Errorf("iserclient: STag %#x was invalidated; we had said that we do not take that", wc.InvRKey)
		}
	}
	if err := c.accept(p); err != nil {
		return err
	}
	return c.repost(slot)
}

// broken says that the connection is no more.
func (c *Conn) broken(what string, wc *rdma.WC) error {
	if wc.Status == rdma.StatusFlushed && c.down.Load() {
		return ErrDisconnected
	}
	return fmt.Errorf("iserclient: %s: %w", what, wc.Err())
}

// repost posts a receive in place of the one that was used.
func (c *Conn) repost(slot int) error {
	switch {
	case slot >= longCount:
		return c.postRecv(slot)
	case !c.fullFeature || c.Names.SessionType != 0:
		return nil // one receive for each request: posted with it
	case c.opt.LateReceives && !c.settled:
		return c.postShort()
	}
	return nil
}

// accept takes one PDU.
func (c *Conn) accept(p *PDU) error {
	if p.Hello != nil {
		c.inbox = append(c.inbox, &PDU{Hello: bytes.Clone(p.Hello)})
		return nil
	}
	if err := c.Take(&p.BHS); err != nil {
		return err
	}
	itt := p.BHS.InitiatorTaskTag()
	switch op := p.BHS.Opcode(); op {
	case pdu.OpSCSIResponse:
		t := c.task(itt)
		if t == nil {
			return fmt.Errorf("iserclient: response for task %#x, which is none of ours", itt)
		}
		return t.finish(c, p)
	case pdu.OpDataIn, pdu.OpR2T, pdu.OpSNACK:
		return fmt.Errorf("iserclient: %s over iSER", op)
	case pdu.OpNOPIn:
		if itt == pdu.ReservedTag && p.BHS.NOPIn().TargetTransferTag() != pdu.ReservedTag && !c.opt.NoPong {
			if c.session == nil {
				c.keep(&c.Unsolicited, p)
			}
			c.keep(&c.owed, p)
			return nil
		}
	}
	if p.Invalidated != 0 {
		return fmt.Errorf("iserclient: STag %#x invalidated by %s", p.Invalidated, p.BHS.Opcode())
	}
	if c.session != nil {
		if err := initiator.Unsolicited(&p.BHS, p.Data); err != nil {
			return err
		}
	}
	switch op := p.BHS.Opcode(); {
	case op == pdu.OpReject, op == pdu.OpAsyncMessage, itt == pdu.ReservedTag:
		c.keep(&c.Unsolicited, p)
	default:
		c.keep(&c.inbox, p)
	}
	return nil
}

func (c *Conn) keep(list *[]*PDU, p *PDU) {
	*list = append(*list, &PDU{BHS: p.BHS, Data: bytes.Clone(p.Data)})
}

// Receive waits for the next PDU that is neither the response of a task nor unsolicited.
func (c *Conn) Receive() (*PDU, error) {
	for deadline := time.Now().Add(c.opt.Timeout); len(c.inbox) == 0; {
		if err := c.progress(deadline); err != nil {
			return nil, err
		}
	}
	p := c.inbox[0]
	c.inbox = c.inbox[:copy(c.inbox, c.inbox[1:])]
	return p, nil
}

// AwaitUnsolicited waits until there are n PDUs in Unsolicited.
func (c *Conn) AwaitUnsolicited(n int) error {
	for deadline := time.Now().Add(c.opt.Timeout); len(c.Unsolicited) < n; {
		if err := c.progress(deadline); err != nil {
			return err
		}
	}
	return nil
}

// Idle reaps for a while, and gives back the first error.
func (c *Conn) Idle(d time.Duration) error {
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		if err := c.Flush(); err != nil {
			return err
		}
		if n, err := c.reap(); err != nil {
			return err
		} else if n == 0 {
			time.Sleep(min(d, 200*time.Microsecond))
		}
		if c.down.Load() {
			return ErrDisconnected
		}
	}
	return nil
}
