package iscsi

import "iserd/internal/serial"

// window is the command window of a session (RFC 7143). unanswered counts the non-immediate commands between their
// arrival and their answer; MaxCmdSN leaves room for depth of them, never more, so that what the initiator may send
// always finds a receive buffer and a task slot. MaxCmdSN never goes back.
type window struct {
	exp, max          serial.Number
	depth, unanswered uint32
}

func newWindow(first serial.Number, depth uint32) window {
	return window{exp: first, max: first.Add(depth - 1), depth: depth}
}

// deepen sets a larger depth.
func (w *window) deepen(depth uint32) {
	w.depth = depth
	w.raise()
}

func (w *window) raise() {
	if m := w.exp.Add(w.depth - w.unanswered - 1); w.max.Less(m) {
		w.max = m
	}
}

// take counts the command with CmdSN exp as received.
func (w *window) take() {
	w.exp = w.exp.Next()
	w.unanswered++
}

// answer counts one command as answered, which opens the window by one.
func (w *window) answer() {
	w.unanswered--
	w.raise()
}

// heldPDU is a non-immediate PDU that came before one with a lower CmdSN.
type heldPDU struct {
	present bool
	void    bool // the place of a command that was aborted before it came
	sn      serial.Number
	ctl     Control
}

// hold keeps a PDU until those before it are there. It happens only with initiators that send out of order, so the
// memory is made when it is needed; it is bounded by the window.
func (c *Connection) hold(sn serial.Number, ctl *Control) {
	h := c.heldAt(sn)
	if h.present {
		c.node.count.ignored.Add(1) // a duplicate
		return
	}
	bhs := *ctl.BHS
	*h = heldPDU{present: true, sn: sn, ctl: Control{BHS: &bhs, Private: ctl.Private, DataDigestError: ctl.DataDigestError,
		AHS: append([]byte(nil), ctl.AHS...)}}
	if len(ctl.Data) > 0 {
		h.ctl.Data, h.ctl.Handle, h.ctl.Retain = ctl.Data, ctl.Handle, true
		ctl.Retain = true
	}
	c.heldCount++
}

// holdVoid makes the command with this CmdSN count as received when its turn comes.
func (c *Connection) holdVoid(sn serial.Number) {
	if h := c.heldAt(sn); !h.present {
		*h = heldPDU{present: true, void: true, sn: sn}
		c.heldCount++
	}
	c.releaseHeld()
}

func (c *Connection) heldAt(sn serial.Number) *heldPDU {
	if c.held == nil {
		c.held = make([]heldPDU, c.win.depth)
	}
	return &c.held[sn.Uint32()%uint32(len(c.held))]
}

// releaseHeld works on the PDUs whose turn has come.
func (c *Connection) releaseHeld() {
	for c.heldCount > 0 && c.phase == phaseFull {
		h := c.heldAt(c.win.exp)
		if !h.present || h.sn != c.win.exp {
			return
		}
		p := *h
		*h = heldPDU{}
		c.heldCount--
		c.win.take()
		if p.void {
			c.win.answer()
			continue
		}
		c.dispatchHeld(&p.ctl)
	}
}

func (c *Connection) dispatchHeld(ctl *Control) {
	retained := ctl.Retain
	ctl.Retain = false
	c.dispatch(ctl, false)
	if retained && !ctl.Retain {
		c.dm.ReleaseControl(ctl.Handle)
	}
}

// dropHeld gives back what is held when the connection ends.
func (c *Connection) dropHeld() {
	for i := range c.held {
		if h := &c.held[i]; h.present && h.ctl.Retain {
			c.dm.ReleaseControl(h.ctl.Handle)
		}
	}
	c.held, c.heldCount = nil, 0
}
