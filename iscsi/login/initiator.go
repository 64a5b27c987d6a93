package login

import (
	"errors"
	"fmt"
	"strconv"

	"iserd/iscsi/pdu"
)

// Initiator is the initiator's side of one login without authentication: in the operational stage from the start, or
// through the security stage when Security is set. Fields are set before the first Next.
type Initiator struct {
	Transport Transport
	Names     Names
	// Keys are the operational keys to offer; nil offers [DefaultKeys]. Duplicates and nonsense go out as they are.
	Keys     []KeyValue
	Security bool
	Tag      uint32

	// Answers are the target's keys, filled in as they come; TSIH is that of the final response.
	Answers map[string]string
	TSIH    uint16

	n     negotiation
	stage pdu.Stage
	begun bool
	// pending is the text that has not been sent, in what has been received of a continued answer.
	pending, in []byte
	sent        map[string]string
	done        bool
}

// ErrRefused is wrapped by the error of a login that the target refused.
var ErrRefused = errors.New("login: refused")

// ErrNegotiation is wrapped by the error of a login whose answers make no sense.
var ErrNegotiation = errors.New("login: negotiation failed")

// RefusedError is a refusal with its status. After a redirection Answers has the TargetAddress.
type RefusedError struct{ Status Status }

func (e *RefusedError) Error() string { return "login: refused: " + e.Status.String() }

// Unwrap lets errors.Is find ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }

// DefaultKeys are the operational keys of a usual initiator.
func DefaultKeys(t Transport, s SessionType) []KeyValue {
	if t == TransportISER && s == SessionNormal {
		return []KeyValue{{"RDMAExtensions", "Yes"}, {"InitialR2T", "No"}, {"ImmediateData", "Yes"}, {"MaxBurstLength", "16776192"},
			{"FirstBurstLength", "262144"}, {"InitiatorRecvDataSegmentLength", "262144"}, {"TargetRecvDataSegmentLength", "8192"},
			{"ErrorRecoveryLevel", "0"}, {"MaxOutstandingR2T", "1"}}
	}
	keys := []KeyValue{{"HeaderDigest", none}, {"DataDigest", none}, {"MaxRecvDataSegmentLength", "262144"}}
	if s == SessionNormal {
		keys = append(keys, KeyValue{"InitialR2T", "No"}, KeyValue{"ImmediateData", "Yes"}, KeyValue{"MaxBurstLength", "16776192"},
			KeyValue{"FirstBurstLength", "262144"}, KeyValue{"MaxOutstandingR2T", "1"}, KeyValue{"ErrorRecoveryLevel", "0"},
			KeyValue{"DefaultTime2Wait", "2"}, KeyValue{"DefaultTime2Retain", "0"}, KeyValue{"MaxConnections", "1"})
	}
	return keys
}

// Params is what was negotiated, as this side sees it (MaxSendDataSegmentLength is towards the target). It is final once
// Response has said done.
func (i *Initiator) Params() Params { return i.n.params }

func (i *Initiator) begin() {
	i.begun = true
	i.Answers = map[string]string{}
	i.sent = map[string]string{}
	i.n.params = defaultParams(i.Transport)
	i.n.params.SessionType = i.Names.SessionType
	i.stage = pdu.StageOperational
	if i.Security {
		i.stage = pdu.StageSecurity
	}
	i.say("InitiatorName", i.Names.InitiatorName)
	if i.Names.InitiatorAlias != "" {
		i.say("InitiatorAlias", i.Names.InitiatorAlias)
	}
	i.say("SessionType", i.Names.SessionType.String())
	if i.Names.TargetName != "" {
		i.say("TargetName", i.Names.TargetName)
	}
	if i.Security {
		i.say("AuthMethod", none)
		return
	}
	i.offer()
}

func (i *Initiator) say(key, value string) {
	i.sent[key] = value
	i.pending = pdu.AppendKey(i.pending, key, value)
}

// offer says the operational keys.
func (i *Initiator) offer() {
	keys := i.Keys
	if keys == nil {
		keys = DefaultKeys(i.Transport, i.Names.SessionType)
	}
	for _, kv := range keys {
		i.say(kv.Key, kv.Value)
	}
}

// Next gives the next request; the caller sets CmdSN and ExpStatSN. The data is valid until the next call of Response.
func (i *Initiator) Next() (pdu.LoginRequest, []byte) {
	if !i.begun {
		i.begin()
	}
	var req pdu.LoginRequest
	req.Init()
	req.BHS().SetImmediate(true)
	req.SetISID(i.Names.ISID)
	req.SetTSIH(i.Names.TSIH)
	req.SetCID(i.Names.CID)
	req.SetInitiatorTaskTag(i.Tag)
	req.SetCSG(i.stage)
	data := i.pending
	switch {
	case len(data) > MaxSegment:
		data = data[:MaxSegment]
		req.SetContinue(true)
	case i.stage == pdu.StageSecurity:
		req.SetTransit(true)
		req.SetNSG(pdu.StageOperational)
	default:
		req.SetTransit(true)
		req.SetNSG(pdu.StageFullFeature)
	}
	i.pending = i.pending[len(data):]
	req.BHS().SetDataSegmentLength(len(data))
	return req, data
}

// Response takes a response. done says that the full feature phase has begun; otherwise Next gives the next request.
func (i *Initiator) Response(resp *pdu.LoginResponse, data []byte) (done bool, err error) {
	if s := Status(resp.StatusClass())<<8 | Status(resp.StatusDetail()); s != StatusSuccess {
		// What a refusal has to say is a redirection's address; text that does not parse makes it no less a refusal.
		_ = pdu.ParseKeys(data, func(k, v []byte) error {
			i.Answers[string(k)] = string(v)
			return nil
		})
		return false, &RefusedError{Status: s}
	}
	switch {
	case !i.begun || i.done:
		return false, fmt.Errorf("%w: a response to nothing", ErrNegotiation)
	case resp.ISID() != i.Names.ISID || resp.InitiatorTaskTag() != i.Tag:
		return false, fmt.Errorf("%w: the response is to another request", ErrNegotiation)
	case len(i.in)+len(data) > maxText:
		return false, fmt.Errorf("%w: more than %d bytes in one answer", ErrNegotiation, maxText)
	case resp.Transit() && (resp.Continue() || len(i.pending) > 0):
		return false, fmt.Errorf("%w: the target leaves the stage in the middle of the text", ErrNegotiation)
	}
	i.in = append(i.in, data...)
	if resp.Continue() || len(i.pending) > 0 {
		return false, nil
	}
	text := i.in
	i.in = nil
	if err := pdu.ParseKeys(text, i.answer); err != nil {
		return false, err
	}
	if !resp.Transit() {
		return false, nil
	}
	switch nsg := resp.NSG(); {
	case nsg == pdu.StageOperational && i.stage == pdu.StageSecurity:
		i.stage = nsg
		i.offer()
		return false, nil
	case nsg == pdu.StageFullFeature && i.stage == pdu.StageOperational:
		return true, i.finish(resp)
	}
	return false, fmt.Errorf("%w: the target goes from stage %d to %d", ErrNegotiation, i.stage, resp.NSG())
}

// answer takes one key of the target: the answer to ours, a declaration, or an offer.
func (i *Initiator) answer(key, value []byte) error {
	k, v := string(key), string(value)
	i.Answers[k] = v
	row := keyIndex[k]
	if row == nil || row.target || isAnswerWord(v) {
		return nil
	}
	switch _, asked := i.sent[k]; row.kind {
	case kindSegment:
		_, fatal := i.n.answer(row, v)
		if fatal != "" {
			return fmt.Errorf("%w: %s", ErrNegotiation, fatal)
		}
	case kindNumber:
		n, err := pdu.ParseNumber(value)
		if err != nil || n < row.lo || n > row.hi {
			return fmt.Errorf("%w: %s=%s", ErrNegotiation, k, clip(v))
		}
		row.set(&i.n.params, n)
		if !asked {
			i.say(k, strconv.FormatUint(n, 10))
		}
	case kindBool:
		b, err := pdu.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%w: %s=%s", ErrNegotiation, k, clip(v))
		}
		row.set(&i.n.params, truth(b))
		if !asked {
			i.say(k, v)
		}
	case kindList:
		if row.sets != nil && asked {
			row.sets(&i.n.params, v)
		}
	}
	return nil
}

// finish checks what a target must get right (known-faults B22) and makes the parameters this side's.
func (i *Initiator) finish(resp *pdu.LoginResponse) error {
	i.done = true
	i.stage = pdu.StageFullFeature
	i.TSIH = resp.TSIH()
	p := &i.n.params
	if i.TSIH == 0 && i.Names.SessionType == SessionNormal {
		return fmt.Errorf("%w: the target gave no TSIH", ErrNegotiation)
	}
	if p.FirstBurstLength > p.MaxBurstLength && i.Answers["FirstBurstLength"] != "" {
		return fmt.Errorf("%w: FirstBurstLength %d is more than MaxBurstLength %d", ErrNegotiation, p.FirstBurstLength, p.MaxBurstLength)
	}
	if n, err := pdu.ParseNumber([]byte(i.sent["MaxRecvDataSegmentLength"])); err == nil {
		p.MaxRecvDataSegmentLength = uint32(min(n, maxSegment))
	}
	i.n.finish()
	if p.Transport == TransportISER && p.SessionType == SessionNormal {
		if !p.RDMAExtensions {
			return fmt.Errorf("%w: the target does not do RDMAExtensions", ErrNegotiation)
		}
		p.MaxSendDataSegmentLength, p.MaxRecvDataSegmentLength = p.TargetRecvDataSegmentLength, p.InitiatorRecvDataSegmentLength
	}
	return nil
}
