// Package tcpclient is an iSCSI initiator over TCP for tests: every PDU can be sent as it is, wrong ones too, in any
// segmentation; what comes back is checked against the rules of RFC 7143 (DataSN, R2TSN, offsets, sequences, StatSN).
// It uses one goroutine, the caller's. It is not for production.
package tcpclient
