package initiator

import "fmt"

type taskState uint8

const (
	taskFree    taskState = iota
	taskTaken             // the caller's
	taskHeld              // started, waits for the window or for room to send
	taskSent              // under way
	taskEnded             // waits to be handed out
	taskNoState taskState = 255
)

func (s taskState) String() string {
	switch s {
	case taskFree:
		return "free"
	case taskTaken:
		return "not started"
	case taskHeld, taskSent:
		return "under way"
	case taskEnded:
		return "not handed out yet"
	}
	return "not of this session"
}

// Table keeps the tasks of a session: which are free, which wait to be sent, which have ended. Transports build [Session]
// on it. [Table.Init] makes all that it needs; after that it allocates nothing.
type Table struct {
	tasks       []Task
	state       []taskState
	free        []*Task
	held, ended ring
	outstanding int
	err         error
}

// Init makes depth tasks.
func (b *Table) Init(depth int) error {
	if depth < 1 || depth > MaxSlots {
		return fmt.Errorf("initiator: depth %d: a session has 1 to %d tasks", depth, MaxSlots)
	}
	*b = Table{tasks: make([]Task, depth), state: make([]taskState, depth), free: make([]*Task, 0, depth)}
	b.held.items, b.ended.items = make([]*Task, depth), make([]*Task, depth)
	for i := range b.tasks {
		t := &b.tasks[depth-1-i]
		t.Slot = depth - 1 - i
		b.free = append(b.free, t)
	}
	return nil
}

// Depth is how many tasks there are.
func (b *Table) Depth() int { return len(b.tasks) }

// Outstanding is how many tasks were started and not handed out yet.
func (b *Table) Outstanding() int { return b.outstanding }

// Err is what the session failed with, nil while it works.
func (b *Table) Err() error { return b.err }

func (b *Table) stateOf(t *Task) taskState {
	if t.Slot < 0 || t.Slot >= len(b.tasks) || &b.tasks[t.Slot] != t {
		return taskNoState
	}
	return b.state[t.Slot]
}

// Take takes a free task, all of whose fields but Slot are zero.
func (b *Table) Take() (*Task, error) {
	if b.err != nil {
		return nil, b.err
	}
	n := len(b.free)
	if n == 0 {
		return nil, ErrNoTask
	}
	t := b.free[n-1]
	b.free = b.free[:n-1]
	b.state[t.Slot] = taskTaken
	*t = Task{Slot: t.Slot}
	return t, nil
}

// Start puts a task behind those that wait to be sent.
func (b *Table) Start(t *Task) error {
	if b.err != nil {
		return b.err
	}
	if s := b.stateOf(t); s != taskTaken {
		return fmt.Errorf("initiator: task %d cannot be started: it is %s", t.Slot, s)
	}
	t.Result, t.Err = Result{}, nil
	b.state[t.Slot] = taskHeld
	b.outstanding++
	b.held.put(t)
	return nil
}

// Held is the first task that waits to be sent, nil if there is none; Sent takes it out of the queue.
func (b *Table) Held() *Task { return b.held.peek() }

// Sent says that the first of the tasks that wait was sent.
func (b *Table) Sent() { b.state[b.held.take().Slot] = taskSent }

// Under is whether a task was sent and has not ended.
func (b *Table) Under(slot int) bool {
	return slot < len(b.state) && b.state[slot] == taskSent
}

// At is the task in a slot.
func (b *Table) At(slot int) *Task { return &b.tasks[slot] }

// End says that a task that was sent has its result.
func (b *Table) End(t *Task) {
	b.state[t.Slot] = taskEnded
	b.ended.put(t)
}

// Ended is how many tasks wait to be handed out.
func (b *Table) Ended() int { return b.ended.n }

// Fail ends every task that was started with an error, and with it the session. Only the first call counts.
func (b *Table) Fail(err error) {
	if b.err != nil {
		return
	}
	b.err = err
	for b.held.n > 0 {
		b.state[b.held.take().Slot] = taskSent
	}
	for i := range b.tasks {
		if b.state[i] == taskSent {
			b.tasks[i].Err = err
			b.End(&b.tasks[i])
		}
	}
}

// HandOut gives tasks that have ended to the caller: the end of every Poll. The error comes once there is none left.
func (b *Table) HandOut(done []*Task) (int, error) {
	n := 0
	for n < len(done) && b.ended.n > 0 {
		t := b.ended.take()
		b.state[t.Slot] = taskTaken
		b.outstanding--
		done[n] = t
		n++
	}
	if n == 0 && b.ended.n == 0 {
		return 0, b.err
	}
	return n, nil
}

// Release gives a task back that the caller has.
func (b *Table) Release(t *Task) error {
	if s := b.stateOf(t); s != taskTaken {
		return fmt.Errorf("initiator: task %d cannot be released: it is %s", t.Slot, s)
	}
	b.state[t.Slot] = taskFree
	b.free = append(b.free, t)
	return nil
}

// ring is a queue with room for every task.
type ring struct {
	items    []*Task
	first, n int
}

func (r *ring) put(t *Task) {
	r.items[(r.first+r.n)%len(r.items)] = t
	r.n++
}

func (r *ring) peek() *Task {
	if r.n == 0 {
		return nil
	}
	return r.items[r.first]
}

func (r *ring) take() *Task {
	t := r.items[r.first]
	r.first = (r.first + 1) % len(r.items)
	r.n--
	return t
}
