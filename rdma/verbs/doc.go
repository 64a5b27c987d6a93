// Package verbs is the [rdma.Provider] over rdma-core: libibverbs and librdmacm, through cgo. It drives every adapter
// that they drive: ConnectX and its like, and the kernel's soft-RoCE (rxe) and soft-iWARP (siw). It knows nothing of
// iSCSI. It is the only package that has `import "C"`; built without cgo, or with the tag nordma, [New] says what is
// lacking and everything else of the program goes on.
//
// # Crossings
//
// [rdma.CQ.Poll] and [rdma.Device.Post] cross into C once per call, however many completions or queue pairs there
// are. Post marshals Go work requests into arrays that live in C memory, with room for maxPosts queue pairs and
// maxSends sends; more than that is posted in further crossings. C links the requests and calls ibv_post_recv and
// ibv_post_send once per queue pair, which is one doorbell (on rxe: one system call). No Go pointer enters C for longer
// than a call, and none at all on these two paths. [StatsOf] counts crossings.
//
// # Waiting
//
// No call into C blocks. The descriptors of completion channels, of connection events and of asynchronous events are
// set non-blocking, duplicated, and the duplicates wait in the Go poller. Whatever comes is taken, copied and
// acknowledged in one C call, so destroying an object, which waits for acknowledgements, never waits for Go.
//
// # Who may call what
//
// As package rdma says. Inside: the provider's lock guards the table of devices; an event channel's fetchMu keeps fetching
// an event apart from destroying a queue pair, because librdmacm changes the queue pair while it fetches. Lock order:
// listener, event channel, then provider.
//
// # Owners
//
//	provider ─┬─ device ─┬─ PD ── MR
//	          │          ├─ completion channel ── CQ
//	          │          └─ async reader (one goroutine)
//	          └─ event channel ─┬─ listener
//	                            └─ connection ── QP
//
// A child holds its parent; closing a parent too early fails with EBUSY and says what is still open.
package verbs
