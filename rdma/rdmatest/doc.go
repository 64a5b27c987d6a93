// Package rdmatest is an in-memory [rdma.Provider]: a fabric with devices, reliable connected queue pairs and a
// connection manager, for tests of everything above package rdma. It keeps the rules that a real device keeps and that
// software gets wrong: queue depths, keys and bounds, RNR, RDMA READ depth, flushing in order, completion queue
// overrun, zero-padded private data. It can be told to misbehave in the ways that real devices and peers do; see
// [Faults]. It is not a model of time: work is done at once, in the goroutine that posts it.
//
// # Objects
//
//	Fabric -- Provider (a machine) -- Device -- PD -- MR
//	      \                                 \-- CompletionChannel -- CQ
//	       \-- Provider -- EventChannel -- Listener, Conn -- QP
//
// One lock, the fabric's, guards all of it. Posting, polling and waking allocate nothing.
//
// # A request's way
//
//	posted -> executed, as far as order, fence, READ depth, RNR and the link let it -> retired in order -> CQ -> polled
//
// A slot of a send queue comes back when the completion of it, or of a later request, is polled; that of a receive
// queue when its own completion is. A full queue gives ENOMEM.
//
// # Unlike the real thing
//
// A queue is exactly as deep as was asked, where devices round up: nothing must depend on the surplus. Failed
// completions carry garbage wherever [rdma.WC] says that a field is not valid.
package rdmatest
