package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIovecs is the most that one readv or writev takes (UIO_MAXIOV).
const maxIovecs = 1024

// readv and writev are unix.Readv and unix.Writev without their allocation. The descriptor is non-blocking.
//
// Implements: ssize_t readv(int fd, const struct iovec *iov, int iovcnt)
func readv(fd int, iov []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_READV, fd, iov) }

// Implements: ssize_t writev(int fd, const struct iovec *iov, int iovcnt)
func writev(fd int, iov []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_WRITEV, fd, iov) }

func vector(trap uintptr, fd int, iov []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, errno := unix.Syscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// appendIovec appends b, which must not be empty.
func appendIovec(iov []unix.Iovec, b []byte) []unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return append(iov, v)
}
