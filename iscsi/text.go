package iscsi

import (
	"bytes"

	"iserd/iscsi/pdu"
)

// maxText bounds what an initiator may say in one text negotiation.
const maxText = 64 << 10

// textState is a text negotiation in full feature phase; there is one at a time.
type textState struct {
	active   bool
	itt, ttt uint32
	in       []byte // of a request that goes on (C bit)
	out      []byte // of an answer that does not fit one response
	sending  bool   // out goes on with the next request
	final    bool   // the request that is answered had the F bit
}

// textRequest answers a Text Request: SendTargets, and keys that may change in full feature phase.
func (c *Connection) textRequest(ctl *Control, immediate bool) {
	req := ctl.BHS.TextRequest()
	ts := &c.text
	c.answered(immediate)
	bad := func() {
		*ts = textState{}
		c.reject(ctl.BHS, pdu.RejectProtocolError)
	}
	if ttt := req.TargetTransferTag(); ttt == pdu.ReservedTag {
		// RFC 7143: a request without a transfer tag begins anew, and resets what was under way.
		*ts = textState{active: true, itt: req.InitiatorTaskTag()}
	} else if !ts.active || ttt != ts.ttt || req.InitiatorTaskTag() != ts.itt {
		bad()
		return
	}
	if ts.sending {
		if len(ctl.Data) > 0 || req.Continue() {
			bad() // RFC 7143: the rest of an answer is fetched with empty requests
			return
		}
		c.sendText()
		return
	}
	if len(ts.in)+len(ctl.Data) > maxText {
		bad()
		return
	}
	ts.in = append(ts.in, ctl.Data...)
	if req.Continue() {
		// An empty response asks for the rest, also after an empty part (known-faults B8).
		ts.final = false
		c.sendText()
		return
	}
	if err := c.answerText(ts); err != nil {
		bad()
		return
	}
	ts.in = nil
	ts.final = req.Final()
	c.sendText()
}

// answerText answers the keys of a whole request.
func (c *Connection) answerText(ts *textState) error {
	asked := false
	changed := false
	err := pdu.ParseKeys(ts.in, func(key, value []byte) error {
		k := string(key)
		if k == "SendTargets" {
			if asked {
				ts.out = pdu.AppendKey(ts.out, k, "Reject") // once is enough
				return nil
			}
			asked = true
			ts.out = c.sendTargets(ts.out, pdu.NormalizeName(string(value)))
			return nil
		}
		before := len(ts.out)
		if a := c.machine.FullFeatureKey(k, value); a != "" {
			ts.out = pdu.AppendKey(ts.out, k, a)
		}
		changed = changed || len(ts.out) == before
		return nil
	})
	if changed {
		if p := c.machine.Params(); p != c.params {
			c.params = p
			c.dm.NoticeKeyValues(p)
		}
	}
	return err
}

// sendText sends the next part of the answer: all of it, or as much as the initiator takes, up to the end of a pair if
// one ends there. The task tag stays that of the request; a transfer tag stands for the rest.
func (c *Connection) sendText() {
	ts := &c.text
	part := ts.out
	ts.sending = false
	if limit := c.dm.MaxSendDataSegmentLength(); len(part) > limit {
		part = part[:limit]
		if i := bytes.LastIndexByte(part, 0); i >= 0 {
			part = part[:i+1]
		}
		ts.sending = true
	}
	ts.out = ts.out[len(part):]
	r := c.out.TextResponse()
	r.Init()
	r.SetInitiatorTaskTag(ts.itt)
	r.SetContinue(ts.sending)
	final := ts.final && !ts.sending
	r.SetFinal(final)
	r.SetTargetTransferTag(pdu.ReservedTag)
	if !final {
		if c.textTag++; c.textTag == pdu.ReservedTag {
			c.textTag = 0
		}
		ts.ttt = c.textTag
		r.SetTargetTransferTag(ts.ttt)
	}
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, part, nil)
	if final {
		*ts = textState{}
	}
}
