package login

import "iserd/iscsi/pdu"

// FullFeatureKey answers a key of a Text Request in the full feature phase, SendTargets excepted. The answer is the value
// to send back, "" for none. Params may be other than before; the datamover is then to be told.
func (m *Machine) FullFeatureKey(key string, value []byte) (answer string) {
	v := string(value)
	if isAnswerWord(v) {
		return ""
	}
	row := keyIndex[key]
	if row == nil {
		return notUnderstood
	}
	if len(v) > pdu.MaxValueLength || row.stages&inFullFeature == 0 {
		// Keys of the login phase are not for this one.
		return reject
	}
	switch row.kind {
	case kindText:
		m.names.InitiatorAlias = v
		return ""
	case kindSegment:
		if _, fatal := m.answer(row, v); fatal != "" {
			return reject
		}
		m.finishTarget()
		return ""
	}
	return reject
}
