package login

import (
	"fmt"
	"strconv"
	"strings"

	"iserd/iscsi/pdu"
)

// State is where a login stands after a request.
type State uint8

const (
	StateMore     State = iota // another request must come
	StateComplete              // this is the final response: full feature phase after it
	StateFailed                // the login is refused; the connection ends after this response
)

const (
	// MaxSegment is the most that a login PDU's data segment may hold.
	MaxSegment = 8192
	// maxText bounds what an initiator may send in one negotiation over several PDUs.
	maxText = 64 << 10
)

// Result is the answer to one login request. The engine sets StatSN, ExpCmdSN, MaxCmdSN and, in the final response of a
// new session, TSIH.
type Result struct {
	Response pdu.LoginResponse
	Data     []byte // valid until the next call
	State    State
	Status   Status
	Cause    string // of a failure, for the log
}

// Machine is the target's side of one login.
type Machine struct {
	transport Transport
	limits    Limits
	resolve   func(Names) Decision

	begun    bool // the first request was seen
	known    bool // names are complete and resolved
	first    pdu.LoginRequest
	stage    pdu.Stage
	names    Names
	decision Decision
	params   Params

	text    []byte            // of the current stage's request, collected over PDUs
	given   map[string]string // what the initiator said so far
	out     []byte            // answer that has not been sent yet
	segment []byte
	tagTold bool

	method       string // agreed AuthMethod; empty before
	authDone     bool
	declaredRecv bool
	failed       bool
}

// New starts a login. resolve is called once, when the initiator has named itself and its target.
func New(t Transport, l Limits, resolve func(Names) Decision) *Machine {
	return &Machine{transport: t, limits: l, resolve: resolve, params: defaultParams(t), given: map[string]string{}}
}

// Params are the negotiated values, final after StateComplete.
func (m *Machine) Params() Params { return m.params }

// Names are what the initiator said of itself so far.
func (m *Machine) Names() Names { return m.names }

// Request takes a login request and gives the response to it.
func (m *Machine) Request(req *pdu.LoginRequest, data []byte) Result {
	if cause, s := m.header(req, data); s != StatusSuccess {
		return m.fail(req, s, cause)
	}
	m.text = append(m.text, data...)
	if len(m.text) > maxText {
		return m.fail(req, StatusInitiatorError, "more than 64 KiB of text in one negotiation")
	}
	if req.Continue() {
		return m.respond(req, false)
	}
	text := m.text
	m.text = m.text[:0]
	pairs, err := m.pairs(text)
	if err != nil {
		return m.fail(req, StatusInitiatorError, err.Error())
	}
	if !m.known {
		if s, cause := m.identify(pairs); s != StatusSuccess {
			return m.fail(req, s, cause)
		}
	}
	if s, cause := m.negotiate(req, pairs); s != StatusSuccess {
		return m.fail(req, s, cause)
	}
	return m.respond(req, true)
}

// Fail turns the login into a refusal, for a reason that only the engine knows.
func (m *Machine) Fail(s Status, cause string) Result { return m.fail(&m.first, s, cause) }

// header checks what RFC 7143 demands of a login request's header, and against the requests before it.
func (m *Machine) header(req *pdu.LoginRequest, data []byte) (cause string, s Status) {
	if m.failed {
		return "a request after the login was refused", StatusInitiatorError
	}
	if len(data) > MaxSegment {
		return fmt.Sprintf("a login data segment of %d bytes, more than 8192", len(data)), StatusInitiatorError
	}
	if req.VersionMin() > 0 {
		return fmt.Sprintf("the initiator speaks no version below %d, this target speaks 0", req.VersionMin()), StatusUnsupportedVersion
	}
	if req.Transit() && req.Continue() {
		return "T and C are both set", StatusInitiatorError
	}
	if csg := req.CSG(); csg != pdu.StageSecurity && csg != pdu.StageOperational {
		return fmt.Sprintf("current stage %d", csg), StatusInitiatorError
	}
	if req.Transit() {
		if nsg := req.NSG(); nsg <= req.CSG() || nsg != pdu.StageOperational && nsg != pdu.StageFullFeature {
			return fmt.Sprintf("next stage %d after stage %d", nsg, req.CSG()), StatusInitiatorError
		}
	}
	if !m.begun {
		m.begun = true
		m.first = *req
		m.stage = req.CSG()
		m.names.ISID, m.names.TSIH, m.names.CID = req.ISID(), req.TSIH(), req.CID()
		return "", StatusSuccess
	}
	if req.CSG() != m.stage {
		return fmt.Sprintf("the stage changed from %d to %d without being agreed on", m.stage, req.CSG()), StatusInitiatorError
	}
	if req.ISID() != m.first.ISID() || req.TSIH() != m.first.TSIH() || req.CID() != m.first.CID() ||
		req.InitiatorTaskTag() != m.first.InitiatorTaskTag() {
		return "ISID, TSIH, CID or task tag changed during the login", StatusInitiatorError
	}
	return "", StatusSuccess
}

type pair struct {
	key   string
	value []byte
}

// pairs reads the text of a whole request. A key that was given before with the same value is left out (known-faults
// B6); with another value it is an error, except for keys that a method of authentication repeats.
func (m *Machine) pairs(text []byte) ([]pair, error) {
	var list []pair
	err := pdu.ParseKeys(text, func(key, value []byte) error {
		k, v := string(key), string(value)
		limit := pdu.MaxValueLength
		switch k {
		case "InitiatorName", "TargetName":
			limit = pdu.MaxNameLength
		case "CHAP_C", "CHAP_R":
			limit = pdu.MaxBigValue
		}
		if len(v) > limit {
			return fmt.Errorf("%s has %d bytes, more than %d", k, len(v), limit)
		}
		if before, twice := m.given[k]; twice && m.stageKey(k) {
			if before != v {
				return fmt.Errorf("%s is given twice, with different values", k)
			}
			return nil
		}
		if len(m.given) >= 512 {
			return fmt.Errorf("more than 512 keys")
		}
		m.given[k] = v
		list = append(list, pair{k, []byte(v)})
		return nil
	})
	return list, err
}

// stageKey says that a key may be given once in a login.
func (m *Machine) stageKey(k string) bool { return !strings.HasPrefix(k, "CHAP_") }

// identify takes the names from the first whole request and asks the engine what it thinks of them.
func (m *Machine) identify(pairs []pair) (Status, string) {
	hasInitiator, hasTarget := false, false
	for _, p := range pairs {
		v := string(p.value)
		switch p.key {
		case "InitiatorName":
			m.names.InitiatorName, hasInitiator = pdu.NormalizeName(v), v != ""
		case "InitiatorAlias":
			m.names.InitiatorAlias = v
		case "TargetName":
			m.names.TargetName, hasTarget = pdu.NormalizeName(v), v != ""
		case "SessionType":
			switch v {
			case "Normal":
				m.names.SessionType = SessionNormal
			case "Discovery":
				m.names.SessionType = SessionDiscovery
			default:
				return StatusSessionTypeUnsupported, fmt.Sprintf("session type %q", v)
			}
		}
	}
	if !hasInitiator {
		return StatusMissingParameter, "no InitiatorName in the first request"
	}
	if strings.IndexFunc(m.names.InitiatorName, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0xfffd }) >= 0 {
		return StatusInitiatorError, "InitiatorName has characters that no iSCSI name has"
	}
	if m.names.SessionType == SessionNormal && !hasTarget {
		return StatusMissingParameter, "no TargetName in the first request of a normal session"
	}
	m.known = true
	m.decision = m.resolve(m.names)
	if m.decision.Status != StatusSuccess {
		return m.decision.Status, m.decision.Cause
	}
	if m.decision.Authenticator == nil {
		m.authDone = true
	} else if m.stage != pdu.StageSecurity {
		return StatusAuthenticationFailure, "authentication is required, but the initiator skipped it"
	}
	return StatusSuccess, ""
}

// negotiate answers the pairs of one whole request and checks what a transition needs.
func (m *Machine) negotiate(req *pdu.LoginRequest, pairs []pair) (Status, string) {
	if m.names.SessionType == SessionNormal && !m.tagTold {
		m.tagTold = true
		m.answer("TargetPortalGroupTag", strconv.Itoa(int(m.decision.TargetPortalGroupTag)))
		if m.decision.TargetAlias != "" {
			m.answer("TargetAlias", m.decision.TargetAlias)
		}
	}
	var auth []KeyValue
	// MaxBurstLength bounds FirstBurstLength, whichever comes first in the text.
	if m.stage == pdu.StageOperational {
		for _, p := range pairs {
			if p.key == "MaxBurstLength" {
				m.operational(p.key, p.value)
			}
		}
	}
	for _, p := range pairs {
		switch p.key {
		case "InitiatorName", "InitiatorAlias", "TargetName", "SessionType":
		case "AuthMethod":
			if m.stage != pdu.StageSecurity {
				m.answer(p.key, reject)
				continue
			}
			if s, cause := m.authMethod(p.value); s != StatusSuccess {
				return s, cause
			}
		default:
			switch {
			case m.stage == pdu.StageSecurity && m.method != "" && m.method != "None":
				auth = append(auth, KeyValue{p.key, string(p.value)})
			case m.stage == pdu.StageSecurity && rules[p.key].set != nil:
				// Operational keys have no place in the security stage.
				m.answer(p.key, reject)
			case m.stage == pdu.StageSecurity:
				m.answer(p.key, notUnderstood)
			default:
				if a := m.operational(p.key, p.value); a != "" {
					m.answer(p.key, a)
				}
			}
		}
	}
	if len(auth) > 0 && !m.authDone {
		answer, done, s, cause := m.decision.Authenticator.Step(m.method, auth)
		if s != StatusSuccess {
			return s, cause
		}
		for _, kv := range answer {
			m.answer(kv.Key, kv.Value)
		}
		m.authDone = done
	}
	if m.stage == pdu.StageOperational && m.transport == TransportTCP && !m.declaredRecv {
		m.declaredRecv = true
		m.params.MaxRecvDataSegmentLength = m.limits.MaxRecvDataSegmentLength
		m.answer("MaxRecvDataSegmentLength", strconv.Itoa(int(m.limits.MaxRecvDataSegmentLength)))
	}
	return m.mayLeave(req)
}

// mayLeave refuses a transition that cannot be: out of security without authentication, into full feature phase over
// iSER without RDMAExtensions.
func (m *Machine) mayLeave(req *pdu.LoginRequest) (Status, string) {
	if !req.Transit() {
		return StatusSuccess, ""
	}
	if m.stage == pdu.StageSecurity && !m.authDone && m.method == "" {
		return StatusAuthenticationFailure, "authentication is required, but the initiator offers none"
	}
	if req.NSG() == pdu.StageFullFeature && m.transport == TransportISER && m.names.SessionType == SessionNormal && !m.params.RDMAExtensions {
		return StatusInitiatorError, "an iSER connection without RDMAExtensions=Yes"
	}
	return StatusSuccess, ""
}

// authMethod picks a method from the initiator's list.
func (m *Machine) authMethod(list []byte) (Status, string) {
	ours := []string{"None"}
	if m.decision.Authenticator != nil {
		ours = m.decision.Authenticator.Methods()
	}
	offered := map[string]bool{}
	pdu.EachValue(list, func(v []byte) bool {
		offered[string(v)] = true
		return true
	})
	for _, o := range ours {
		if offered[o] {
			m.method = o
			m.authDone = m.authDone || o == "None"
			m.answer("AuthMethod", o)
			return StatusSuccess, ""
		}
	}
	return StatusAuthenticationFailure, fmt.Sprintf("authentication by %s is required, the initiator offers %s", strings.Join(ours, " or "), list)
}

func (m *Machine) answer(key, value string) { m.out = pdu.AppendKey(m.out, key, value) }

// respond builds the next response: as much of the answer as fits, and the transition when all of it does.
func (m *Machine) respond(req *pdu.LoginRequest, whole bool) Result {
	r := Result{State: StateMore}
	m.prepare(&r.Response, req)
	m.segment = append(m.segment[:0], m.out[:min(len(m.out), MaxSegment)]...)
	m.out = m.out[:copy(m.out, m.out[len(m.segment):])]
	r.Data = m.segment
	switch {
	case len(m.out) > 0:
		r.Response.SetContinue(true)
	case whole && req.Transit() && (m.stage != pdu.StageSecurity || m.authDone):
		r.Response.SetTransit(true)
		r.Response.SetNSG(req.NSG())
		m.stage = req.NSG()
		if m.stage == pdu.StageFullFeature {
			r.State = StateComplete
		}
	}
	return r
}

func (m *Machine) prepare(resp *pdu.LoginResponse, req *pdu.LoginRequest) {
	resp.Init()
	resp.SetCSG(req.CSG())
	resp.SetISID(req.ISID())
	resp.SetTSIH(req.TSIH())
	resp.SetInitiatorTaskTag(req.InitiatorTaskTag())
}

func (m *Machine) fail(req *pdu.LoginRequest, s Status, cause string) Result {
	m.failed = true
	m.out, m.text = nil, nil
	r := Result{State: StateFailed, Status: s, Cause: cause}
	m.prepare(&r.Response, req)
	r.Response.SetStatusClass(s.Class())
	r.Response.SetStatusDetail(s.Detail())
	if s.Class() == 1 && m.decision.RedirectAddress != "" {
		r.Data = pdu.AppendKey(nil, "TargetAddress", m.decision.RedirectAddress)
	}
	return r
}

// FullFeatureKey answers a key of a Text Request in full feature phase: a new declaration is taken (answer empty), a key
// that belongs to login is refused.
func (m *Machine) FullFeatureKey(key string, value []byte) (answer string) {
	r, ok := rules[key]
	switch {
	case !ok:
		return notUnderstood
	case key == "MaxRecvDataSegmentLength" && r.kind == kindDeclare:
		return m.operational(key, value)
	}
	return reject
}
