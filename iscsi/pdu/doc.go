// Package pdu is the bytes of iSCSI (RFC 7143): headers, additional header segments, text keys, digests. It is pure: no
// I/O, no state, no allocation on the paths of commands and data. Target and initiator use the same types.
//
// A header is a [BHS]; each kind of PDU is a named type over the same 48 bytes, so that
//
//	cmd := bhs.SCSICommand()
//	cmd.CmdSN()
//
// reads in place. Getters never fail; whether a header makes sense is for [BHS.Check] and the protocol engine to say.
package pdu
