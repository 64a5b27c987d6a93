package login

import (
	"fmt"
	"strconv"

	"iserd/iscsi/pdu"
)

// negotiation is what both sides of a login share: the values of this side and what has been agreed.
type negotiation struct {
	limits Limits
	params Params
}

// digest says that this connection may have a digest. A discovery session has none (known-faults B5); over iSER the RDMA
// transport protects the data.
func (n *negotiation) digest(name string) bool {
	return name == none ||
		name == digestCRC32C && n.limits.Digests && n.params.Transport == TransportTCP && n.params.SessionType == SessionNormal
}

// irrelevant says that the key means nothing in this session or on this transport.
func (n *negotiation) irrelevant(row *keyRow) bool {
	return row.normal && n.params.SessionType == SessionDiscovery ||
		row.only != 0 && row.only&n.params.Transport.set() == 0
}

// declared says that a key of this kind is never answered.
func (k keyKind) declared() bool {
	return k == kindText || k == kindSegment || k == kindNote || k == kindNoteBool
}

// answer combines the peer's value with ours, keeps the result and gives the text to answer ("" for none). A value that
// ends the login gives a cause.
func (n *negotiation) answer(row *keyRow, value string) (answer, fatal string) {
	if n.irrelevant(row) {
		if row.kind.declared() {
			return "", ""
		}
		return irrelevant, ""
	}
	switch row.kind {
	case kindText:
		return "", ""
	case kindMarkers:
		return "No", ""
	case kindSegment, kindNote, kindNumber:
		return n.number(row, value)
	case kindBool, kindNoteBool:
		v, err := pdu.ParseBool([]byte(value))
		if err != nil {
			return reject, ""
		}
		if row.kind == kindNoteBool {
			row.set(&n.params, truth(v))
			return "", ""
		}
		r := row.combine(truth(v), row.ours(n))
		row.set(&n.params, r)
		return boolText(r), ""
	case kindList:
		chosen := reject
		pdu.EachValue([]byte(value), func(member []byte) bool {
			if row.accepts(n, string(member)) {
				chosen = string(member)
				return false
			}
			return true
		})
		if chosen != reject && row.sets != nil {
			row.sets(&n.params, chosen)
		}
		return chosen, ""
	}
	return reject, ""
}

func (n *negotiation) number(row *keyRow, value string) (answer, fatal string) {
	v, err := pdu.ParseNumber([]byte(value))
	if err == nil && v > row.hi && (row.kind == kindSegment || row.kind == kindNumber && row.fn == combineMin) {
		// More than the standard's maximum: what counts is the smaller of two values, so the maximum says the same
		// (known-faults B19).
		v = row.hi
	}
	if err != nil || v < row.lo || v > row.hi {
		if row.kind == kindSegment {
			// The default would be more than the peer can take; there is nothing to go on with.
			return "", fmt.Sprintf("%s=%s is not a number from %d to %d", row.name, clip(value), row.lo, row.hi)
		}
		return reject, ""
	}
	if row.kind != kindNumber {
		row.set(&n.params, v)
		return "", ""
	}
	r := row.combine(v, row.ours(n))
	row.set(&n.params, r)
	return strconv.FormatUint(r, 10), ""
}

func (r *keyRow) combine(a, b uint64) uint64 {
	switch r.fn {
	case combineMax, combineOr:
		return max(a, b)
	}
	return min(a, b) // combineMin, combineAnd
}

func boolText(v uint64) string {
	if v != 0 {
		return "Yes"
	}
	return "No"
}

// finish makes the parameters agree with each other when login is done.
func (n *negotiation) finish() {
	p := &n.params
	p.FirstBurstLength = min(p.FirstBurstLength, p.MaxBurstLength)
	if p.Transport != TransportISER {
		return
	}
	if p.SessionType == SessionDiscovery {
		// Initiators keep the buffers of the login phase for the whole of a discovery session over iSER, whatever they
		// declare.
		p.MaxSendDataSegmentLength = min(p.MaxSendDataSegmentLength, MaxSegment)
		p.MaxRecvDataSegmentLength = min(p.MaxRecvDataSegmentLength, MaxSegment)
	}
}

// finishTarget is finish for the side that sends to the initiator.
func (n *negotiation) finishTarget() {
	n.finish()
	if p := &n.params; p.Transport == TransportISER && p.SessionType == SessionNormal {
		p.MaxSendDataSegmentLength, p.MaxRecvDataSegmentLength = p.InitiatorRecvDataSegmentLength, p.TargetRecvDataSegmentLength
	}
}

// clip keeps hostile input short and printable in a cause.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "..."
	}
	return strconv.Quote(s)
}
