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
// asynchronous message) goes through its mailbox and Wake.
//
//	login --------> full feature --------> ending --------> gone
//	   \---------------------------------/    ConnectionTerminateNotify, tasks come back from the stores
package iscsi
