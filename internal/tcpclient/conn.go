package tcpclient

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"iserd/internal/initiator"
	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// DefaultTimeout bounds every receive and send.
const DefaultTimeout = 10 * time.Second

// Conn is one connection. The fields may be changed between calls.
type Conn struct {
	net.Conn
	// Outcome is what login led to.
	initiator.Outcome

	initiator.Numbers
	ITT          uint32 // the last one used
	HeaderDigest bool
	DataDigest   bool
	// Segment cuts what is sent: each write has at most so many bytes. 0 is everything at once.
	Segment int
	// SegmentPause is slept between these writes.
	SegmentPause time.Duration
	Timeout      time.Duration
	scratch      []byte
	// Unsolicited collects PDUs that answer nothing: NOP-In pings, asynchronous messages, rejects.
	Unsolicited []*PDU
}

// PDU is one that was received. It is the caller's.
type PDU struct {
	BHS  pdu.BHS
	AHS  []byte
	Data []byte
}

// Dial connects.
func Dial(addr string) (*Conn, error) {
	nc, err := net.DialTimeout("tcp", addr, DefaultTimeout)
	if err != nil {
		return nil, err
	}
	return New(nc), nil
}

// New makes a client of a connection.
func New(nc net.Conn) *Conn {
	return &Conn{Conn: nc, Timeout: DefaultTimeout, Numbers: initiator.Numbers{CmdSN: serial.New(1)}}
}

// Login says how to log in.
type Login = initiator.Login

// Open connects and logs in.
func Open(addr string, l Login) (*Conn, error) {
	c, err := Dial(addr)
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
	var err error
	c.Outcome, err = l.Drive(login.TransportTCP, &c.Numbers, func(req *pdu.LoginRequest, data []byte) error {
		return c.Send(req.BHS(), nil, data)
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
	c.HeaderDigest = c.Params.HeaderDigest
	c.DataDigest = c.Params.DataDigest
	return nil
}

// Append appends a whole PDU to b: lengths, padding and digests are made here.
func (c *Conn) Append(b []byte, h *pdu.BHS, ahs, data []byte) []byte {
	h.SetDataSegmentLength(len(data))
	h.SetTotalAHSLength(len(ahs))
	start := len(b)
	b = append(b, h[:]...)
	b = append(b, ahs...)
	if c.HeaderDigest {
		b = appendDigest(b, b[start:])
	}
	if len(data) > 0 {
		start = len(b)
		b = append(b, data...)
		b = append(b, make([]byte, pdu.Pad4(len(data))-len(data))...)
		if c.DataDigest {
			b = appendDigest(b, b[start:])
		}
	}
	return b
}

func appendDigest(b, of []byte) []byte {
	var d [pdu.DigestLength]byte
	pdu.PutDigest(d[:], pdu.UpdateDigest(0, of))
	return append(b, d[:]...)
}

// Send sends one PDU.
func (c *Conn) Send(h *pdu.BHS, ahs, data []byte) error {
	c.scratch = c.Append(c.scratch[:0], h, ahs, data)
	return c.SendBytes(c.scratch)
}

// SendBytes sends anything, in segments.
func (c *Conn) SendBytes(b []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(c.Timeout)); err != nil {
		return err
	}
	for len(b) > 0 {
		n := len(b)
		if c.Segment > 0 {
			n = min(n, c.Segment)
		}
		if _, err := c.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if c.SegmentPause > 0 && len(b) > 0 {
			time.Sleep(c.SegmentPause)
		}
	}
	return nil
}

// ErrDigest is the error of a received digest that does not match.
var ErrDigest = errors.New("tcpclient: digest error")

// Receive receives one PDU and checks its digests and its StatSN.
func (c *Conn) Receive() (*PDU, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.Timeout)); err != nil {
		return nil, err
	}
	p := &PDU{}
	if _, err := io.ReadFull(c.Conn, p.BHS[:]); err != nil {
		return nil, err
	}
	crc := pdu.UpdateDigest(0, p.BHS[:])
	if n := p.BHS.TotalAHSLength(); n > 0 {
		p.AHS = make([]byte, n)
		if _, err := io.ReadFull(c.Conn, p.AHS); err != nil {
			return nil, err
		}
		crc = pdu.UpdateDigest(crc, p.AHS)
	}
	if c.HeaderDigest {
		if err := c.digest(crc, "header"); err != nil {
			return nil, err
		}
	}
	if n := p.BHS.DataSegmentLength(); n > 0 {
		b := make([]byte, pdu.Pad4(n))
		if _, err := io.ReadFull(c.Conn, b); err != nil {
			return nil, err
		}
		p.Data = b[:n]
		if c.DataDigest {
			if err := c.digest(pdu.UpdateDigest(0, b), "data"); err != nil {
				return nil, err
			}
		}
	}
	return p, c.Take(&p.BHS)
}

func (c *Conn) digest(crc uint32, what string) error {
	var d [pdu.DigestLength]byte
	if _, err := io.ReadFull(c.Conn, d[:]); err != nil {
		return err
	}
	if pdu.GetDigest(d[:]) != crc {
		return fmt.Errorf("%w: %s", ErrDigest, what)
	}
	return nil
}

// ReceiveReply receives up to the first PDU that carries itt; those that answer nothing go to Unsolicited.
func (c *Conn) ReceiveReply(itt uint32) (*PDU, error) {
	for {
		p, err := c.Receive()
		if err != nil {
			return nil, err
		}
		switch got := p.BHS.InitiatorTaskTag(); {
		case p.BHS.Opcode() == pdu.OpReject, p.BHS.Opcode() == pdu.OpAsyncMessage, p.BHS.Opcode() == pdu.OpNOPIn && got == pdu.ReservedTag:
			c.Unsolicited = append(c.Unsolicited, p)
		case got == itt:
			return p, nil
		default:
			return nil, fmt.Errorf("tcpclient: %s for task %#x, want %#x", p.BHS.Opcode(), got, itt)
		}
	}
}

// NextITT gives a task tag that was not used before: the last one plus one.
func (c *Conn) NextITT() uint32 {
	c.ITT++
	return c.ITT
}

// Ping sends a NOP-Out with data and waits for its answer.
func (c *Conn) Ping(data []byte) ([]byte, error) {
	var h pdu.BHS
	n := h.NOPOut()
	n.Init()
	h.SetImmediate(true)
	itt := c.NextITT()
	n.SetInitiatorTaskTag(itt)
	n.SetTargetTransferTag(pdu.ReservedTag)
	c.Number(&h)
	if err := c.Send(&h, nil, data); err != nil {
		return nil, err
	}
	p, err := c.ReceiveReply(itt)
	if err != nil {
		return nil, err
	}
	if p.BHS.Opcode() != pdu.OpNOPIn {
		return nil, fmt.Errorf("tcpclient: %s instead of a NOP-In", p.BHS.Opcode())
	}
	return p.Data, nil
}

// TMF sends a task management request, immediate, and waits for the answer.
func (c *Conn) TMF(f pdu.TMFunction, lun uint64, rtt uint32, refCmdSN serial.Number) (pdu.TMResponse, error) {
	var h pdu.BHS
	t := h.TaskManagementRequest()
	t.Init()
	h.SetImmediate(true)
	t.SetFunction(f)
	t.SetLUN(lun)
	itt := c.NextITT()
	t.SetInitiatorTaskTag(itt)
	t.SetReferencedTaskTag(rtt)
	t.SetRefCmdSN(refCmdSN)
	c.Number(&h)
	if err := c.Send(&h, nil, nil); err != nil {
		return 0, err
	}
	p, err := c.ReceiveReply(itt)
	if err != nil {
		return 0, err
	}
	if p.BHS.Opcode() != pdu.OpTaskManagementResponse {
		return 0, fmt.Errorf("tcpclient: %s instead of a task management response", p.BHS.Opcode())
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
		c.Number(&h)
		if err := c.Send(&h, nil, data); err != nil {
			return nil, err
		}
		p, err := c.ReceiveReply(itt)
		if err != nil {
			return nil, err
		}
		if p.BHS.Opcode() != pdu.OpTextResponse {
			return nil, fmt.Errorf("tcpclient: %s instead of a text response", p.BHS.Opcode())
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

// Logout ends the session and waits until the target has closed.
func (c *Conn) Logout() error {
	var h pdu.BHS
	l := h.LogoutRequest()
	l.Init()
	h.SetImmediate(true)
	l.SetReason(pdu.LogoutCloseSession)
	itt := c.NextITT()
	l.SetInitiatorTaskTag(itt)
	c.Number(&h)
	if err := c.Send(&h, nil, nil); err != nil {
		return err
	}
	p, err := c.ReceiveReply(itt)
	if err != nil {
		return err
	}
	if p.BHS.Opcode() != pdu.OpLogoutResponse || p.BHS.LogoutResponse().Response() != pdu.LogoutSuccess {
		return fmt.Errorf("tcpclient: %s as the answer to a logout", p.BHS.Opcode())
	}
	if err := c.AwaitClose(); err != nil {
		return err
	}
	return c.Close()
}

// AwaitClose waits for the target to close in order; more bytes, or a reset, are an error.
func (c *Conn) AwaitClose() error {
	if err := c.SetReadDeadline(time.Now().Add(c.Timeout)); err != nil {
		return err
	}
	var b [1]byte
	n, err := c.Read(b[:])
	if n > 0 {
		return errors.New("tcpclient: a byte where the end was expected")
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("tcpclient: the connection did not end in order: %w", err)
	}
	return nil
}
