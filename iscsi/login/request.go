package login

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"iserd/iscsi/pdu"
)

// splitKeys copies the pairs out of text.
func splitKeys(text []byte) ([]KeyValue, error) {
	var keys []KeyValue
	err := pdu.ParseKeys(text, func(key, value []byte) error {
		keys = append(keys, KeyValue{string(key), string(value)})
		return nil
	})
	return keys, err
}

// note keeps what the initiator says to a key that this machine knows. It says whether the key is a repeat: the same
// again is borne (known-faults B6), and so is the value that we answered (libiscsi says everything again, with what it
// has learnt, when a stage is not left at once). Something else is not.
func (m *Machine) note(row *keyRow, kv KeyValue) (repeat bool, r *Result) {
	limit := row.maxValue
	if limit == 0 {
		limit = pdu.MaxValueLength
	}
	if len(kv.Value) > limit {
		// known-faults B9.
		return false, m.failf(StatusInitiatorError, "%s has %d bytes, more than %d", kv.Key, len(kv.Value), limit)
	}
	was, seen := m.offered[kv.Key]
	if answered := m.answered[kv.Key]; seen && was != kv.Value && (answered == "" || answered != kv.Value) {
		return false, m.failf(StatusInitiatorError, "%s=%s after %s=%s", kv.Key, clip(kv.Value), kv.Key, clip(was))
	}
	if !seen {
		m.offered[kv.Key] = kv.Value
	}
	return seen, nil
}

// identify reads the names out of the first request and asks the resolver.
func (m *Machine) identify(keys []KeyValue) *Result {
	if m.resolved {
		return nil
	}
	n := &m.names
	for _, kv := range keys {
		switch kv.Key {
		case "InitiatorName", "TargetName", "InitiatorAlias", "SessionType":
		default:
			continue
		}
		if _, r := m.note(keyIndex[kv.Key], kv); r != nil {
			return r
		}
		if !plain(kv.Value) {
			return m.failf(StatusInitiatorError, "%s=%s", kv.Key, clip(kv.Value))
		}
		switch kv.Key {
		case "InitiatorName":
			n.InitiatorName = pdu.NormalizeName(kv.Value)
		case "TargetName":
			n.TargetName = pdu.NormalizeName(kv.Value)
		case "InitiatorAlias":
			n.InitiatorAlias = kv.Value
		case "SessionType":
			switch kv.Value {
			case "Normal":
				n.SessionType = SessionNormal
			case "Discovery":
				n.SessionType = SessionDiscovery
			default:
				return m.failf(StatusSessionTypeUnsupported, "SessionType=%s", clip(kv.Value))
			}
		}
	}
	m.params.SessionType = n.SessionType
	switch {
	case n.InitiatorName == "":
		return m.failf(StatusMissingParameter, "the first request has no InitiatorName")
	case n.TargetName == "" && n.SessionType == SessionNormal:
		return m.failf(StatusMissingParameter, "the first request of a normal session has no TargetName")
	}
	m.resolved = true
	m.decision = m.resolve(*n)
	d := &m.decision
	if d.Status != StatusSuccess {
		r := m.failf(d.Status, "%s", d.Cause)
		if d.Status.Redirect() {
			m.out = pdu.AppendKey(m.out[:0], "TargetAddress", d.RedirectAddress)
			r.Data = m.out
			r.Response.BHS().SetDataSegmentLength(len(r.Data))
		}
		return r
	}
	m.auth.begin(d.Authenticator)
	if m.stage != pdu.StageSecurity && !m.auth.done {
		// known-faults B35, B41.
		return m.failf(StatusAuthenticationFailure, "%s must prove itself and skips the security stage", n.InitiatorName)
	}
	if n.SessionType == SessionNormal {
		// RFC 7143: the tag goes out with the first response of a normal session.
		m.put("TargetPortalGroupTag", strconv.FormatUint(uint64(d.TargetPortalGroupTag), 10))
		if d.TargetAlias != "" {
			m.put("TargetAlias", d.TargetAlias)
		}
	}
	return nil
}

// plain is looser than [pdu.ValidName]: initiators are named by people. What would spoil a log or a list is refused.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// answerKeys answers all keys of a complete request but the names that identify has read.
func (m *Machine) answerKeys(keys []KeyValue) *Result {
	var security []KeyValue
	var firstBurst []KeyValue
	seen := make(map[string]bool, len(keys))
	for _, kv := range keys {
		row := keyIndex[kv.Key]
		switch {
		case row == nil:
			if !isAnswerWord(kv.Value) && !seen[kv.Key] {
				m.put(kv.Key, notUnderstood)
			}
			seen[kv.Key] = true
			continue
		case isAnswerWord(kv.Value):
			// The initiator's word on something that we sent; the default or our value stands.
			delete(m.proposed, kv.Key)
			continue
		case row.kind == kindAuth:
			if _, r := m.note(row, kv); r != nil {
				return r
			}
			if !seen[kv.Key] {
				security = append(security, kv)
			}
			seen[kv.Key] = true
			continue
		}
		if seen[kv.Key] {
			if _, r := m.note(row, kv); r != nil {
				return r
			}
			continue
		}
		seen[kv.Key] = true
		if kv.Key == "FirstBurstLength" {
			// It is bounded by MaxBurstLength, which may come after it.
			firstBurst = append(firstBurst, kv)
			continue
		}
		if r := m.answerKey(row, kv); r != nil {
			return r
		}
	}
	for _, kv := range firstBurst {
		if r := m.answerKey(keyIndex[kv.Key], kv); r != nil {
			return r
		}
	}
	return m.authenticate(security)
}

func (m *Machine) answerKey(row *keyRow, kv KeyValue) *Result {
	if m.proposed[kv.Key] {
		// The answer to our offer; it needs none.
		delete(m.proposed, kv.Key)
		return m.conclude(row, kv)
	}
	repeat, r := m.note(row, kv)
	if r != nil {
		return r
	}
	if row.kind == kindText {
		return m.lateName(kv)
	}
	if row.stages&inOperational != 0 {
		// Boot firmware offers operational keys in the security stage; answering is the way to serve it.
		m.operational = true
	}
	answer := m.answered[kv.Key]
	if !repeat {
		var fatal string
		if answer, fatal = m.answer(row, kv.Value); fatal != "" {
			return m.failf(StatusInitiatorError, "%s", fatal)
		}
		m.answered[kv.Key] = answer
	}
	if answer != "" {
		m.put(kv.Key, answer)
	}
	if first, ok := m.answered["FirstBurstLength"]; ok && first != reject && kv.Key == "MaxBurstLength" &&
		m.params.FirstBurstLength > m.params.MaxBurstLength {
		// known-faults B22: the smaller burst came too late to say anything else.
		return m.failf(StatusInitiatorError, "MaxBurstLength=%d after FirstBurstLength=%d", m.params.MaxBurstLength, m.params.FirstBurstLength)
	}
	return nil
}

// conclude takes the answer to a key that we offered. It cannot widen what we offered.
func (m *Machine) conclude(row *keyRow, kv KeyValue) *Result {
	ours := m.offered[kv.Key]
	m.offered[kv.Key] = kv.Value
	answer, _ := m.answer(row, kv.Value)
	// Both sides must now mean the same; the initiator may write its number in hexadecimal.
	theirs, err := pdu.ParseNumber([]byte(kv.Value))
	if answer != kv.Value && (err != nil || answer != strconv.FormatUint(theirs, 10)) {
		return m.failf(StatusInitiatorError, "%s=%s in answer to %s=%s", kv.Key, clip(kv.Value), kv.Key, ours)
	}
	return nil
}

// lateName bears names that were already given, and an alias at any time.
func (m *Machine) lateName(kv KeyValue) *Result {
	bad := false
	switch kv.Key {
	case "InitiatorName":
		bad = pdu.NormalizeName(kv.Value) != m.names.InitiatorName
	case "TargetName":
		bad = pdu.NormalizeName(kv.Value) != m.names.TargetName
	case "SessionType":
		bad = kv.Value != m.names.SessionType.String()
	case "InitiatorAlias":
		m.names.InitiatorAlias = kv.Value
	}
	if bad {
		return m.failf(StatusInitiatorError, "%s=%s after the first request", kv.Key, clip(kv.Value))
	}
	return nil
}
