package login

import (
	"errors"
	"fmt"

	"iserd/iscsi/pdu"
)

// Initiator is the initiator's side of one login without authentication: in the operational stage from the start, or
// through the security stage when Security is set.
type Initiator struct {
	Transport Transport
	Names     Names
	// Keys are the operational keys to offer; nil offers the usual ones of the transport and session type.
	Keys     []KeyValue
	Security bool
	Tag      uint32

	// Answers are the target's keys, filled in as they come; TSIH is that of the final response.
	Answers map[string]string
	TSIH    uint16

	stage pdu.Stage
	begun bool
	data  []byte
}

// ErrRefused is wrapped by the error of a login that the target refused.
var ErrRefused = errors.New("login: refused")

// RefusedError is a refusal with its status.
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
	keys := []KeyValue{{"HeaderDigest", "None"}, {"DataDigest", "None"}, {"MaxRecvDataSegmentLength", "262144"}}
	if s == SessionNormal {
		keys = append(keys, KeyValue{"InitialR2T", "No"}, KeyValue{"ImmediateData", "Yes"}, KeyValue{"MaxBurstLength", "16776192"},
			KeyValue{"FirstBurstLength", "262144"}, KeyValue{"MaxOutstandingR2T", "1"}, KeyValue{"ErrorRecoveryLevel", "0"},
			KeyValue{"DefaultTime2Wait", "2"}, KeyValue{"DefaultTime2Retain", "0"}, KeyValue{"MaxConnections", "1"})
	}
	return keys
}

// Next gives the next request; the caller sets CmdSN and ExpStatSN. The data is valid until the next call.
func (i *Initiator) Next() (pdu.LoginRequest, []byte) {
	var req pdu.LoginRequest
	req.Init()
	req.BHS().SetImmediate(true)
	req.SetISID(i.Names.ISID)
	req.SetTSIH(i.Names.TSIH)
	req.SetCID(i.Names.CID)
	req.SetInitiatorTaskTag(i.Tag)
	i.data = i.data[:0]
	if !i.begun {
		i.begun = true
		i.Answers = map[string]string{}
		i.stage = pdu.StageOperational
		if i.Security {
			i.stage = pdu.StageSecurity
		}
		i.data = pdu.AppendKey(i.data, "InitiatorName", i.Names.InitiatorName)
		i.data = pdu.AppendKey(i.data, "SessionType", i.Names.SessionType.String())
		if i.Names.TargetName != "" {
			i.data = pdu.AppendKey(i.data, "TargetName", i.Names.TargetName)
		}
		if i.Security {
			i.data = pdu.AppendKey(i.data, "AuthMethod", "None")
		}
	}
	req.SetCSG(i.stage)
	req.SetTransit(true)
	if i.stage == pdu.StageSecurity {
		req.SetNSG(pdu.StageOperational)
		return req, i.data
	}
	req.SetNSG(pdu.StageFullFeature)
	keys := i.Keys
	if keys == nil {
		keys = DefaultKeys(i.Transport, i.Names.SessionType)
	}
	for _, kv := range keys {
		if _, answered := i.Answers[kv.Key]; !answered {
			i.data = pdu.AppendKey(i.data, kv.Key, kv.Value)
		}
	}
	return req, i.data
}

// Response takes a response. done says that the full feature phase has begun; otherwise Next gives the next request.
func (i *Initiator) Response(resp *pdu.LoginResponse, data []byte) (done bool, err error) {
	if s := Status(resp.StatusClass())<<8 | Status(resp.StatusDetail()); s != StatusSuccess {
		return false, &RefusedError{Status: s}
	}
	err = pdu.ParseKeys(data, func(k, v []byte) error {
		i.Answers[string(k)] = string(v)
		return nil
	})
	if err != nil {
		return false, err
	}
	if !resp.Transit() {
		return false, nil
	}
	if i.stage = resp.NSG(); i.stage == pdu.StageFullFeature {
		i.TSIH = resp.TSIH()
		if i.TSIH == 0 && i.Names.SessionType == SessionNormal {
			return false, fmt.Errorf("login: the target gave no session handle")
		}
		return true, nil
	}
	return false, nil
}
