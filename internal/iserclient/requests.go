package iserclient

import (
	"errors"
	"fmt"
	"net/netip"

	"iserd/internal/initiator"
	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// Login says how to log in.
type Login = initiator.Login

// Open connects and logs in.
func Open(provider rdma.Provider, addr netip.AddrPort, o Options, l Login) (*Conn, error) {
	c, err := Dial(provider, addr, o)
	if err != nil {
		return nil, err
	}
	if err := c.Login(l); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Login logs in.
func (c *Conn) Login(l Login) error {
	first := true
	var err error
	c.Outcome, err = l.Drive(login.TransportISER, &c.Numbers, func(req *pdu.LoginRequest, data []byte) error {
		if !first { // the first was posted before the connection was there
			if err := c.postLong(); err != nil {
				return err
			}
		}
		first = false
		if req.Transit() && req.NSG() == pdu.StageFullFeature && !l.Discovery && !c.opt.LateReceives {
			// The kernel's initiator makes its receives ready before the last request.
			if err := c.postShort(); err != nil {
				return err
			}
		}
		return c.Send(&Header{}, req.BHS(), nil, data)
	}, func() (*pdu.BHS, []byte, error) {
		p, err := c.Receive()
		if err != nil {
			return nil, nil, err
		}
		return &p.BHS, p.Data, nil
	})
	if err != nil {
		return err
	}
	c.fullFeature = true
	if c.opt.LateReceives && !l.Discovery {
		return c.postLong() // the only one
	}
	return nil
}

// Send sends one PDU; the lengths in bhs are set here.
func (c *Conn) Send(h *Header, bhs *pdu.BHS, ahs, data []byte) error {
	bhs.SetDataSegmentLength(len(data))
	bhs.SetTotalAHSLength(len(ahs))
	return c.SendAsIs(h, bhs, ahs, data)
}

// SendAsIs sends one PDU with whatever lengths its header says.
func (c *Conn) SendAsIs(h *Header, bhs *pdu.BHS, ahs, data []byte) error {
	slot, err := c.takeSend()
	if err != nil {
		return err
	}
	b := c.sendAt(slot)
	if n := headers + len(ahs) + len(data); n > len(b) {
		c.sendFree = append(c.sendFree, slot)
		return fmt.Errorf("iserclient: message of %d bytes, at most %d", n, len(b))
	}
	h.put(b)
	n := HeaderLength + copy(b[HeaderLength:], bhs[:])
	n += copy(b[n:], ahs)
	n += copy(b[n:], data)
	return c.postSend(slot, n)
}

// request sends a request without data memory and waits for its answer.
func (c *Conn) request(h *pdu.BHS, data []byte, want pdu.Opcode) (*PDU, error) {
	itt := h.InitiatorTaskTag()
	c.Number(h)
	if c.Names.SessionType == login.SessionDiscovery {
		if err := c.postLong(); err != nil {
			return nil, err
		}
	}
	if err := c.Send(&Header{}, h, nil, data); err != nil {
		return nil, err
	}
	rejects := len(c.Unsolicited)
	p, err := c.Receive()
	if err != nil {
		if len(c.Unsolicited) > rejects {
			err = fmt.Errorf("%w (after %s)", err, c.Unsolicited[rejects].BHS.Opcode())
		}
		return nil, err
	}
	if p.BHS.Opcode() != want || p.BHS.InitiatorTaskTag() != itt {
		return nil, fmt.Errorf("iserclient: %s for task %#x instead of %s for %#x", p.BHS.Opcode(), p.BHS.InitiatorTaskTag(), want, itt)
	}
	return p, nil
}

// Ping sends a NOP-Out with data and waits for its answer.
func (c *Conn) Ping(data []byte) ([]byte, error) {
	var h pdu.BHS
	n := h.NOPOut()
	n.Init()
	h.SetImmediate(true)
	n.SetInitiatorTaskTag(c.NextITT())
	n.SetTargetTransferTag(pdu.ReservedTag)
	p, err := c.request(&h, data, pdu.OpNOPIn)
	if err != nil {
		return nil, err
	}
	return p.Data, nil
}

// pong answers the target's ping.
func (c *Conn) pong(p *PDU) error {
	var h pdu.BHS
	initiator.PutPong(&h, &p.BHS)
	c.Number(&h)
	return c.Send(&Header{}, &h, nil, nil)
}

// TMF sends a task management request, immediate, and waits for the answer. The responses of tasks are taken meanwhile.
func (c *Conn) TMF(f pdu.TMFunction, lun uint64, rtt uint32, refCmdSN serial.Number) (pdu.TMResponse, error) {
	var h pdu.BHS
	t := h.TaskManagementRequest()
	t.Init()
	h.SetImmediate(true)
	t.SetFunction(f)
	t.SetLUN(lun)
	t.SetInitiatorTaskTag(c.NextITT())
	t.SetReferencedTaskTag(rtt)
	t.SetRefCmdSN(refCmdSN)
	p, err := c.request(&h, nil, pdu.OpTaskManagementResponse)
	if err != nil {
		return 0, err
	}
	return p.BHS.TaskManagementResponse().Response(), nil
}

// Text sends a text request and collects the whole answer, over several PDUs if need be.
func (c *Conn) Text(data []byte) ([]byte, error) {
	var all []byte
	itt, ttt := c.NextITT(), uint32(pdu.ReservedTag)
	for {
		var h pdu.BHS
		t := h.TextRequest()
		t.Init()
		h.SetImmediate(true)
		t.SetFinal(true)
		t.SetInitiatorTaskTag(itt)
		t.SetTargetTransferTag(ttt)
		p, err := c.request(&h, data, pdu.OpTextResponse)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Data...)
		r := p.BHS.TextResponse()
		if r.Final() {
			return all, nil
		}
		data, ttt = nil, r.TargetTransferTag()
	}
}

// SendTargets asks for the targets: "All", a name, or "" for that of the session.
func (c *Conn) SendTargets(which string) ([]initiator.Discovered, error) {
	text, err := c.Text(initiator.SendTargets(which))
	if err != nil {
		return nil, err
	}
	return initiator.ParseTargets(text)
}

// Logout ends the session, disconnects, as initiators do after the answer, waits until the target has disconnected too,
// and closes.
func (c *Conn) Logout() error {
	if err := c.LogoutOnly(); err != nil {
		return err
	}
	if err := c.Disconnect(); err != nil {
		return err
	}
	if err := c.AwaitClose(); err != nil {
		return err
	}
	return c.Close()
}

// LogoutOnly sends a logout request and waits for its answer; the connection stays.
func (c *Conn) LogoutOnly() error {
	var h pdu.BHS
	l := h.LogoutRequest()
	l.Init()
	h.SetImmediate(true)
	l.SetReason(pdu.LogoutCloseSession)
	l.SetInitiatorTaskTag(c.NextITT())
	p, err := c.request(&h, nil, pdu.OpLogoutResponse)
	if err != nil {
		return err
	}
	if r := p.BHS.LogoutResponse().Response(); r != pdu.LogoutSuccess {
		return fmt.Errorf("iserclient: logout: %s", r)
	}
	return nil
}
