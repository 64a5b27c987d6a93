package initiator

import (
	"fmt"
	"strings"

	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// Login says how to log in. The zero value of the optional fields is a usual initiator.
type Login struct {
	Initiator, Target string
	Discovery         bool
	ISID              [6]byte
	TSIH              uint16
	Keys              []login.KeyValue
	Security          bool
}

// Outcome is what login led to. Params is seen from the initiator.
type Outcome struct {
	Params  login.Params
	Names   login.Names
	Answers map[string]string
	TSIH    uint16
}

// Drive logs in. send sends a request, numbered already, and receive gives back the next PDU from the target; what they
// return as an error ends the login.
func (l *Login) Drive(transport login.Transport, n *Numbers, send func(req *pdu.LoginRequest, data []byte) error, receive func() (*pdu.BHS, []byte, error)) (Outcome, error) {
	i := login.Initiator{Transport: transport, Keys: l.Keys, Security: l.Security, Tag: 0x10000000}
	i.Names = login.Names{InitiatorName: l.Initiator, TargetName: l.Target, ISID: l.ISID, TSIH: l.TSIH, CID: 1}
	if l.Initiator == "" {
		i.Names.InitiatorName = "iqn.2026-01.test:initiator"
	}
	if l.ISID == [6]byte{} {
		i.Names.ISID = [6]byte{0x80, 0, 0, 1, 0, 1}
	}
	if l.Discovery {
		i.Names.SessionType = login.SessionDiscovery
	}
	for {
		req, data := i.Next()
		req.SetCmdSN(n.CmdSN)
		req.SetExpStatSN(n.ExpStatSN)
		if err := send(&req, data); err != nil {
			return Outcome{}, err
		}
		h, data, err := receive()
		if err != nil {
			return Outcome{}, fmt.Errorf("login: %w", err)
		}
		if h.Opcode() != pdu.OpLoginResponse {
			return Outcome{}, fmt.Errorf("initiator: %s instead of a login response", h.Opcode())
		}
		done, err := i.Response(h.LoginResponse(), data)
		if err != nil {
			return Outcome{}, err
		}
		if done {
			return Outcome{i.Params(), i.Names, i.Answers, i.TSIH}, nil
		}
	}
}

// Discovered is a target as SendTargets tells it. Addresses are as in the text: address:port,group.
type Discovered struct {
	Name      string
	Addresses []string
}

// SendTargets is the request text that asks for targets: "All", a name, or "" for that of the session.
func SendTargets(which string) []byte { return pdu.AppendKey(nil, "SendTargets", which) }

// ParseTargets takes the answer to SendTargets apart.
func ParseTargets(text []byte) ([]Discovered, error) {
	var out []Discovered
	for _, kv := range strings.Split(strings.TrimRight(string(text), "\x00"), "\x00") {
		k, v, ok := strings.Cut(kv, "=")
		switch {
		case kv == "":
		case ok && k == "TargetName":
			out = append(out, Discovered{Name: v})
		case ok && k == "TargetAddress" && len(out) > 0:
			t := &out[len(out)-1]
			t.Addresses = append(t.Addresses, v)
		default:
			return nil, fmt.Errorf("initiator: %q in the answer to SendTargets", kv)
		}
	}
	return out, nil
}

// Numbers are the sequence numbers of a session with one connection, seen from the initiator.
type Numbers struct {
	CmdSN, ExpStatSN, MaxCmdSN serial.Number

	statKnown bool // ExpStatSN is, so it is checked
}

// Number gives a non-immediate request its CmdSN, and ExpStatSN to both kinds. All requests have them at the same place.
func (n *Numbers) Number(h *pdu.BHS) {
	r := h.SCSICommand()
	r.SetCmdSN(n.CmdSN)
	r.SetExpStatSN(n.ExpStatSN)
	if !h.Immediate() {
		n.CmdSN = n.CmdSN.Next()
	}
}

// Open is whether the window has room for a command.
func (n *Numbers) Open() bool { return !n.MaxCmdSN.Less(n.CmdSN) }

// Window is how many commands the target takes beyond those sent.
func (n *Numbers) Window() int { return max(0, int(int32(n.MaxCmdSN.Uint32()-n.CmdSN.Uint32()))+1) }

// Take checks the StatSN of a PDU from the target and follows the window. RFC 7143: every PDU from the target that
// carries status, or answers, takes a StatSN; an R2T and a NOP-In that the target began do not, and a Data-In without
// status carries none. Before the first login response nothing is checked.
func (n *Numbers) Take(h *pdu.BHS) error {
	p := h.NOPIn() // the three fields lie at the same place everywhere
	uses, carries := true, true
	switch h.Opcode() {
	case pdu.OpDataIn:
		uses = h.DataIn().HasStatus()
		carries = uses
	case pdu.OpR2T:
		uses = false
	case pdu.OpNOPIn:
		uses = h.InitiatorTaskTag() != pdu.ReservedTag
	case pdu.OpLoginResponse:
		if !n.statKnown {
			n.statKnown = true
			n.ExpStatSN = p.StatSN()
		}
	}
	if n.statKnown && carries && p.StatSN() != n.ExpStatSN {
		return fmt.Errorf("initiator: %s with StatSN %d, want %d", h.Opcode(), p.StatSN().Uint32(), n.ExpStatSN.Uint32())
	}
	if n.statKnown && uses {
		n.ExpStatSN = n.ExpStatSN.Next()
	}
	if max := p.MaxCmdSN(); n.MaxCmdSN == (serial.Number{}) || n.MaxCmdSN.Less(max) {
		n.MaxCmdSN = max
	}
	return nil
}
