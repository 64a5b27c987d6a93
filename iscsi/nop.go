package iscsi

import "iserd/iscsi/pdu"

// nopOut answers a ping of the initiator, or takes its answer to ours.
func (c *Connection) nopOut(ctl *Control, immediate bool) {
	in := ctl.BHS.NOPOut()
	if tag := in.TargetTransferTag(); tag != pdu.ReservedTag && c.pinging && tag == c.pingTag {
		c.pinging = false
		c.rearm()
	}
	if in.InitiatorTaskTag() == pdu.ReservedTag {
		// An answer, or one that nobody waits for: nothing to say, whatever it carries (known-faults B128). It is always
		// immediate (checked), so the window does not know it.
		return
	}
	c.answered(immediate)
	out := c.out.NOPIn()
	out.Init()
	out.SetInitiatorTaskTag(in.InitiatorTaskTag())
	out.SetTargetTransferTag(pdu.ReservedTag)
	out.SetLUN(in.LUN())
	c.stamp(&c.out)
	// RFC 7143: the ping data is returned up to the initiator's MaxRecvDataSegmentLength; over iSER 128 bytes.
	data := ctl.Data
	if limit := c.dm.MaxSendDataSegmentLength(); len(data) > limit {
		data = data[:limit]
	}
	c.dm.SendControl(&c.out, data, nil)
}

// ping asks a silent initiator for a sign of life. One question at a time.
func (c *Connection) ping(now int64) {
	c.pinging = true
	c.pingSent = now
	if c.pingTag++; c.pingTag == pdu.ReservedTag {
		c.pingTag = 0
	}
	out := c.out.NOPIn()
	out.Init()
	out.SetInitiatorTaskTag(pdu.ReservedTag)
	out.SetTargetTransferTag(c.pingTag)
	c.stampOnly(&c.out)
	c.node.count.pings.Add(1)
	c.dm.SendControl(&c.out, nil, nil)
}
