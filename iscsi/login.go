package iscsi

import (
	"fmt"

	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// loginPDU takes a PDU in the login phase.
func (c *Connection) loginPDU(ctl *Control) {
	b := ctl.BHS
	if b.Opcode() != pdu.OpLoginRequest {
		c.notLogin(b)
		return
	}
	req := b.LoginRequest()
	if !c.begun {
		c.begun = true
		c.node.heard(c)
		// The leading login says where CmdSN begins. Until full feature phase one command is enough.
		c.win = newWindow(req.CmdSN(), 1)
	}
	switch {
	case ctl.DataDigestError:
		c.refuse(login.StatusInitiatorError, "data digest error during login")
		return
	case c.overload:
		c.machine.Request(req, nil) // for the response's header
		c.refuse(login.StatusOutOfResources, "too many connections are logging in")
		return
	}
	r := c.machine.Request(req, ctl.Data)
	c.names = c.machine.Names()
	switch r.State {
	case login.StateFailed:
		c.refuseWith(r)
	case login.StateMore:
		c.loginResponse(&r)
	case login.StateComplete:
		c.loginComplete(&r)
	}
}

// notLogin ends a connection that sends something else before it has logged in: with one Login Response if it is a PDU
// that an initiator may send at all, without a word otherwise (known-faults B1).
func (c *Connection) notLogin(b *pdu.BHS) {
	op := b.Opcode()
	if !op.FromInitiator() {
		c.end(endLost, fmt.Sprintf("the first bytes are no iSCSI request (%v)", op))
		return
	}
	cause := fmt.Sprintf("a %v before the end of login", op)
	if c.begun {
		c.refuse(login.StatusInvalidDuringLogin, cause)
		return
	}
	r := c.out.LoginResponse()
	r.Init()
	r.SetInitiatorTaskTag(b.InitiatorTaskTag())
	c.sendRefusal(login.StatusInvalidDuringLogin)
	c.end(endLost, cause)
}

func (c *Connection) sendRefusal(s login.Status) {
	r := c.out.LoginResponse()
	r.SetStatusClass(s.Class())
	r.SetStatusDetail(s.Detail())
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, nil, nil)
}

// resolve tells the login machine what there is to say of the names: it is the one place where a login is allowed.
func (c *Connection) resolve(names login.Names) login.Decision {
	c.names = names
	refuse := func(s login.Status, format string, args ...any) login.Decision {
		return login.Decision{Status: s, Cause: fmt.Sprintf(format, args...)}
	}
	if names.SessionType == login.SessionDiscovery {
		if names.TSIH != 0 {
			return refuse(login.StatusSessionDoesNotExist, "a discovery session cannot be joined")
		}
		return login.Decision{}
	}
	n := c.node
	n.mu.Lock()
	t := n.targets[names.TargetName]
	reachable := t != nil && c.reachesLocked(t)
	closing := n.closing
	n.mu.Unlock()
	switch {
	case closing:
		return refuse(login.StatusServiceUnavailable, "the target is shutting down")
	case t == nil:
		return refuse(login.StatusNotFound, "there is no target %s", names.TargetName)
	case !reachable:
		return refuse(login.StatusNotFound, "target %s is not in the portal group of %s", names.TargetName, c.info.Portal)
	}
	if r := t.authorize(c.initiator()); r != nil {
		return login.Decision{Status: r.Status, Cause: "access list: " + r.Cause}
	}
	if names.TSIH != 0 {
		n.mu.Lock()
		s, cause := n.joinLocked(c, t)
		n.mu.Unlock()
		if s != login.StatusSuccess {
			return login.Decision{Status: s, Cause: cause}
		}
	}
	c.target = t
	d := login.Decision{TargetPortalGroupTag: t.cfg.PortalGroupTag, TargetAlias: t.cfg.Alias}
	if t.cfg.Authenticator != nil {
		d.Authenticator = t.cfg.Authenticator(c.initiator())
	}
	return d
}

// reachesLocked says that the portal which the connection came in on leads to the target. A portal that is not known
// (it is being opened) leads everywhere.
func (c *Connection) reachesLocked(t *Target) bool {
	known := false
	for _, p := range c.node.portals {
		if p.Addr == c.info.Portal {
			known = true
			if p.Tag == t.cfg.PortalGroupTag {
				return true
			}
		}
	}
	return !known
}

func (c *Connection) loginResponse(r *login.Result) {
	c.out = *r.Response.BHS()
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, r.Data, nil)
}

// refuse answers the login request at hand with a refusal.
func (c *Connection) refuse(s login.Status, cause string) { c.refuseWith(c.machine.Fail(s, cause)) }

func (c *Connection) refuseWith(r login.Result) {
	c.loginResponse(&r)
	c.refused(r.Status, r.Cause)
	c.end(endRefused, r.Cause)
}

// refused tells of a login that failed; status is success when no response says so.
func (c *Connection) refused(s login.Status, cause string) {
	c.node.count.refusals.Add(1)
	call(c.node.cfg.Events.Refused, RefusedEvent{Peer: c.peer(), Status: s, Cause: cause})
}

func (c *Connection) loginTimeout() {
	switch {
	case c.begun:
		cause := "no login within " + c.node.cfg.LoginTimeout.String()
		c.end(endLost, cause)
	default:
		c.end(endLost, "silent for "+c.node.cfg.LoginTimeout.String())
	}
}

// Resources is what a connection of a normal session takes, for a datamover that must size its queues before login.
func (n *Node) Resources() Resources {
	return Resources{Tasks: n.cfg.QueueDepth + taskSlack + immediateAllowance, Window: n.cfg.QueueDepth, Immediate: immediateAllowance}
}

// loginComplete takes what full feature phase needs and registers the session. The final response waits until the
// session that this one follows, if any, can write no more.
func (c *Connection) loginComplete(r *login.Result) {
	c.params = c.machine.Params()
	discovery := c.target == nil
	res := c.node.Resources()
	if discovery {
		res = Resources{Window: 1, Immediate: 1, Discovery: true}
	}
	if err := c.dm.AllocateConnectionResources(res); err != nil {
		c.refuse(login.StatusOutOfResources, err.Error())
		return
	}
	c.dm.NoticeKeyValues(c.params)
	c.makeTasks(res.Tasks)
	a := c.node.admit(c)
	if a.status != login.StatusSuccess {
		c.refuse(a.status, a.cause)
		return
	}
	c.session = a.session
	c.final = *r.Response.BHS()
	c.final.LoginResponse().SetTSIH(a.session.tsih)
	c.finalOut = append(c.finalOut[:0], r.Data...)
	c.win.deepen(uint32(res.Window))
	if a.replaces != nil {
		a.replaces.post(message{kind: msgEnd, how: endReinstated, cause: "the initiator logged in again"})
	}
	c.phase = phaseAdmission
	c.admitBy = c.node.clock.Load() + int64(c.node.cfg.ReinstatementWait)
	c.waitFor = 1
	for _, q := range a.waitFor {
		if !q.done() {
			// The new session is not quiet before its predecessors are: a third one may have to wait for all of them.
			c.waitFor++
			mine := c.session.quiet
			mine.add(1)
			q.then(func() {
				mine.part()
				c.post(message{kind: msgQuiet})
			})
		}
	}
	c.predecessorQuiet()
	c.rearm()
}

// predecessorQuiet counts one of the things that the final response waits for.
func (c *Connection) predecessorQuiet() {
	c.waitFor--
	if c.waitFor == 0 && c.phase == phaseAdmission {
		c.enterFullFeature()
	}
}

// enterFullFeature sends the final login response. The session is registered and everything is ready: the first command
// may be on the heels of the response.
func (c *Connection) enterFullFeature() {
	n := c.node
	if c.waitFor > 0 {
		n.count.reinstatementTimeouts.Add(1)
	}
	n.leaveLogin(c)
	s := c.session
	if s.target != nil {
		s.nexus = s.target.cfg.Device.NewNexus(portName(c.names))
		c.nexus = s.nexus
	}
	c.phase = phaseFull
	c.lastHeard = n.clock.Load()
	c.stamp(&c.final)
	c.dm.EnableDatamover(&c.final, c.finalOut)
	c.finalOut = nil
	c.rearm()
	n.count.logins.Add(1)
	call(n.cfg.Events.Login, SessionEvent{Peer: c.peer(), Discovery: s.target == nil, Device: c.info.Device, Since: s.since})
}
