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
// The opcode table is the one source of what is executed, what REPORT SUPPORTED OPERATION CODES says and how long each
// CDB is. The per-LUN read path takes no lock.
package scsi
