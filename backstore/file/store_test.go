package file

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"iserd/backstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onDisk is a directory that is not on tmpfs, where the workers are used.
func onDisk(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(".", "testdisk-")
	if err != nil {
		t.Skipf("no directory for a file: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// onTmpfs is a directory where Submit does everything itself.
func onTmpfs(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "iserd-test-")
	if err != nil {
		t.Skipf("no tmpfs at /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// do runs one request to its end.
func do(s *Store, r *backstore.Request) error {
	done := make(chan struct{}, 1)
	r.Done = func(*backstore.Request) { done <- struct{}{} }
	for _, b := range r.Buffers {
		r.Length += uint64(len(b))
	}
	if !s.Submit(r) {
		<-done
	}
	return r.Err
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, n int) string {
		if err := os.WriteFile(at(name), make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	pipe := at("pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no path":          {Config{}, "no path"},
		"missing, no size": {Config{Path: at("none")}, "size=1G"},
		"missing, ro":      {Config{Path: at("none"), Size: 512, ReadOnly: true}, "not created"},
		"no directory":     {Config{Path: at("no/none"), Size: 512}, "no such file"},
		"directory":        {Config{Path: dir}, "a directory"},
		"character device": {Config{Path: "/dev/zero"}, "a character device"},
		"pipe":             {Config{Path: pipe}, "a pipe"},
		"empty, no size":   {Config{Path: write("empty", 0)}, "size=1G"},
		"size too small":   {Config{Path: write("small", 1024), Size: 2048}, "1024 bytes and not 2048"},
		"size too large":   {Config{Path: write("large", 4096), Size: 2048}, "truncate -s 2048"},
		"impossible size":  {Config{Path: at("huge"), Size: 1 << 63}, "more than a file can have"},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q in it", name, err, c.want)
		}
	}
	// ext4 has a limit below what a file can have; tmpfs and others have not, and the file then opens.
	if s, err := Open(Config{Path: at("limit"), Size: 1<<63 - 1}); err == nil {
		s.Close()
	} else if !strings.Contains(err.Error(), "large") {
		t.Errorf("file system limit: %v; want \"large\" in it", err)
	}
	if _, err := os.Stat(at("none")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a refused store left a file behind")
	}
}

// F31, and the other half of known-faults B84: one file is not exported twice.
func TestExclusiveLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := mustOpen(t, Config{Path: path, Size: 1 << 20})
	link := path + "-link"
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{Path: path}, {Path: link}, {Path: path, ReadOnly: true}} {
		other, err := Open(cfg)
		if err == nil {
			other.Close()
			t.Fatalf("%+v: opened a second time", cfg)
		}
		if !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "own") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, Config{Path: path, ReadOnly: true})
	b := mustOpen(t, Config{Path: link, ReadOnly: true}) // readers share
	if err := do(a, &backstore.Request{Op: backstore.OpWrite, Buffers: [][]byte{make([]byte, 512)}}); !errors.Is(err, backstore.ErrReadOnly) {
		t.Errorf("write to a read-only store: %v", err)
	}
	if b.Info().Size != 1<<20 || !b.Info().ReadOnly {
		t.Errorf("%+v", b.Info())
	}
}

// The store does what a slice of bytes does.
func TestModel(t *testing.T) {
	for name, dir := range map[string]func(testing.TB) string{"disk": onDisk, "tmpfs": onTmpfs} {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			s := mustOpen(t, Config{Path: filepath.Join(dir(t), "f"), Size: size})
			model := make([]byte, size)
			rng := rand.New(rand.NewSource(1))
			for i := range 800 {
				off := rng.Intn(size)
				n := rng.Intn(min(size-off, 300<<10) + 1)
				var buffers [][]byte
				for rest := n; rest > 0; {
					m := rng.Intn(rest) + 1
					buffers = append(buffers, make([]byte, m))
					if rng.Intn(8) == 0 {
						buffers = append(buffers, nil)
					}
					rest -= m
				}
				r := &backstore.Request{Offset: uint64(off), Buffers: buffers}
				switch rng.Intn(5) {
				case 0, 1:
					r.Op, r.FUA = backstore.OpWrite, rng.Intn(4) == 0
					at := off
					for _, b := range buffers {
						rng.Read(b)
						at += copy(model[at:], b)
					}
				case 4:
					r.Op, r.Buffers = backstore.OpFlush, nil
				}
				if err := do(s, r); err != nil {
					t.Fatal(err)
				}
				if r.Op == backstore.OpRead && !bytes.Equal(bytes.Join(buffers, nil), model[off:off+n]) {
					t.Fatalf("step %d: read of %d at %d differs", i, n, off)
				}
			}
		})
	}
}

func TestManyVectors(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 1 << 20})
	many := func(fill byte) [][]byte {
		var list [][]byte
		for range 2500 {
			list = append(list, bytes.Repeat([]byte{fill}, 16))
		}
		return list
	}
	if err := do(s, &backstore.Request{Op: backstore.OpWrite, FUA: true, Offset: 5, Buffers: many('x')}); err != nil {
		t.Fatal(err)
	}
	got := many(0)
	if err := do(s, &backstore.Request{Op: backstore.OpRead, Offset: 5, Buffers: got}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(got, nil), bytes.Join(many('x'), nil)) {
		t.Error("differs")
	}
}

func TestRangeCancelClosed(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 4096})
	for _, r := range []*backstore.Request{
		{Op: backstore.OpRead, Offset: 4096, Buffers: [][]byte{make([]byte, 1)}},
		{Op: backstore.OpWrite, Offset: 1, Buffers: [][]byte{make([]byte, 4096)}},
		{Op: backstore.OpWrite, Offset: 1<<64 - 1, Buffers: [][]byte{make([]byte, 2)}},
	} {
		if err := do(s, r); !errors.Is(err, backstore.ErrOutOfRange) {
			t.Errorf("%v at %d: %v", r.Op, r.Offset, err)
		}
	}
	r := &backstore.Request{Op: backstore.OpWrite, Buffers: [][]byte{[]byte("no")}}
	r.Cancel.Store(true)
	if err := do(s, r); !errors.Is(err, backstore.ErrCanceled) {
		t.Error(err)
	}
	s.Close()
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	for _, op := range []backstore.Op{backstore.OpRead, backstore.OpWrite, backstore.OpFlush} {
		if err := do(s, &backstore.Request{Op: op}); !errors.Is(err, backstore.ErrClosed) {
			t.Errorf("%v after Close: %v", op, err)
		}
	}
}

// The same on tmpfs, where requests do not go through the workers.
func TestInlineCancelClosed(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onTmpfs(t), "f"), Size: 4096})
	if !s.Info().Inline {
		t.Fatal("not inline on tmpfs")
	}
	r := &backstore.Request{Op: backstore.OpWrite, Buffers: [][]byte{[]byte("no")}}
	r.Cancel.Store(true)
	if err := do(s, r); !errors.Is(err, backstore.ErrCanceled) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, op := range []backstore.Op{backstore.OpRead, backstore.OpWrite, backstore.OpFlush} {
		if err := do(s, &backstore.Request{Op: op, Buffers: [][]byte{make([]byte, 512)}}); !errors.Is(err, backstore.ErrClosed) {
			t.Errorf("%v after Close: %v", op, err)
		}
	}
}

// A file that someone cuts is an I/O error, not a crash and not zeros.
func TestShrunkFile(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 8192})
	if err := os.Truncate(s.path, 4096); err != nil {
		t.Fatal(err)
	}
	var told error
	s.onFailure = func(err error) { told = err }
	if err := do(s, &backstore.Request{Op: backstore.OpRead, Offset: 2048, Buffers: [][]byte{make([]byte, 4096)}}); !errors.Is(err, backstore.ErrIO) {
		t.Error(err)
	} else if told != err {
		t.Errorf("told %v, the request has %v", told, err)
	}
}

// known-faults B139: a full file system is ErrNoSpace, again and again, and reads go on.
func TestB139_NoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no small file system to fill: mount tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	told := 0
	s, err := Open(Config{Path: filepath.Join(dir, "f"), Size: 1 << 20, Failed: func(error) { told++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	block := bytes.Repeat([]byte{7}, 128<<10)
	for i := range 8 {
		err := do(s, &backstore.Request{Op: backstore.OpWrite, Offset: uint64(i) << 17, Buffers: [][]byte{block}})
		if i < 2 && err != nil || i >= 2 && !errors.Is(err, backstore.ErrNoSpace) {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	got := make([]byte, len(block))
	if err := do(s, &backstore.Request{Op: backstore.OpRead, Buffers: [][]byte{got}}); err != nil || !bytes.Equal(got, block) {
		t.Errorf("read after the file system was full: %v", err)
	}
	if told != 6 {
		t.Errorf("%d failures were told of, want 6", told)
	}
}

// An error of writing back reaches every flush that it may concern, although the kernel tells it once.
func TestWritebackErrors(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 8192})
	var mu sync.Mutex
	fail := 1
	hold := make(chan struct{})
	s.writeback.sync = func(int) error {
		<-hold
		mu.Lock()
		defer mu.Unlock()
		if fail > 0 {
			fail--
			return unix.EIO
		}
		return nil
	}
	flush := func() error { return do(s, &backstore.Request{Op: backstore.OpFlush}) }
	// Two flushes are submitted; the kernel tells one of them.
	errs := make(chan error, 2)
	for range 2 {
		go func() { errs <- flush() }()
	}
	time.Sleep(20 * time.Millisecond)
	close(hold)
	for range 2 {
		if err := <-errs; !errors.Is(err, backstore.ErrIO) {
			t.Errorf("a flush that was submitted before the failure was found: %v", err)
		}
	}
	if err := flush(); err != nil {
		t.Errorf("a flush of later writes: %v", err)
	}
	// A FUA write finds the failure of others' data.
	s.writeback.found(true)
	if err := flush(); !errors.Is(err, backstore.ErrIO) {
		t.Errorf("the flush after a FUA write that failed: %v", err)
	}
	if err := flush(); err != nil {
		t.Errorf("reported twice: %v", err)
	}
}

// A medium where requests hang does not keep others from being served, up to the number of workers.
func TestHangingRequests(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 8192, Workers: 8})
	hold := make(chan struct{})
	s.pool.execute = func(r *backstore.Request) bool {
		if r.Op == backstore.OpFlush {
			<-hold
		}
		r.Err = nil
		return true
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		r := &backstore.Request{Op: backstore.OpFlush, Done: func(*backstore.Request) { wg.Done() }}
		s.Submit(r)
	}
	// Enough requests for the pool to see that it does not get on.
	var served sync.WaitGroup
	for range 64 {
		served.Add(1)
		r := &backstore.Request{Op: backstore.OpWrite, Length: 1, Buffers: [][]byte{{1}}, Done: func(*backstore.Request) { served.Done() }}
		s.Submit(r)
	}
	done := make(chan struct{})
	go func() { served.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("writes wait for hanging flushes")
	}
	close(hold)
	wg.Wait()
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.pool.workers > 8 {
		t.Errorf("%d workers", s.pool.workers)
	}
}

// Flushes that wait are done together, and on one worker.
func TestFlushesJoin(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 8192})
	hold := make(chan struct{})
	calls := make(chan struct{}, 100)
	s.writeback.sync = func(int) error {
		calls <- struct{}{}
		<-hold
		return nil
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Add(1)
		s.Submit(&backstore.Request{Op: backstore.OpFlush, Done: func(r *backstore.Request) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			wg.Done()
		}})
	}
	<-calls
	// The others wait now, or in the queue; writes pass them.
	if err := do(s, &backstore.Request{Op: backstore.OpWrite, Buffers: [][]byte{make([]byte, 512)}}); err != nil {
		t.Error(err)
	}
	close(hold)
	wg.Wait()
	if n := 1 + len(calls); n > 10 {
		t.Errorf("50 flushes made fdatasync run %d times", n)
	}
}

// Close waits for what was submitted.
func TestCloseWaits(t *testing.T) {
	s := mustOpen(t, Config{Path: filepath.Join(onDisk(t), "f"), Size: 1 << 20})
	var done sync.WaitGroup
	for i := range 200 {
		done.Add(1)
		r := &backstore.Request{Op: backstore.OpWrite, Offset: uint64(i) * 4096, Length: 4096, Buffers: [][]byte{bytes.Repeat([]byte{byte(i)}, 4096)}}
		r.Done = func(*backstore.Request) { done.Done() }
		if s.Submit(r) {
			done.Done()
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	done.Wait()
	b, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if b[i*4096] != byte(i) || b[i*4096+4095] != byte(i) {
			t.Fatalf("block %d is missing", i)
		}
	}
}

func TestAllocs(t *testing.T) {
	for name, dir := range map[string]func(testing.TB) string{"disk": onDisk, "tmpfs": onTmpfs} {
		s := mustOpen(t, Config{Path: filepath.Join(dir(t), "f"), Size: 1 << 20})
		done := make(chan struct{}, 1)
		r := &backstore.Request{Buffers: [][]byte{make([]byte, 2048), make([]byte, 2048)}, Length: 4096}
		r.Done = func(*backstore.Request) { done <- struct{}{} }
		for _, op := range []backstore.Op{backstore.OpWrite, backstore.OpRead, backstore.OpFlush} {
			r.Op = op
			if n := testing.AllocsPerRun(200, func() {
				if !s.Submit(r) {
					<-done
				}
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			}); n != 0 {
				t.Errorf("%s: %v allocates %v times", name, op, n)
			}
		}
	}
}

func BenchmarkStore(b *testing.B) {
	for name, dir := range map[string]func(testing.TB) string{"disk": onDisk, "tmpfs": onTmpfs} {
		for _, op := range []backstore.Op{backstore.OpRead, backstore.OpWrite} {
			for _, nowait := range []bool{true, false} {
				label := name + "/" + op.String()
				if !nowait {
					if name == "tmpfs" || op == backstore.OpWrite {
						continue
					}
					label += "/workers"
				}
				b.Run(label, func(b *testing.B) {
					const depth = 32
					s := mustOpen(b, Config{Path: filepath.Join(dir(b), "f"), Size: 64 << 20})
					s.noNowait.Store(!nowait)
					free := make(chan *backstore.Request, depth)
					for i := range depth {
						r := &backstore.Request{Op: op, Length: 4096, Offset: uint64(i) << 12, Buffers: [][]byte{make([]byte, 4096)}}
						r.Done = func(r *backstore.Request) { free <- r }
						do(s, &backstore.Request{Op: backstore.OpWrite, Offset: r.Offset, Buffers: r.Buffers}) // into the cache
						free <- r
					}
					b.ReportAllocs()
					for b.Loop() {
						r := <-free
						if s.Submit(r) {
							free <- r
						}
					}
					for range depth {
						<-free
					}
				})
			}
		}
	}
}
