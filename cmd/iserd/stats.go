package main

import (
	"runtime"

	"go.uber.org/zap"

	"iserd/target"
)

// logStats writes one line with what is in use and what was done.
func logStats(log *zap.Logger, sys *target.System) {
	s := sys.Stats()
	t := s.ISER.Total()
	f := []zap.Field{
		zap.Int("goroutines", runtime.NumGoroutine()),
		zap.Int("sessions", s.Node.Sessions), zap.Int("connections", s.Node.Connections), zap.Int("in_login", s.Node.InLogin),
		zap.Uint64("logins", s.Node.Logins), zap.Uint64("refusals", s.Node.Refusals), zap.Uint64("lost", s.Node.Lost),
		zap.Uint64("rejects", s.Node.Rejects), zap.Uint64("malformed", s.Node.Malformed), zap.Uint64("busy", s.Node.Busy),
		zap.Uint64("qps", t.QPs), zap.Uint64("iser_connections", t.Connections), zap.Uint64("buffers_in_use", t.BuffersInUse),
		zap.Int64("tcp_buffer_bytes", s.TCP.BufferBytes), zap.Int("tcp_connections", s.TCP.Connections),
		zap.Uint64("recv_posted", t.RecvPosted), zap.Uint64("pool_bytes", t.PoolBytes), zap.Uint64("pool_free", t.PoolFree),
		zap.Uint64("polls", t.Polls), zap.Uint64("idle_polls", t.IdlePolls), zap.Uint64("completions", t.Completions),
		zap.Uint64("cq_events", t.Events), zap.Uint64("wakeups", t.Wakeups), zap.Uint64("posts", t.Posts), zap.Uint64("doorbells", t.Doorbells),
		zap.Uint64("sends", t.Sends), zap.Uint64("rdma_writes", t.RDMAWrites), zap.Uint64("rdma_reads", t.RDMAReads),
		zap.Uint64("wait_sq", t.WaitSQ), zap.Uint64("wait_ord", t.WaitORD), zap.Uint64("wait_buffers", t.WaitBuffers),
	}
	for _, c := range s.RDMA {
		f = append(f, zap.Uint64("rdma_"+c.Name, c.Value))
	}
	log.Info("stats", f...)
}
