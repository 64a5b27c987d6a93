// Package login is the login phase of RFC 7143 as pure state machines: stages, key negotiation, continuation of long
// text. It does no I/O and reads no clock; the protocol engine carries its answers, fills sequence numbers and decides
// about resources.
//
// [Machine] is the target's side:
//
//	security (0) ----> operational (1) ----> full feature (3)
//	     \----------------------------------------^
//	any stage --> Failed, with a status of class 1 to 3
//
// [Initiator] is the other side, for clients and tests.
//
// Every key is one row of one table, with its kind, range and the transports and stages it belongs to.
package login
