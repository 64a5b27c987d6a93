package rdma

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrUnsupported says that this build, provider or device cannot do what was asked.
	ErrUnsupported = errors.New("rdma: not supported")
	// ErrClosed says that the object was closed, by us or because its device went away.
	ErrClosed = errors.New("rdma: closed")
	// ErrNoDevice says that the machine has no usable RDMA device.
	ErrNoDevice = errors.New("rdma: no RDMA device")
	// ErrTooBig says that a request is above a limit of the device or of the object.
	ErrTooBig = errors.New("rdma: above the device's limit")
)

// OpError is a failed verb: Op is its name (for example "ibv_create_cq"), Errno what the system said. Hint, if not
// empty, tells the remedy.
type OpError struct {
	Op    string
	Errno syscall.Errno
	Hint  string
}

func (e *OpError) Error() string {
	if e.Hint != "" {
		return fmt.Sprintf("%s: %s (%s)", e.Op, e.Errno.Error(), e.Hint)
	}
	return fmt.Sprintf("%s: %s", e.Op, e.Errno.Error())
}

// Unwrap gives the errno, so that errors.Is(err, syscall.ENOMEM) works.
func (e *OpError) Unwrap() error { return e.Errno }

// WCError is a work completion with an error status.
type WCError struct {
	Status    Status
	VendorErr uint32
	QPNum     uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("rdma: work completion: %s (vendor error %#x, QP %#x)", e.Status, e.VendorErr, e.QPNum)
}
