// Package tcp is the TCP datamover (RFC 7143): it cuts the byte stream into PDUs and back, moves data with Data-In, R2T
// and Data-Out, and checks and makes digests. It knows no session, no window and no SCSI; those are package iscsi, which
// it serves through [iscsi.Datamover].
//
// # Turns
//
// A connection's turn is its mutex. Two goroutines take turns: the reader, which waits for the socket to become readable
// outside the turn and reads inside it, and the waker, which runs what other goroutines asked for with Wake. A third
// runs only while the socket refuses more bytes. One turn of the reader: one read, every whole PDU in it, what stores
// finished meanwhile, one writev. Nothing is started or handed over per command.
//
//	           readable                 ControlNotify, …             writev
//	reader --> chunk (shared memory) --> engine --> outQueue --------------> socket
//	             \--> task buffers (Data-Out, straight from the socket)
//
// # Memory
//
// Bytes arrive in chunks, counted memory that returns to the server's list when no PDU in it is in use any more and the
// connection is idle; immediate data stays there while the store works on it. The data of Data-Out PDUs goes from the
// socket into the task's buffers, but for what arrived together with something else. Data-In leaves from where the
// command's data lies: the store's memory or the task's buffers. Task buffers come from one pool with a limit; who finds
// it empty waits in line.
//
// # End
//
//	open --> graceful --> ended --> (reader and waker gone)
//	   \------------------/
//
// graceful waits, bounded, until what was queued has left; then the sending side is shut and what the peer still sends
// is read and thrown away for a moment, because closing a socket with unread bytes destroys what the peer has not read.
// ended is when the engine has been told. The socket is closed by the reader alone.
package tcp
