package tcp

// SetBufferLimit sets a limit for task buffers that Config would refuse.
func (s *Server) SetBufferLimit(n int64) {
	s.buffers.mu.Lock()
	defer s.buffers.mu.Unlock()
	s.buffers.limit, s.buffers.reserve = n, 0
}
