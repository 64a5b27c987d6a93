package login

import (
	"fmt"
	"strconv"

	"iserd/iscsi/pdu"
)

// Names is who wants to log in to what, as the first request says.
type Names struct {
	// InitiatorName and TargetName are normalised. TargetName is empty in a discovery session that names none.
	InitiatorName, InitiatorAlias, TargetName string
	SessionType                               SessionType
	ISID                                      [6]byte
	// TSIH is 0 for a new session, otherwise that of the session to which a connection is to be added.
	TSIH, CID uint16
}

// Decision is what the owner of targets and access lists says to a login.
type Decision struct {
	// Status other than success refuses, or redirects to RedirectAddress. Cause is for the log.
	Status               Status
	Cause                string
	TargetPortalGroupTag uint16
	TargetAlias          string
	// RedirectAddress is a TargetAddress value, "address:port" or "address:port,tag".
	RedirectAddress string
	// Authenticator proves the initiator; nil means that no proof is needed.
	Authenticator Authenticator
}

// State is where a login stands after a result.
type State uint8

const (
	// StateMore: the response goes out, another request is expected.
	StateMore State = iota
	// StateComplete: the response goes out and the full feature phase begins with it.
	StateComplete
	// StateFailed: the response goes out, then the connection ends.
	StateFailed
)

func (s State) String() string {
	switch s {
	case StateMore:
		return "more"
	case StateComplete:
		return "complete"
	case StateFailed:
		return "failed"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Result is the answer to one request. StatSN, ExpCmdSN and MaxCmdSN of the response are the engine's to set.
type Result struct {
	Response pdu.LoginResponse
	// Data is the data segment, at most 8192 bytes, valid until the next call of the machine.
	Data   []byte
	State  State
	Status Status
	// Cause says in words why Status is not success.
	Cause string
}

const (
	// maxText bounds what an initiator may say before its request is complete, and what it is answered.
	maxText = 64 << 10
	// maxRequests bounds a login; the longest honest ones take about ten.
	maxRequests = 64
)

// Machine is the target's side of one login. It is not safe for concurrent use.
type Machine struct {
	negotiation
	resolve func(Names) Decision

	state State
	stage pdu.Stage
	// first is the first request, last the one being answered.
	first, last pdu.LoginRequest
	requests    int

	// in collects the text of a request that is continued, out what is left of an answer that is.
	in, out []byte
	// sending: out goes on with the next request; transit and nsg are what its last part says.
	sending, transit bool
	nsg              pdu.Stage

	names    Names
	resolved bool
	decision Decision
	tsih     uint16

	auth authState

	// offered has the initiator's value of each key that it gave, answered what it got for it.
	offered, answered map[string]string
	// proposed has the keys that we offered and that the initiator has not answered.
	proposed map[string]bool
	// operational: keys of the operational stage have been answered; segment: our MaxRecvDataSegmentLength was declared.
	operational, segment bool
}

// New makes the machine of one connection. resolve is called at most once, from within Request, when the names are known.
func New(t Transport, l Limits, resolve func(Names) Decision) *Machine {
	return &Machine{
		negotiation: negotiation{limits: l, params: defaultParams(t)},
		resolve:     resolve,
		offered:     make(map[string]string),
		answered:    make(map[string]string),
		proposed:    make(map[string]bool),
	}
}

// Names is who logs in, valid once the resolver was called.
func (m *Machine) Names() Names { return m.names }

// Decision is what the resolver said.
func (m *Machine) Decision() Decision { return m.decision }

// Stage is the stage that the login is in; after StateComplete it is the full feature phase.
func (m *Machine) Stage() pdu.Stage { return m.stage }

// Params is what was negotiated; it is final after StateComplete.
func (m *Machine) Params() Params { return m.params }

// AuthMethod is the method by which the initiator was proven, "None" if it was not.
func (m *Machine) AuthMethod() string {
	if m.auth.done && m.auth.method != "" {
		return m.auth.method
	}
	return none
}

// SetTSIH sets the TSIH of the final response of a new session. The engine may as well set it in the response itself.
func (m *Machine) SetTSIH(v uint16) { m.tsih = v }

// Fail refuses the login in answer to the last request.
func (m *Machine) Fail(s Status, cause string) Result {
	m.state, m.sending, m.in = StateFailed, false, nil
	r := Result{State: StateFailed, Status: s, Cause: cause}
	m.head(&r.Response)
	r.Response.SetCSG(m.last.CSG())
	r.Response.SetStatusClass(s.Class())
	r.Response.SetStatusDetail(s.Detail())
	return r
}

func (m *Machine) failf(s Status, format string, args ...any) *Result {
	r := m.Fail(s, fmt.Sprintf(format, args...))
	return &r
}

func (m *Machine) head(resp *pdu.LoginResponse) {
	resp.Init()
	resp.SetISID(m.last.ISID())
	resp.SetTSIH(m.last.TSIH())
	resp.SetInitiatorTaskTag(m.last.InitiatorTaskTag())
}

// Request answers a Login Request. data is its data segment without padding.
func (m *Machine) Request(req *pdu.LoginRequest, data []byte) Result {
	over := m.state != StateMore
	m.last = *req
	if over {
		return m.Fail(StatusInvalidDuringLogin, "a login request after the end of login")
	}
	if r := m.checkHeader(req, data); r != nil {
		return *r
	}
	if m.sending {
		if len(data) != 0 || req.Continue() {
			return m.Fail(StatusInitiatorError, "text before the continued answer was fetched")
		}
		// The last part carries the transition if the request that fetches it asks for it.
		m.transit = m.transit && (len(m.out) > MaxSegment || req.Transit() && req.NSG() == m.nsg)
		return m.send()
	}
	if len(m.in)+len(data) > maxText {
		return m.Fail(StatusInitiatorError, fmt.Sprintf("more than %d bytes of text in one request", maxText))
	}
	m.in = append(m.in, data...)
	if req.Continue() {
		// The answer to a part is an empty response.
		return m.respond(nil, false, false)
	}
	if r := m.complete(req); r != nil {
		return *r
	}
	return m.send()
}

// checkHeader holds a header against the rules and against the requests before it.
func (m *Machine) checkHeader(req *pdu.LoginRequest, data []byte) *Result {
	first := m.requests == 0
	if first {
		m.first = *req
		m.names = Names{ISID: req.ISID(), TSIH: req.TSIH(), CID: req.CID()}
	}
	if m.requests++; m.requests > maxRequests {
		return m.failf(StatusInitiatorError, "more than %d login requests", maxRequests)
	}
	bhs := req.BHS()
	if n := max(len(data), bhs.DataSegmentLength()); n > MaxSegment {
		// known-faults B10.
		return m.failf(StatusInitiatorError, "a login request with %d bytes of data, more than %d", n, MaxSegment)
	}
	if bhs.TotalAHSLength() != 0 {
		return m.failf(StatusInitiatorError, "a login request with an additional header segment")
	}
	if first && req.VersionMin() > 0 {
		return m.failf(StatusUnsupportedVersion, "the initiator wants version %d or later, this is version 0", req.VersionMin())
	}
	csg, nsg := req.CSG(), req.NSG()
	switch {
	case req.Transit() && req.Continue():
		// RFC 7143: T and C must not both be set.
		return m.failf(StatusInitiatorError, "T and C both set")
	case csg != pdu.StageSecurity && csg != pdu.StageOperational:
		return m.failf(StatusInitiatorError, "current stage %d", csg)
	case !first && csg != m.stage:
		return m.failf(StatusInitiatorError, "current stage %d in stage %d", csg, m.stage)
	case req.Transit() && (nsg <= csg || nsg != pdu.StageOperational && nsg != pdu.StageFullFeature):
		return m.failf(StatusInitiatorError, "next stage %d from stage %d", nsg, csg)
	}
	if first {
		m.stage = csg
		return nil
	}
	switch {
	case req.ISID() != m.first.ISID():
		return m.failf(StatusInitiatorError, "ISID changed during login")
	case req.TSIH() != m.first.TSIH():
		return m.failf(StatusInitiatorError, "TSIH changed during login")
	case req.CID() != m.first.CID():
		return m.failf(StatusInitiatorError, "CID changed during login")
	case req.InitiatorTaskTag() != m.first.InitiatorTaskTag():
		return m.failf(StatusInitiatorError, "task tag changed during login")
	case req.CmdSN() != m.first.CmdSN():
		return m.failf(StatusInitiatorError, "CmdSN changed during login")
	}
	return nil
}

// complete answers a whole request: its text is in m.in, the answer goes to m.out.
func (m *Machine) complete(req *pdu.LoginRequest) *Result {
	// What was answered before must not be in this answer (known-faults B20).
	m.out = m.out[:0]
	keys, err := splitKeys(m.in)
	m.in = m.in[:0]
	if err != nil {
		return m.failf(StatusInitiatorError, "%v", err)
	}
	if r := m.identify(keys); r != nil {
		return r
	}
	if r := m.answerKeys(keys); r != nil {
		return r
	}
	m.transit, m.nsg = req.Transit(), req.NSG()
	if m.stage == pdu.StageSecurity {
		if r := m.leaveSecurity(); r != nil {
			return r
		}
	}
	if m.stage == pdu.StageOperational || m.operational {
		m.declareSegment()
		if m.stage == pdu.StageOperational && m.transit {
			m.propose()
		}
	}
	if m.transit && m.nsg == pdu.StageFullFeature && m.params.SessionType == SessionNormal &&
		m.params.Transport == TransportISER && !m.params.RDMAExtensions {
		return m.failf(StatusInitiatorError, "a normal session over iSER without RDMAExtensions=Yes")
	}
	if len(m.out) > maxText {
		return m.failf(StatusInitiatorError, "the answer would have more than %d bytes", maxText)
	}
	m.sending = true
	return nil
}

// declareSegment states, once and over TCP, what we can receive. Without it an initiator goes on with 8 KiB
// (known-faults B4). Over iSER other keys have its place.
func (m *Machine) declareSegment() {
	if m.segment || m.params.Transport != TransportTCP {
		return
	}
	m.segment = true
	m.params.MaxRecvDataSegmentLength = m.limits.MaxRecvDataSegmentLength
	m.put("MaxRecvDataSegmentLength", strconv.FormatUint(uint64(m.limits.MaxRecvDataSegmentLength), 10))
}

// propose offers the keys whose default is more than we can do, if the initiator did not bring them up. A number needs
// an answer, so the stage is not left with this response; a No to an AND key stands by itself.
func (m *Machine) propose() {
	if m.params.SessionType != SessionNormal || len(m.proposed) > 0 {
		return
	}
	offer := func(key, value string) bool {
		if _, seen := m.offered[key]; seen || m.proposed[key] {
			return false
		}
		m.offered[key] = value
		m.put(key, value)
		return true
	}
	number := func(key string, v, most uint32, dst *uint32) {
		if v >= *dst {
			return
		}
		if v = min(v, most); offer(key, strconv.FormatUint(uint64(v), 10)) {
			*dst = v
			m.proposed[key] = true
			m.transit = false
		}
	}
	if !m.limits.ImmediateData && offer("ImmediateData", "No") {
		m.params.ImmediateData = false
		m.proposed["ImmediateData"] = true
	}
	if m.params.ImmediateData || !m.params.InitialR2T {
		number("FirstBurstLength", m.limits.FirstBurstLength, m.params.MaxBurstLength, &m.params.FirstBurstLength)
	}
	if m.params.Transport == TransportISER {
		number("TargetRecvDataSegmentLength", m.limits.TargetRecvDataSegmentLength, maxSegment, &m.params.TargetRecvDataSegmentLength)
	}
}

func (m *Machine) put(key, value string) { m.out = pdu.AppendKey(m.out, key, value) }

// send gives the next part of m.out; the last part carries the transition.
func (m *Machine) send() Result {
	if len(m.out) > MaxSegment {
		part := m.out[:MaxSegment:MaxSegment]
		m.out = m.out[MaxSegment:]
		return m.respond(part, true, false)
	}
	m.sending = false
	return m.respond(m.out, false, m.transit)
}

func (m *Machine) respond(data []byte, more, transit bool) Result {
	r := Result{Data: data}
	m.head(&r.Response)
	r.Response.SetContinue(more)
	r.Response.SetCSG(m.stage)
	r.Response.BHS().SetDataSegmentLength(len(data))
	if !transit {
		return r
	}
	r.Response.SetTransit(true)
	r.Response.SetNSG(m.nsg)
	m.stage = m.nsg
	if m.stage == pdu.StageFullFeature {
		m.state, r.State = StateComplete, StateComplete
		m.finishTarget()
		if m.tsih != 0 {
			r.Response.SetTSIH(m.tsih)
		}
	}
	return r
}
