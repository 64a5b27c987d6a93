// Package iser is the RDMA datamover: iSER (RFC 7145) under the protocol engine of package iscsi. It owns registered
// memory, queue pairs and flow control, and knows nothing of SCSI, stores or targets.
//
// # Objects
//
//	Server --- Listener
//	   \------ device --- shard (one per core) --- conn (iscsi.Datamover) --- iscsi.Connection
//
// A shard is one core's part of one device: one completion queue shared by every connection placed on it, whatever
// target they log in to, a lock, a pool of registered memory and counters. A connection is placed at accept, on the
// shard with the least load, and stays. The shard's lock is the exclusion that the engine's turns need.
//
// # A turn
//
// The shard's loop reaps completions in one call, lets each connection advance as far as it goes, gives a turn to the
// connections that asked for one, then posts what all of them have queued in one call: for each queue pair a chain of
// receives and a chain of sends. The connection manager's events and the server's own demands are turns too.
//
//	completion --> received --> ControlNotify ---> SendControl, PutData, GetData (queued)
//	           \-> sent -----> TaskReleased, DataCompletionNotify
//	wake-up ----> Turn
//	end of turn:  settle (deferred calls, ending connections, buffer waiters), flush (build chains, Device.Post)
//
// # The send queue
//
// Work requests of a connection are numbered. A completion stands for every request before it, so the last request of
// each chain is signaled and hardly any other; its completion gives all credits back. Responses and RDMA WRITEs wait
// for credits in one queue, which keeps their order; RDMA READs wait in another, also for the number that the initiator
// answers at a time. Nothing is ever posted that does not fit.
//
// # Memory
//
// Receive, send and data buffers come from the shard's pool, which was registered at start-up. A receive buffer is
// reposted at the end of the turn that brought the PDU, or when the engine releases it. Data in a store's registered
// memory is sent from where it lies; small answers are copied to scratch memory of the task.
//
// # The end
//
//	open --> graceful --> abort --> draining --> drained --> gone
//	   \--------------------/  sentinels  ConnectionTerminateNotify  DeallocateConnectionResources
//
// Between drained and gone a connection has no queue pair; it waits for stores that still hold its tasks.
package iser
