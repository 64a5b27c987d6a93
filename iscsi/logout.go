package iscsi

import (
	"fmt"

	"iserd/iscsi/pdu"
)

// logout ends the session. With one connection, closing the connection and closing the session are the same.
func (c *Connection) logout(ctl *Control, immediate bool) {
	req := ctl.BHS.LogoutRequest()
	response := pdu.LogoutSuccess
	switch req.Reason() {
	case pdu.LogoutCloseSession:
	case pdu.LogoutCloseConnection:
		if req.CID() != c.names.CID {
			response = pdu.LogoutCIDNotFound
		}
	case pdu.LogoutRemoveForRecovery:
		// RFC 7143: error recovery level 2 only.
		response = pdu.LogoutRecoveryNotSupported
	default:
		c.answered(immediate)
		c.reject(ctl.BHS, pdu.RejectInvalidPDUField)
		return
	}
	c.answered(immediate)
	if response == pdu.LogoutSuccess {
		// The tasks end first: what they still had to answer went out before the Logout Response.
		c.endSession(endLogout, "logout")
	}
	out := c.out.LogoutResponse()
	out.Init()
	out.SetInitiatorTaskTag(req.InitiatorTaskTag())
	out.SetResponse(response)
	if response == pdu.LogoutSuccess {
		// Nothing is retained, so there is nothing to wait for either.
		out.SetTime2Wait(0)
		out.SetTime2Retain(0)
	}
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, nil, nil)
	if response == pdu.LogoutSuccess {
		c.end(endLogout, "logout")
	}
}

// requestLogout asks the initiator to log out within a number of seconds (asynchronous event 1).
func (c *Connection) requestLogout(seconds uint16) {
	if c.phase != phaseFull {
		return
	}
	if !c.logoutAsked {
		c.logoutAsked = true
		c.asyncMessage(pdu.AsyncLogoutRequest, 0, 0, seconds)
	}
	c.logoutBy = c.node.clock.Load() + int64(seconds)*1e9
	c.rearm()
}

// dropNotice tells the initiator that its session is about to be dropped (asynchronous event 3), where that is safe:
// over iSER the disconnect itself says so, and some initiators fail on an asynchronous message there (known-faults B133).
func (c *Connection) dropNotice() {
	if c.phase == phaseFull && c.session.target != nil && !c.isISER() {
		c.asyncMessage(pdu.AsyncSessionDrop, 0, uint16(c.params.DefaultTime2Wait), 0)
	}
}

func (c *Connection) asyncMessage(event pdu.AsyncEvent, p1, p2, p3 uint16) {
	out := c.out.AsyncMessage()
	out.Init()
	// RFC 7143: the task tag of an asynchronous message is reserved.
	c.out.SetInitiatorTaskTag(pdu.ReservedTag)
	out.SetAsyncEvent(event)
	out.SetParameter1(p1)
	out.SetParameter2(p2)
	out.SetParameter3(p3)
	c.stamp(&c.out)
	c.dm.SendControl(&c.out, nil, nil)
}

func (c *Connection) logoutOverdue() {
	c.end(endLost, fmt.Sprintf("asked for a logout, the initiator %s did not", c.names.InitiatorName))
}
