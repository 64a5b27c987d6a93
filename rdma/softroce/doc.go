// Package softroce is RoCEv2 in user space: the reliable connected transport of InfiniBand (IBTA volume 1, with annex
// A17) over UDP port 4791, and the connection manager with rdma_cm's conventions, in pure Go on plain sockets. It needs
// no RDMA device, no kernel module and no privileges, and it speaks with what does have them: rdma_rxe and adapters.
//
// It is the provider for machines without RDMA, for continuous integration and for demonstrations. It is not the fast
// path: every byte is copied and summed by the processor.
//
// # One device, many addresses
//
// A [Provider] has one device, which binds UDP port 4791 on each local address that it uses, and only on those. An
// address belongs to one program: two programs of one host speak to each other over two addresses. Over IPv4 the
// initiator takes a free loopback address (127.0.0.2 and so on) by itself when the one it would use is taken. Where the
// kernel's rdma_rxe is loaded in the same network namespace, it has the port on all addresses.
//
// # Who may touch what
//
// A peer reaches memory only by a key of a region in the queue pair's protection domain, within its bounds and access
// rights; anything else is refused with the NAK that hardware sends, and the queue pair goes to error. Keys, queue pair
// numbers and first sequence numbers are random. Memory is looked up anew for every packet, so that once [rdma.MR.Close]
// is back no packet touches the region any more.
//
// # Locks
//
// In this order: the connection manager's, a queue pair's, then one of completion queue, region, socket, timers. The
// connection manager is never called with a queue pair's lock held. Nothing that a packet causes allocates.
package softroce
