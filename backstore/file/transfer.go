package file

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// maxVectors is IOV_MAX.
const maxVectors = 1024

// readCached reads what is in the page cache. It returns false if not all of it is: nothing is then known of the
// buffers.
func (s *Store) readCached(r *backstore.Request) bool {
	if len(r.Buffers) > maxVectors {
		return false
	}
	n, err := unix.Preadv2(s.fd, r.Buffers, int64(r.Offset), unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINVAL {
		s.noNowait.Store(true)
	}
	return err == nil && uint64(n) == r.Length
}

func (s *Store) read(buffers [][]byte, off int64) error {
	for len(buffers) > 0 {
		n, err := unix.Preadv(s.fd, buffers[:min(len(buffers), maxVectors)], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return s.failed("read", off, err)
		}
		if n == 0 && len(buffers[0]) > 0 {
			return s.failed("read", off, errShrunk)
		}
		off += int64(n)
		var rest []byte
		buffers, rest = advance(buffers, n)
		for len(rest) > 0 {
			n, err := unix.Pread(s.fd, rest, off)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return s.failed("read", off, err)
			}
			if n == 0 {
				return s.failed("read", off, errShrunk)
			}
			off += int64(n)
			rest = rest[n:]
		}
	}
	return nil
}

var (
	errShrunk = errors.New("the file became shorter")
	errNoMove = errors.New("no byte was written")
)

// advance takes n bytes off the front of buffers. If that ends inside a buffer, its rest comes back separately, because
// the caller's slices must not be changed.
func advance(buffers [][]byte, n int) (after [][]byte, rest []byte) {
	for len(buffers) > 0 && n >= len(buffers[0]) {
		n -= len(buffers[0])
		buffers = buffers[1:]
	}
	if n > 0 {
		return buffers[1:], buffers[0][n:]
	}
	return buffers, nil
}

func (s *Store) write(buffers [][]byte, off int64, fua bool) error {
	flags := 0
	if fua && !s.noDsync.Load() {
		flags = unix.RWF_DSYNC
	}
	for len(buffers) > 0 {
		var n int
		var err error
		if flags == 0 {
			// pwritev and not pwritev2, which kernels before 4.6 and some sandboxes lack.
			n, err = unix.Pwritev(s.fd, buffers[:min(len(buffers), maxVectors)], off)
		} else {
			n, err = unix.Pwritev2(s.fd, buffers[:min(len(buffers), maxVectors)], off, flags)
		}
		if flags != 0 && (err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINVAL) {
			s.noDsync.Store(true)
			flags = 0
			continue
		}
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 && len(buffers[0]) > 0 {
			err = errNoMove
		}
		if err != nil {
			return s.writeFailed(off, err, flags != 0)
		}
		off += int64(n)
		var rest []byte
		buffers, rest = advance(buffers, n)
		for len(rest) > 0 {
			n, err := unix.Pwrite(s.fd, rest, off)
			if err == unix.EINTR {
				continue
			}
			if err == nil && n == 0 {
				err = errNoMove
			}
			if err != nil {
				return s.writeFailed(off, err, false)
			}
			off += int64(n)
			rest = rest[n:]
			if flags != 0 {
				flags = 0 // the rest was not written with RWF_DSYNC: flush at the end
			}
		}
	}
	if fua && flags == 0 {
		err := s.writeback.flush(s, s.writeback.failures())
		if err != nil {
			s.writeback.found(true)
		}
		return err
	}
	return nil
}

// writeFailed is failed for a write. A write with RWF_DSYNC may have met the failed writing back of other data.
func (s *Store) writeFailed(off int64, err error, synced bool) error {
	if synced {
		s.writeback.found(true)
	}
	return s.failed("write", off, err)
}

// failed makes a store error of an errno. off is -1 where there is no place.
func (s *Store) failed(what string, off int64, err error) error {
	kind := backstore.ErrIO
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		kind = backstore.ErrNoSpace
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM):
		kind = backstore.ErrReadOnly
	}
	if off < 0 {
		err = fmt.Errorf("%w: %s %s: %w", kind, what, s.path, err)
	} else {
		err = fmt.Errorf("%w: %s %s at byte %d: %w", kind, what, s.path, off, err)
	}
	if s.onFailure != nil {
		s.onFailure(err)
	}
	return err
}
