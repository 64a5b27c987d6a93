package target

import (
	"iserd/iscsi"
	"iserd/iscsi/tcp"
	"iserd/iser"
	"iserd/rdma"
)

// Stats are the counters of every part; reading them stops nothing.
type Stats struct {
	Node iscsi.Stats
	TCP  tcp.Stats
	ISER iser.Stats
	RDMA []rdma.Counter // what the provider counts, if it does
}

// Stats reads the counters.
func (s *System) Stats() Stats {
	st := Stats{Node: s.node.Stats(), TCP: s.tcp.Stats()}
	if s.iser != nil {
		st.ISER = s.iser.Stats()
		if p, ok := s.provider.(rdma.Counted); ok {
			st.RDMA = p.Counters()
		}
	}
	return st
}
