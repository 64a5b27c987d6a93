package file

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"iserd/backstore"
)

// loopDevice makes a block device of size bytes over a file in dir. It skips the test where that is not allowed.
func loopDevice(t *testing.T, dir string, size int64, blockSize int) (device, backing string) {
	t.Helper()
	backing = filepath.Join(dir, "backing")
	f, err := os.OpenFile(backing, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no block device to make: %v", err)
	}
	defer ctl.Close()
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Skipf("no block device to make: %v", err)
	}
	device = "/dev/loop" + strconv.Itoa(n)
	l, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no block device to make: %v", err)
	}
	if err := unix.IoctlSetInt(int(l.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
		l.Close()
		t.Skipf("no block device to make: %v", err)
	}
	t.Cleanup(func() {
		unix.IoctlSetInt(int(l.Fd()), unix.LOOP_CLR_FD, 0)
		l.Close()
	})
	if err := unix.IoctlSetInt(int(l.Fd()), unix.LOOP_SET_BLOCK_SIZE, blockSize); err != nil {
		t.Fatal(err)
	}
	return device, backing
}

func TestBlockDevice(t *testing.T) {
	device, _ := loopDevice(t, onTmpfs(t), 1<<20, 4096)
	if _, err := Open(Config{Path: device, Size: 2 << 20}); err == nil || !strings.Contains(err.Error(), "1048576 bytes and not 2097152") {
		t.Errorf("a size that is not that of the device: %v", err)
	}
	s := mustOpen(t, Config{Path: device})
	info := s.Info()
	if info.Size != 1<<20 || info.LogicalBlockSize != 4096 || info.PhysicalBlockSize != 4096 || info.Inline || !info.WriteCache {
		t.Errorf("%+v", info)
	}
	if other, err := Open(Config{Path: device}); err == nil {
		other.Close()
		t.Error("opened twice")
	} else if !strings.Contains(err.Error(), "unmount") {
		t.Errorf("%v; want a remedy", err)
	}
	want := bytes.Repeat([]byte("data"), 2048)
	for _, fua := range []bool{false, true} {
		if err := do(s, &backstore.Request{Op: backstore.OpWrite, FUA: fua, Offset: 4096, Buffers: [][]byte{want}}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, len(want))
	if err := do(s, &backstore.Request{Op: backstore.OpRead, Offset: 4096, Buffers: [][]byte{got}}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %v", err)
	}
	if err := do(s, &backstore.Request{Op: backstore.OpFlush}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A medium that fails under the page cache: the write itself is fine, the flush or the FUA is not.
func TestFailingMedium(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("no small file system below a block device: mount tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	// A megabyte of blocks, of which only 128 KiB can be kept.
	device, backing := loopDevice(t, dir, 1<<20, 512)
	s := mustOpen(t, Config{Path: device})
	write := func(off, n int, fua bool) error {
		return do(s, &backstore.Request{Op: backstore.OpWrite, FUA: fua, Offset: uint64(off), Buffers: [][]byte{bytes.Repeat([]byte{1}, n)}})
	}
	flush := func() error { return do(s, &backstore.Request{Op: backstore.OpFlush}) }
	if err := write(0, 128<<10, true); err != nil {
		t.Fatalf("what can be kept: %v", err)
	}
	if err := write(256<<10, 64<<10, false); err != nil {
		t.Fatalf("into the cache: %v", err)
	}
	if err := flush(); !errors.Is(err, backstore.ErrIO) && !errors.Is(err, backstore.ErrNoSpace) {
		t.Errorf("flush: %v", err)
	}
	if err := flush(); err != nil {
		t.Errorf("the flush after that: %v", err)
	}
	// A FUA write that fails has taken the kernel's word for others' data too.
	if err := write(256<<10, 64<<10, true); !errors.Is(err, backstore.ErrIO) && !errors.Is(err, backstore.ErrNoSpace) {
		t.Errorf("FUA: %v", err)
	}
	if err := flush(); err == nil {
		t.Error("the flush after a FUA write that failed is GOOD")
	}
	if err := flush(); err != nil {
		t.Errorf("the flush after that: %v", err)
	}
	// Reads where the backing ends.
	if err := os.Truncate(backing, 64<<10); err != nil {
		t.Fatal(err)
	}
	err := do(s, &backstore.Request{Op: backstore.OpRead, Offset: 768 << 10, Buffers: [][]byte{make([]byte, 4096)}})
	if !errors.Is(err, backstore.ErrIO) || !strings.Contains(err.Error(), device) {
		t.Errorf("read of a bad block: %v", err)
	}
}
