package iscsi

import "iserd/iscsi/pdu"

// stamp gives a response its numbers and uses up a StatSN. The three fields lie at the same place in every PDU that a
// target sends.
func (c *Connection) stamp(b *pdu.BHS) {
	n := b.NOPIn()
	n.SetStatSN(c.statSN)
	n.SetExpCmdSN(c.win.exp)
	n.SetMaxCmdSN(c.win.max)
	c.statSN = c.statSN.Next()
}

// stampOnly gives a PDU that is no response to anything its numbers: it carries the next StatSN without using it.
func (c *Connection) stampOnly(b *pdu.BHS) {
	c.stamp(b)
	c.statSN = c.statSN.Add(^uint32(0))
}

// answered is called once for each request, before its answer is stamped: a non-immediate one leaves the window.
func (c *Connection) answered(immediate bool) {
	if !immediate {
		c.win.answer()
	}
}

// reject answers a PDU with a Reject that carries its header. AHS and data are left out: the header says which it was.
func (c *Connection) reject(bad *pdu.BHS, reason pdu.RejectReason) {
	c.node.count.rejects.Add(1)
	r := c.out.Reject()
	r.Init()
	r.SetReason(reason)
	r.SetInitiatorTaskTag(pdu.ReservedTag)
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, bad[:], nil)
}
