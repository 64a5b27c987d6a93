// Package iscsi is the protocol engine of the target: connections, sessions, the command window, tasks, task
// management, discovery and logout. Login's stages are in iscsi/login, bytes in iscsi/pdu, transports behind the
// [Datamover] seam (iscsi/tcp, and package iser). What is decided here is decided once, for every transport.
//
// # Objects
//
//	Node --- Target --- Session --- Connection --- Datamover
//	                       |             \--- Task (slots, one per SCSI command)
//	                       \--- scsi.ITNexus
//
// A [Node] is the network entity: its targets and portals, the timers, the discovery answers. A [Session] has one
// connection (MaxConnections=1). Error recovery level is 0.
//
// # Calls
//
// A datamover that accepted a connection calls [Node.NewConnection] and then the notify methods of the [Connection], all
// inside turns (see [Datamover]). Everything that other goroutines want of a connection (the end, an abort, an
// asynchronous message) goes through its mailbox and Wake. Stores give commands back through a list of their own, without
// a lock. There is one goroutine per node, for the timers, while there are connections.
//
//	login --> admission --> full feature --> ending --> draining --> gone
//	   \----------\-------------------------/   |           \--- the last task came back from its store
//	                                            \--- ConnectionTerminateNotify
//
// In admission the login is complete and the session registered, but its final response waits until the session that it
// follows can change no data any more. From ending on the session is gone for everybody else.
//
// # A command
//
//	ControlNotify -> receive (CmdSN order) -> dispatch -> command -> advance -> finish -> TaskReleased
//	                                                        ^  |
//	       BuffersNotify, DataCompletionNotify, Turn -------/  \-- waits: memory, data-out, the store
//
// Nothing on this way allocates, locks or starts a goroutine. Immediate data stays in its receive buffer, which belongs
// to the task until the store has done with it; everything else is in buffers of the datamover's.
//
// # Ends
//
// Aborting a task never waits: the task is marked, and its slot comes free when whatever has it gives it back. What waits
// for that, with a bound, is the response of a task management function, and the login that follows a session.
package iscsi
