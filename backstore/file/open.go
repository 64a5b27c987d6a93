package file

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// DefaultWorkers is the most workers that a store uses. Disks and arrays gain little from more requests in flight.
const DefaultWorkers = 16

// Config says what to open.
type Config struct {
	Path string
	// Size in bytes: a file that does not exist, or is empty, is made this large (without using space for it). 0 takes
	// what exists as it is. Anything else must agree with what exists.
	Size     uint64
	ReadOnly bool
	// Workers bounds the requests that wait for the medium at the same time; 0 is DefaultWorkers.
	Workers int
	// Failed, if set, is told of every request that the medium failed; the initiator sees no more of it than a sense key.
	// It is called from any goroutine and must not block.
	Failed func(error)
}

// Open opens the medium and locks it.
func Open(cfg Config) (*Store, error) {
	if cfg.Path == "" {
		return nil, errors.New("file store: no path")
	}
	if cfg.Size > math.MaxInt64 {
		return nil, fmt.Errorf("file store %s: %d bytes are more than a file can have", cfg.Path, cfg.Size)
	}
	if cfg.Workers <= 0 {
		cfg.Workers = DefaultWorkers
	}
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("file store %s: %w", cfg.Path, err)
	}
	s.onFailure = cfg.Failed
	return s, nil
}

func open(cfg Config) (*Store, error) {
	st, err := os.Stat(cfg.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && cfg.ReadOnly:
		return nil, errors.New("it does not exist, and a read-only store is not created")
	case errors.Is(err, fs.ErrNotExist) && cfg.Size == 0:
		return nil, fmt.Errorf("it does not exist: give a size to create it, as in file:%s,size=1G", cfg.Path)
	case errors.Is(err, fs.ErrNotExist):
		return openRegular(cfg, true)
	case err != nil:
		return nil, err
	case st.Mode().IsRegular():
		return openRegular(cfg, false)
	case st.Mode().Type() == fs.ModeDevice:
		return openBlock(cfg)
	}
	return nil, fmt.Errorf("it is %s: a store is a regular file or a block device", kindOf(st.Mode()))
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeCharDevice != 0:
		return "a character device"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "of type " + m.Type().String()
}

func accessMode(readOnly bool) int {
	if readOnly {
		return os.O_RDONLY
	}
	return os.O_RDWR
}

// explain adds the remedy to errors of opening that have one.
func explain(err error, readOnly bool) error {
	switch {
	case errors.Is(err, unix.EROFS) && !readOnly:
		return fmt.Errorf("%w: serve it read-only (option ro)", err)
	case errors.Is(err, unix.ETXTBSY):
		return fmt.Errorf("%w: it is in use as a swap file or a running program", err)
	}
	return err
}

func openRegular(cfg Config, create bool) (_ *Store, err error) {
	flags := accessMode(cfg.ReadOnly)
	if create {
		// Not O_EXCL: if someone else makes the file meanwhile, the lock and the size decide.
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(cfg.Path, flags, 0o600)
	if err != nil {
		return nil, explain(err, cfg.ReadOnly)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := lock(f, cfg.ReadOnly); err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := uint64(st.Size())
	switch {
	case size == 0 && cfg.Size != 0 && !cfg.ReadOnly:
		if err := f.Truncate(int64(cfg.Size)); err != nil {
			return nil, fmt.Errorf("make it %d bytes large: %w", cfg.Size, err)
		}
		size = cfg.Size
		if err := syncNew(f, cfg.Path); err != nil {
			return nil, err
		}
	case size == 0:
		return nil, fmt.Errorf("it is empty: give a size, as in file:%s,size=1G", cfg.Path)
	case cfg.Size != 0 && cfg.Size != size:
		return nil, fmt.Errorf("it has %d bytes and not %d: leave the size out, or change the file (truncate -s %d)", size, cfg.Size, cfg.Size)
	}
	info := backstore.Info{Kind: "file", Path: cfg.Path, Size: size, ReadOnly: cfg.ReadOnly, WriteCache: true}
	var sys unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &sys); err != nil {
		return nil, err
	}
	if b := sys.Blksize; b >= 512 && b <= 64<<10 && b&(b-1) == 0 {
		// The page cache and the file system work in these units: smaller writes cost a read.
		info.PhysicalBlockSize = uint32(b)
	}
	info.Rotational = rotational(uint64(sys.Dev))
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fsys); err == nil && int64(fsys.Type) == unix.TMPFS_MAGIC {
		info.Inline = true
	}
	return newStore(f, info, cfg.Workers), nil
}

// lock takes the whole file for this process. It conflicts with other iserd processes and with QEMU's tools.
func lock(f *os.File, readOnly bool) error {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if readOnly {
		l.Type = unix.F_RDLCK
	}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return fmt.Errorf("it is in use by another process or another LUN: stop that (lslocks and fuser show it), or give this LUN a file of its own")
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil // the file system has no locks; better unlocked than not served
	}
	return err
}

// syncNew puts a new file's size and its name on the medium: a LUN must not vanish with the power.
func syncNew(f *os.File, path string) error {
	if err := f.Sync(); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func openBlock(cfg Config) (_ *Store, err error) {
	f, err := os.OpenFile(cfg.Path, accessMode(cfg.ReadOnly)|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, errors.New("the block device is in use: unmount it, or take it out of the RAID, LVM or multipath set that it is part of")
	}
	if err != nil {
		return nil, explain(err, cfg.ReadOnly)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	end, err := f.Seek(0, 2)
	if err != nil {
		return nil, fmt.Errorf("its size: %w", err)
	}
	if end == 0 {
		return nil, errors.New("the block device has no medium (its size is 0)")
	}
	if cfg.Size != 0 && cfg.Size != uint64(end) {
		return nil, fmt.Errorf("the block device has %d bytes and not %d: leave the size out", end, cfg.Size)
	}
	logical, err := unix.IoctlGetUint32(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return nil, fmt.Errorf("its block size: %w", err)
	}
	physical, err := unix.IoctlGetUint32(int(f.Fd()), unix.BLKPBSZGET)
	if err != nil {
		physical = logical
	}
	var sys unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &sys); err != nil {
		return nil, err
	}
	info := backstore.Info{
		Kind: "file", Path: cfg.Path, Size: uint64(end), ReadOnly: cfg.ReadOnly, WriteCache: true,
		LogicalBlockSize: logical, PhysicalBlockSize: max(physical, logical), Rotational: rotational(uint64(sys.Rdev)),
	}
	return newStore(f, info, cfg.Workers), nil
}

// rotational asks sysfs about the disk below a device number; a partition's queue is that of its disk. What is not known
// is taken for a disk that does not turn.
func rotational(dev uint64) bool {
	base := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(dev), unix.Minor(dev))
	for _, p := range []string{"queue/rotational", "../queue/rotational"} {
		if b, err := os.ReadFile(base + p); err == nil {
			return strings.TrimSpace(string(b)) == "1"
		}
	}
	return false
}
