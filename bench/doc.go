// Package bench is a load generator: an initiator that keeps a fixed number of reads and writes under way at a LUN and
// measures how many it completes and how long each takes. It speaks iSER, over any provider of package rdma, and iSCSI
// over TCP; the two are driven by the same code, so that their figures can be compared.
//
// It is no benchmark of a file system or a kernel: there is no page cache, no block layer and no scheduler between it and
// the wire.
//
// # How a run goes
//
//	ParseURL -> Connect (provider, login, capacity) -> for each Point: Sessions.Run -> Report -> table, JSON, CSV, HTML
//
// Each session belongs to one goroutine for the length of a point. It fills the queue up to the depth, hands everything
// over in one batch, and takes what has completed; the clock is read once per batch, so that a latency includes the time
// a request waits for its batch. In steady state a request allocates nothing.
//
// # Latency
//
// With a rate (open loop) a latency counts from when the request was due, not from when a slot was free: a target that
// stalls cannot hide it by slowing the load down. Without one (closed loop) it counts from the hand-over.
package bench
