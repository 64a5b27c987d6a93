package softroce

import (
	"fmt"
	"syscall"

	"iserd/rdma"
)

func invalid(op, hint string) error {
	return &rdma.OpError{Op: op, Errno: syscall.EINVAL, Hint: hint}
}

func busy(op, what string, n int) error {
	return &rdma.OpError{Op: op, Errno: syscall.EBUSY, Hint: fmt.Sprintf("%d %s still open", n, what)}
}

func tooBig(what string, is, most int) error {
	return fmt.Errorf("softroce: %s: %d, the device has %d: %w", what, is, most, rdma.ErrTooBig)
}
