// Package rdma states RDMA in Go terms: devices, protection domains, memory regions, completion queues, queue pairs,
// work requests and connection events, as interfaces and plain structs. It is a leaf: it imports nothing of this
// project. The providers behind it are rdma/verbs (rdma-core through cgo) and rdma/rdmatest (an in-memory fake).
//
// Everything speaks in batches. [Device.Post] takes the work of many queue pairs in one call and hands each queue pair
// its receives and sends as one linked list each; [CQ.Poll] reaps up to len(wcs) completions. A provider makes at most
// one crossing into C for each such call.
//
// # Memory
//
// Data buffers lie outside the Go heap (see [MapArena]) and are registered once; a work request names them by address
// and key, never by a Go pointer. A buffer belongs to the provider from the post until the completion that covers it
// was polled: for an unsignaled request that is the next signaled completion of the same queue.
//
// # Concurrency
//
// A [CQ], and the queue pairs on it, are used by one goroutine at a time (the shard that owns them); callers provide
// the exclusion. [CompletionChannel.Wake] may be called by anyone at any time. An [EventChannel] has one reader;
// connections on it are controlled by any one goroutine at a time.
//
// # Life of a passive connection
//
//	EventConnectRequest -> Conn.CreateQP -> post receives -> Conn.Accept -> EventEstablished ... EventDisconnected
//	                    \-> Conn.Reject -> Conn.Close
//	at any time: EventDeviceRemoval, EventUnreachable, EventConnectError, EventTimewaitExit, in any order
//
// To close: Conn.Disconnect (or QP.SetError), post or await sentinels until every posted request has completed with
// [StatusFlushed] or otherwise, QP.Close, Conn.Close. A connection may be closed in any state.
package rdma
