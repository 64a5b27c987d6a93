package target

import (
	"iserd/iscsi"
	"iserd/iscsi/tcp"
	"iserd/iser"
)

// Stats are the counters of every part; reading them stops nothing.
type Stats struct {
	Node iscsi.Stats
	TCP  tcp.Stats
	ISER iser.Stats
}

// Stats reads the counters.
func (s *System) Stats() Stats {
	st := Stats{Node: s.node.Stats(), TCP: s.tcp.Stats()}
	if s.iser != nil {
		st.ISER = s.iser.Stats()
	}
	return st
}
