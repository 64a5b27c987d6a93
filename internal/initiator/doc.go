// Package initiator holds what the initiators over iSER and over TCP have in common: the numbering of a session, the login
// drive, command descriptor blocks, the result of a command, and [Session], by which a load generator drives either
// without knowing which it is. It moves no bytes itself.
package initiator
