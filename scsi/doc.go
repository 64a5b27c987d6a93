// Package scsi is the device server: CDB to action, sense data, LUN maps, unit attention. It knows the stores by the
// interface of package backstore alone, and no transport.
//
// # Who calls what
//
// A transport makes an [ITNexus] per session and gives commands to [ITNexus.Start] and [Command.Execute], from one
// goroutine at a time per command; commands of one nexus may run on several. Everything else may be called from
// anywhere.
//
//	Start --> NextDone                                  (small answers, refusals, in-place reads)
//	      --> NextDataIn  --> Execute --> NextDone | NextPending --> Done
//	      --> NextDataOut --> Execute --> NextDone | NextPending --> Done
//	      --> NextExecute --> Execute --> NextDone | NextPending --> Done
//	                                      ... transport sends ... --> Release
//
// A transport that gives a command up calls [Command.Abort]; if the command is pending, Done still comes, and only then
// Release. Data that it found wrong ends the command by [Command.Fail] instead of Execute. [Command.Residual] has the
// response's residual count.
//
// # What is shared
//
// A [LogicalUnit] is one disk; a [Device] maps LUNs to them; an ITNexus keeps, per LUN, a path with the unit attention
// conditions of that initiator and the count of its commands. Maps are immutable and replaced whole, so commands read
// them without a lock; [LogicalUnit.Close] waits for the counts, after which the store and its memory are unused.
//
// # Reservations
//
// A logical unit is reserved by RESERVE of SPC-2 for one session, or persistently for what SPC-4 calls an I_T nexus: the
// names of the initiator port, ISID included, and of the target port. Persistent reservations and registrations outlive
// sessions and resets, not the process (APTPL is refused). A registration is made by its own nexus at its own target port
// (SPEC_I_PT and ALL_TG_PT are refused), and is not moved (no REGISTER AND MOVE). PREEMPT AND ABORT is there if
// [DeviceConfig].AbortTasks is. An initiator that changes its ISID is another one, as the standard has it: give it a
// fixed one.
//
// Commands see an immutable snapshot; each row of the opcode table says what the command conflicts with.
//
// The opcode table is the one source of what is executed, what REPORT SUPPORTED OPERATION CODES says and how long each
// CDB is. The per-LUN read path takes no lock.
package scsi
