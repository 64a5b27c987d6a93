// Package login is the login phase of iSCSI (RFC 7143) with the keys of iSER (RFC 7145): stages, text negotiation,
// authentication hook. It is pure: no I/O, no clock, no goroutine. Bytes are in iscsi/pdu.
//
// # Target
//
// A [Machine] answers the Login Requests of one connection, one at a time:
//
//	security (0) ----> operational (1) ----> full feature (3)
//	     \________________________________________/
//
// Each call of [Machine.Request] gives a [Result] with the response to send. The engine that owns the connection fills
// in StatSN, ExpCmdSN and MaxCmdSN, and may turn any result into a refusal with [Machine.Fail]. Who may log in to what is
// the resolver's [Decision], asked once, when the names are known; how the initiator proves itself is the decision's
// [Authenticator].
//
// Everything about a key stands in one row of one table (keys.go). A machine never offers a key that open-iscsi does not
// know: an unknown key ends that initiator's login.
//
// # Initiator
//
// An [Initiator] is the other side, for tests and the load generator. It proves nothing (AuthMethod=None).
//
// # Memory
//
// Data in a [Result] is the machine's, valid until its next call. Data given to Request is copied where it is kept.
package login
