package sessionconform

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"iserd/internal/initiator"
)

// World is a target with blocks of 512 bytes, and a way to log in.
type World struct {
	// Open logs in with up to depth tasks. The test closes the session.
	Open func(t testing.TB, depth int) initiator.Session
	// Size is how many bytes the logical units have.
	Size int64
	// LUN is a logical unit that answers at once; that of HeldLUN answers writes only after Resume once Hold was called.
	LUN, HeldLUN uint64
	Hold, Resume func()
	// Sever ends the connection without a word of ours, and does not wait for the held writes.
	Sever func()
}

const (
	block   = 512
	patient = 10 * time.Second
)

// Run runs all tests, each over a World of its own.
func Run(t *testing.T, make func(t testing.TB) World) {
	for name, f := range map[string]func(*testing.T, World){
		"mixed sizes":  mixed,
		"window":       window,
		"misuse":       misuse,
		"status":       status,
		"severed":      severed,
		"closed":       closed,
		"no waiting":   noWaiting,
		"started anew": again,
	} {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Ready logs in and clears the unit attentions of a logical unit.
func Ready(t testing.TB, w World, depth int) initiator.Session {
	t.Helper()
	s := w.Open(t, depth)
	task, err := s.Take(0, 0)
	check(t, err)
	for _, lun := range []uint64{w.LUN, w.HeldLUN} {
		for range 3 {
			task.LUN = lun
			check(t, initiator.Do(s, task, patient))
			if task.Status == 0 {
				break
			}
		}
		check(t, task.Good())
	}
	check(t, s.Release(task))
	return s
}

// collect polls until n tasks have come.
func collect(t testing.TB, s initiator.Session, n int, each func(*initiator.Task)) {
	t.Helper()
	var done [8]*initiator.Task
	for deadline := time.Now().Add(patient); n > 0; {
		k, err := s.Poll(100*time.Millisecond, done[:min(n, len(done))])
		check(t, err)
		for _, task := range done[:k] {
			each(task)
		}
		if n -= k; n > 0 && time.Now().After(deadline) {
			t.Fatalf("%d tasks did not come", n)
		}
	}
}

var sizes = []int{512, 1024, 4096, 8192, 8704, 16384, 65536, 131072, 262144, 1 << 20}

// mixed writes the whole logical unit in pieces of every size, many at a time, and reads it back in other pieces.
func mixed(t *testing.T, w World) {
	const depth = 32
	s := Ready(t, w, depth)
	rnd := rand.New(rand.NewPCG(7, 9))
	want := make([]byte, w.Size)
	for i := range want {
		want[i] = byte(rnd.Uint32())
	}
	for _, write := range []bool{true, false, true, false} {
		if write {
			want[0]++
			want[w.Size-1]++
		}
		at, flying := 0, 0
		for at < len(want) || flying > 0 {
			for ; at < len(want) && flying < depth; flying++ {
				n := min(sizes[rnd.IntN(len(sizes))], len(want)-at)
				in, out := n, 0
				if write {
					in, out = 0, n
				}
				task, err := s.Take(in, out)
				check(t, err)
				task.LUN, task.User = w.LUN, uint64(at)
				if n%1024 == 0 {
					initiator.PutReadWrite16(&task.CDB, write, uint64(at/block), uint32(n/block))
				} else {
					initiator.PutReadWrite10(&task.CDB, write, uint32(at/block), uint16(n/block))
				}
				copy(task.DataOut, want[at:])
				check(t, s.StartTask(task))
				at += n
			}
			if s.Outstanding() != flying {
				t.Fatalf("%d outstanding, want %d", s.Outstanding(), flying)
			}
			collect(t, s, 1, func(task *initiator.Task) {
				flying--
				check(t, task.Good())
				if from := int(task.User); !write && !bytes.Equal(task.Data, want[from:from+len(task.DataIn)]) {
					t.Fatalf("%d bytes at %d: other data came back", len(task.DataIn), from)
				}
				check(t, s.Release(task))
			})
		}
	}
	check(t, s.Logout())
}

// window starts more commands than the target takes at a time.
func window(t *testing.T, w World) {
	s := w.Open(t, 1000)
	check(t, s.Close())
	s = Ready(t, w, 1000)
	room := s.Window()
	if room < 1 || room > 900 {
		t.Fatalf("a window of %d, the test wants less than there are tasks", room)
	}
	w.Hold()
	const more = 60
	for i := range room + more {
		task, err := s.Take(0, 4096)
		check(t, err)
		task.LUN = w.HeldLUN
		initiator.PutReadWrite10(&task.CDB, true, uint32(i*8), 8)
		task.DataOut[0] = byte(i)
		check(t, s.StartTask(task))
	}
	check(t, s.Flush())
	var done [1]*initiator.Task
	if n, err := s.Poll(20*time.Millisecond, done[:]); n != 0 || err != nil {
		t.Fatalf("%d tasks, %v: the store held them all", n, err)
	}
	if s.Window() != 0 || s.Outstanding() != room+more {
		t.Errorf("window %d, %d outstanding", s.Window(), s.Outstanding())
	}
	w.Resume()
	collect(t, s, room+more, func(task *initiator.Task) {
		check(t, task.Good())
		check(t, s.Release(task))
	})
	if s.Outstanding() != 0 {
		t.Errorf("%d outstanding", s.Outstanding())
	}
	for i := range room + more {
		task, err := s.Take(4096, 0)
		check(t, err)
		task.LUN, task.User = w.HeldLUN, uint64(i)
		initiator.PutReadWrite10(&task.CDB, false, uint32(i*8), 8)
		check(t, s.StartTask(task))
	}
	collect(t, s, room+more, func(task *initiator.Task) {
		check(t, task.Good())
		if task.Data[0] != byte(task.User) {
			t.Errorf("block %d: %d", task.User, task.Data[0])
		}
	})
	check(t, s.Logout())
}

// misuse: what the caller must not do is an error, and does no harm.
func misuse(t *testing.T, w World) {
	s := Ready(t, w, 2)
	a, err := s.Take(4096, 0)
	check(t, err)
	b, err := s.Take(0, 0)
	check(t, err)
	if _, err := s.Take(0, 0); !errors.Is(err, initiator.ErrNoTask) {
		t.Errorf("a third task: %v", err)
	}
	if _, err := s.Take(-1, 0); err == nil {
		t.Error("negative length taken")
	}
	a.LUN = w.LUN
	initiator.PutReadWrite10(&a.CDB, false, 0, 8)
	check(t, s.StartTask(a))
	if s.StartTask(a) == nil || s.Release(a) == nil {
		t.Error("a task under way was started, or released")
	}
	if s.Logout() == nil {
		t.Error("logout with a task under way")
	}
	if s.StartTask(&initiator.Task{}) == nil || s.Release(&initiator.Task{Slot: 77}) == nil {
		t.Error("a stranger was taken")
	}
	collect(t, s, 1, func(task *initiator.Task) { check(t, task.Good()) })
	check(t, s.Release(a))
	if s.Release(a) == nil || s.StartTask(a) == nil {
		t.Error("a task that was released was released again, or started")
	}
	check(t, s.Release(b))
	i := s.Info()
	if i.Transport == "" || i.Remote == "" || i.Local == "" || i.Depth != 2 || i.TSIH == 0 || i.Params.MaxBurstLength == 0 {
		t.Errorf("%+v", i)
	}
	check(t, s.Logout())
}

// status: sense and residuals come with their task.
func status(t *testing.T, w World) {
	s := Ready(t, w, 2)
	task, err := s.Take(255, 0)
	check(t, err)
	task.LUN, task.CDB = w.LUN, [16]byte{0x12, 0, 0, 0, 255} // INQUIRY gives less
	check(t, initiator.Do(s, task, patient))
	if task.Status != 0 || !task.Underflow || len(task.Data) < 36 || len(task.Data)+int(task.Residual) != 255 || task.Good() == nil {
		t.Errorf("INQUIRY: %+v, %d bytes", task.Result, len(task.Data))
	}
	check(t, s.Release(task))
	for _, out := range []bool{false, true} {
		in, n := 1<<16, 0
		if out {
			in, n = 0, 1<<16
		}
		task, err = s.Take(in, n)
		check(t, err)
		task.LUN = w.LUN
		initiator.PutReadWrite16(&task.CDB, out, 1<<40, 128)
		check(t, initiator.Do(s, task, patient))
		if key, asc := task.SenseKey(); task.Status != 2 || key != 5 || asc != 0x2100 || task.Good() == nil {
			t.Errorf("beyond the end: status %#x, sense %x/%04x", task.Status, key, asc)
		}
		initiator.PutReadWrite16(&task.CDB, out, 0, 128)
		check(t, initiator.Do(s, task, patient))
		check(t, task.Good())
		check(t, s.Release(task))
	}
	check(t, s.Logout())
}

// severed: when the target ends the connection each task gets an error, once, and then so does everything.
func severed(t *testing.T, w World) {
	s := Ready(t, w, 40)
	w.Hold()
	defer w.Resume()
	for i := range 32 {
		task, err := s.Take(0, 65536)
		check(t, err)
		task.LUN = w.HeldLUN
		initiator.PutReadWrite10(&task.CDB, true, uint32(i*128), 128)
		check(t, s.StartTask(task))
	}
	check(t, s.Flush())
	_, err := s.Poll(5*time.Millisecond, make([]*initiator.Task, 1))
	check(t, err)
	w.Sever()
	started := 32
	// A link that is down shows only to who sends.
	if task, err := s.Take(0, 0); err == nil {
		task.LUN = w.LUN
		if s.StartTask(task) == nil {
			started++
		}
	}
	seen := map[int]bool{}
	done := make([]*initiator.Task, 5)
	for deadline := time.Now().Add(patient); ; {
		n, err := s.Poll(50*time.Millisecond, done)
		if err != nil {
			if n != 0 {
				t.Errorf("%d tasks and an error", n)
			}
			break
		}
		for _, task := range done[:n] {
			if task.Err == nil || seen[task.Slot] {
				t.Errorf("task %d: %v, seen %v", task.Slot, task.Err, seen[task.Slot])
			}
			seen[task.Slot] = true
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tasks have ended, the session has not", len(seen))
		}
	}
	if len(seen) != started || s.Outstanding() != 0 {
		t.Errorf("%d tasks have ended, %d outstanding", len(seen), s.Outstanding())
	}
	if _, err := s.Take(0, 0); err == nil {
		t.Error("a task of a session that has ended")
	}
	if s.Flush() == nil || s.Logout() == nil {
		t.Error("flushed, or logged out, after the end")
	}
	check(t, s.Close())
}

// closed: we close amid commands.
func closed(t *testing.T, w World) {
	s := Ready(t, w, 8)
	task, err := s.Take(65536, 0)
	check(t, err)
	task.LUN = w.LUN
	initiator.PutReadWrite10(&task.CDB, false, 0, 128)
	check(t, s.StartTask(task))
	check(t, s.Flush())
	check(t, s.Close())
	check(t, s.Close())
	if _, err := s.Poll(time.Second, make([]*initiator.Task, 1)); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := s.Take(0, 0); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := s.StartTask(task); !errors.Is(err, initiator.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// noWaiting: a Poll that does not wait gets everything in the end, and nothing before it is started.
func noWaiting(t *testing.T, w World) {
	s := Ready(t, w, 8)
	done := make([]*initiator.Task, 8)
	if n, err := s.Poll(0, done); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := s.Poll(time.Millisecond, done); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	for i := range 8 {
		task, err := s.Take(4096, 0)
		check(t, err)
		task.LUN = w.LUN
		initiator.PutReadWrite10(&task.CDB, false, uint32(i), 8)
		check(t, s.StartTask(task))
	}
	got := 0
	for deadline := time.Now().Add(patient); got < 8; time.Sleep(100 * time.Microsecond) {
		n, err := s.Poll(0, done)
		check(t, err)
		if got += n; time.Now().After(deadline) {
			t.Fatalf("%d of 8 came", got)
		}
	}
	check(t, s.Logout())
}

// again: a task is started many times without being released; its memory is as the caller filled it.
func again(t *testing.T, w World) {
	s := Ready(t, w, 2)
	wr, err := s.Take(0, 16384)
	check(t, err)
	rd, err := s.Take(16384, 0)
	check(t, err)
	wr.LUN, rd.LUN = w.LUN, w.LUN
	for i := range 200 {
		for k := range wr.DataOut {
			wr.DataOut[k] = byte(i + k)
		}
		initiator.PutReadWrite10(&wr.CDB, true, uint32(i), 32)
		check(t, initiator.Do(s, wr, patient))
		check(t, wr.Good())
		initiator.PutReadWrite10(&rd.CDB, false, uint32(i), 32)
		check(t, initiator.Do(s, rd, patient))
		check(t, rd.Good())
		if !bytes.Equal(rd.Data, wr.DataOut) {
			t.Fatalf("round %d: other data", i)
		}
	}
	check(t, s.Logout())
}

// NoAllocs checks that commands allocate nothing: 32 at a time, reads and writes of n bytes each.
func NoAllocs(t *testing.T, w World, n int) {
	const depth = 32
	s := Ready(t, w, depth)
	for i := range depth {
		in, out := n, 0
		if i%2 == 1 {
			in, out = 0, n
		}
		task, err := s.Take(in, out)
		check(t, err)
		task.LUN = w.LUN
		initiator.PutReadWrite10(&task.CDB, out > 0, uint32(i*n/block), uint16(n/block))
		check(t, s.StartTask(task))
	}
	var done [depth]*initiator.Task
	round := func() {
		for left := depth; left > 0; {
			k, err := s.Poll(time.Second, done[:min(left, depth)])
			check(t, err)
			for _, task := range done[:k] {
				check(t, task.Good())
				check(t, s.StartTask(task))
			}
			left -= k
		}
	}
	for range 50 {
		round()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties pools, which are then filled anew
	if got := testing.AllocsPerRun(100, round); got > 0 {
		t.Errorf("%v allocations for %d commands of %d bytes", got, depth, n)
	}
	collect(t, s, depth, func(*initiator.Task) {})
	check(t, s.Logout())
}

// Benchmark reads n bytes at a time, depth commands in flight.
func Benchmark(b *testing.B, w World, n, depth int) {
	s := Ready(b, w, depth)
	for range depth {
		task, err := s.Take(n, 0)
		check(b, err)
		task.LUN = w.LUN
		initiator.PutReadWrite10(&task.CDB, false, 0, uint16(n/block))
		check(b, s.StartTask(task))
	}
	done := make([]*initiator.Task, depth)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for left := 0; b.Loop(); left-- {
		for left == 0 {
			k, err := s.Poll(time.Second, done)
			check(b, err)
			for _, task := range done[:k] {
				check(b, task.Good())
				check(b, s.StartTask(task))
			}
			left = k
		}
	}
	collect(b, s, depth, func(*initiator.Task) {})
	check(b, s.Logout())
}
