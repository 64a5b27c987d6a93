package login

import "iserd/iscsi/pdu"

// FullFeatureKey answers a key of a Text Request in the full feature phase, SendTargets excepted. answer is the value to
// send back, "" for none; changed says that Params are not what they were (the datamover is to be told).
func (m *Machine) FullFeatureKey(key, value string) (answer string, changed bool) {
	if isAnswerWord(value) {
		return "", false
	}
	row := keyIndex[key]
	if row == nil {
		return notUnderstood, false
	}
	if len(value) > pdu.MaxValueLength || row.stages&inFullFeature == 0 {
		// Keys of the login phase are not for this one.
		return reject, false
	}
	switch row.kind {
	case kindText:
		m.names.InitiatorAlias = value
		return "", false
	case kindSegment:
		if m.params.Transport == TransportISER && m.params.SessionType == SessionNormal {
			// Declared or not, it does not count where the RDMA keys do.
			return "", false
		}
		before := m.params.MaxSendDataSegmentLength
		if _, fatal := m.negotiation.answer(row, value); fatal != "" {
			return reject, false
		}
		m.finishTarget()
		return "", before != m.params.MaxSendDataSegmentLength
	}
	return reject, false
}
