package initiator

import (
	"errors"
	"fmt"
	"time"

	"iserd/iscsi/login"
)

// Errors of a session, the same for every transport.
var (
	// ErrNoTask says that as many tasks are taken as the session has: release one, or open it with a larger depth.
	ErrNoTask = errors.New("initiator: every task of the session is taken")
	// ErrClosed says that the session was closed by this side.
	ErrClosed = errors.New("initiator: the session is closed")
	// ErrTimeout says that no answer came in time.
	ErrTimeout = errors.New("initiator: no answer")
)

// Session is a logged-in session with one connection that keeps many commands in flight. One goroutine at a time uses it.
// In steady state no method allocates.
//
// The life of a command: Take, fill [Task.CDB], [Task.LUN] and [Task.DataOut], StartTask, Flush or Poll, look at the
// task that Poll hands out, then start it anew (same sizes, buffers as they are) or Release it.
type Session interface {
	// Take takes a free task with memory for in bytes of data-in and out bytes of data-out, either of which may be 0.
	// What the memory holds is undefined; LUN, CDB and User are zero. [ErrNoTask] when [Info.Depth] tasks are taken.
	Take(in, out int) (*Task, error)
	// StartTask queues a command; it goes out with the next Flush or Poll. A command beyond the target's command window
	// is held, in order, until the window opens. The task and its memory are the session's until Poll hands it out. An
	// error says that the task was not queued.
	StartTask(t *Task) error
	// Flush sends what is queued, in as few crossings as possible, and does not wait for answers. It may wait for room
	// to send.
	Flush() error
	// Poll flushes, takes what has come, and hands out in done the tasks that have ended since. It waits up to wait until
	// there is at least one: 0 does not wait. The time having passed, or done being full, is no error.
	//
	// When the session fails, each task under way is handed out once with its Err set; only then does Poll give back the
	// error, with n == 0.
	Poll(wait time.Duration, done []*Task) (n int, err error)
	// Release gives a task back that is not under way.
	Release(t *Task) error
	// Outstanding is how many tasks were started and not handed out yet.
	Outstanding() int
	// Window is how many commands the target takes beyond those sent, as it last said.
	Window() int
	// Info says what was connected to.
	Info() Info
	// Logout ends the session in order and closes it. No task may be under way.
	Logout() error
	// Close lets go of everything, in whatever state it is. It may be called again. Tasks and memory are gone then.
	Close() error
}

// Info says what a session is connected to.
type Info struct {
	Transport string // "iSER" or "TCP"
	// Provider and Device are empty over TCP.
	Provider, Device string
	Local, Remote    string // address:port
	Names            login.Names
	TSIH             uint16
	// Params is what login negotiated, seen from the initiator.
	Params login.Params
	// Depth is how many tasks there are.
	Depth int
}

// Task is one SCSI command. It belongs to the caller from Take to StartTask, and from Poll to Release.
type Task struct {
	Result
	// Err says that the command has no result, because the session ended under it.
	Err error
	// User is the caller's own; the session does not look at it.
	User uint64
	// LUN is in wire order, as [LUN] makes it.
	LUN uint64
	CDB [16]byte
	// DataIn is where data-in goes: [Result.Data] is its part that was filled. DataOut is what the command sends. Their
	// lengths are what Take was told, and what the command declares as expected.
	DataIn, DataOut []byte
	// Slot is the session's number for this task, from 0, below [Info.Depth].
	Slot int
}

// Good is nil if the command ended with GOOD status and without residual, else an error that says how it ended.
func (t *Task) Good() error {
	if t.Err != nil {
		return t.Err
	}
	return t.Result.Good()
}

// Do starts a task and waits for it; nothing else may be under way. It gives back errors of the session only: how the
// command ended is in the task.
func Do(s Session, t *Task, timeout time.Duration) error {
	if err := s.StartTask(t); err != nil {
		return err
	}
	var done [1]*Task
	n, err := s.Poll(timeout, done[:])
	switch {
	case err != nil:
		return err
	case n == 0:
		return fmt.Errorf("%w to CDB %x within %v", ErrTimeout, t.CDB, timeout)
	case done[0] != t:
		return fmt.Errorf("initiator: task %d ended, where task %d alone was to be under way", done[0].Slot, t.Slot)
	}
	return t.Err
}
