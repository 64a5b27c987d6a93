// Package iserclient is an iSER initiator for tests, over any provider of package rdma. It is as strict as the
// initiators that a target meets: receives hold 128 bytes of data in full feature phase and no more, only the STag of
// the very task may be invalidated, StatSN must not skip, and nothing may come without a receive. It can send whatever
// bytes it is told to, and break the connection in any way. It uses the caller's goroutine, and one that reads connection
// events. It is not for production.
//
// # Memory
//
// Messages lie in one arena that is registered once. A command with data has memory of its own, registered for that
// command as the kernel's initiator does it, or once and for all with [Options.KeepRegistered]; then a command allocates
// nothing.
package iserclient
