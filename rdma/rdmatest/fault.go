package rdmatest

import (
	"time"

	"iserd/rdma"
)

// Faults are the hooks that make a fabric misbehave. Each may be nil. They are called with the fabric's lock held: they
// must not call anything of this package, nor block.
type Faults struct {
	// Complete decides over a request that is about to be executed: any status but success fails it with that status,
	// and its queue pair with it.
	Complete func(WorkInfo) rdma.Status
	// Delay holds back the completion of a request, and with it those that follow in the same queue of the queue pair;
	// [Held] until [Fabric.ReleaseCompletions].
	Delay func(WorkInfo) time.Duration
	// ReadTime is how long an RDMA READ takes; READs of a queue pair overlap as far as its depth allows. [Held] until
	// [Fabric.ReleaseReads].
	ReadTime func(WorkInfo) time.Duration
	// Event decides over a connection event.
	Event func(EventInfo) EventAction
	// Verb makes a verb fail by returning an error. Op is the name of the method: "CreateQP", "CreateCQ", "RegMR",
	// "AllocPD", "NewCompletionChannel", "NewEventChannel", "PostSend", "PostRecv", "Arm", "Poll", "Resize", "Listen",
	// "Resolve", "Accept", "Reject", "Connect", "Disconnect", "SetError", "SetMinRNRTimer". PostSend and PostRecv are
	// asked for each request.
	Verb func(device, op string) error
}

// Held is a time without end, until the fabric is told to release.
const Held time.Duration = -1

// WorkInfo tells a hook of a request.
type WorkInfo struct {
	Device string
	QPNum  uint32
	Recv   bool
	Op     rdma.SendOp // of sends
	ID     uint64
	N      uint64 // the how many-eth request of this queue of the queue pair, from 0
	Length uint32
}

// EventInfo tells a hook of a connection event.
type EventInfo struct {
	Device   string // of the side that gets it
	Type     rdma.EventType
	Passive  bool // for the side that was connected to
	Listener bool // for a listener, a connect request not counted
	QPNum    uint32
	N        uint64 // the how many-eth event of the fabric, from 0
}

// EventAction is what becomes of an event. The zero value delivers it.
type EventAction struct {
	// Drop loses it.
	Drop bool
	// Delay delivers it later; [Held] when [Fabric.ReleaseEvents] says so. Others overtake it.
	Delay time.Duration
	// Again delivers it once more, that much later.
	Again time.Duration
}

// SetFaults replaces the hooks.
func (f *Fabric) SetFaults(h Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = h
}

// verb asks the hook whether a verb fails.
func (f *Fabric) verb(d *Device, op string) error {
	if f.faults.Verb == nil {
		return nil
	}
	name := ""
	if d != nil {
		name = d.cfg.Name
	}
	return f.faults.Verb(name, op)
}

// ReleaseCompletions delivers every completion that was held back.
func (f *Fabric) ReleaseCompletions() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.allCQs() {
		for i := range c.late {
			if c.late[i].held {
				c.late[i].held, c.late[i].ready = false, time.Time{}
			}
		}
		c.releaseLate()
	}
}

// ReleaseReads lets the RDMA READs go on that were held.
func (f *Fabric) ReleaseReads() {
	f.mu.Lock()
	held := f.heldReads
	f.heldReads = nil
	for _, r := range held {
		r.q.readDone(r.seq)
	}
	f.mu.Unlock()
}

// ReleaseEvents delivers, in the order in which they came, the connection events that were held.
func (f *Fabric) ReleaseEvents() {
	f.mu.Lock()
	held := f.heldEvents
	f.heldEvents = nil
	for _, e := range held {
		e.ch.enqueue(e.ev)
	}
	f.mu.Unlock()
}

// HeldEvents is how many connection events are held.
func (f *Fabric) HeldEvents() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.heldEvents)
}

// SetLink drops or restores every link of the fabric: while it is down, messages of queue pairs and of the connection
// manager vanish.
func (f *Fabric) SetLink(up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = !up
	f.kickAll()
}

// SetLink drops or restores the device's link, without telling anyone; see [Device.Raise].
func (d *Device) SetLink(up bool) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.down = !up
	d.f.kickAll()
}

// kickAll lets every queue pair try again.
func (f *Fabric) kickAll() {
	for _, q := range f.sortedQPs() {
		q.run()
	}
}

// Raise delivers an asynchronous event of the device.
func (d *Device) Raise(e rdma.AsyncEvent) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.raise(e)
}

// RaiseQP delivers an asynchronous event for every queue pair of the device.
func (d *Device) RaiseQP(t rdma.AsyncEventType) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	for _, q := range d.f.sortedQPs() {
		if q.dev == d {
			d.raise(rdma.AsyncEvent{Type: t, QPNum: q.num})
		}
	}
}

// Remove takes the device away, as when its driver is unbound: DEVICE_REMOVAL for every connection and listener on it,
// an asynchronous DEVICE_FATAL, and from then on ErrClosed from everything but Close. Its peers see a dead link.
func (d *Device) Remove() {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.removed.Swap(true) {
		return
	}
	d.raise(rdma.AsyncEvent{Type: rdma.AsyncDeviceFatal})
	for _, l := range f.listenersOf(d) {
		l.dead = true
		l.ch.emit(rdma.Event{Type: rdma.EventDeviceRemoval, Listener: l}, nil)
	}
	for _, c := range f.connsOf(d) {
		c.ch.emit(rdma.Event{Type: rdma.EventDeviceRemoval, Conn: c}, c)
	}
	for _, ch := range f.channelsOf(d) {
		ch.signal()
	}
	f.kickAll() // peers notice
}

// Return brings a device that was removed back, as a new object with the same name and addresses.
func (d *Device) Return() *Device {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !d.removed.Load() {
		return d
	}
	return d.p.addDevice(d.cfg)
}

// AddrChange delivers ADDR_CHANGE to every listener and connection that is bound to an address of the device.
func (d *Device) AddrChange() {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listenersOf(d) {
		l.dead = true
		l.ch.emit(rdma.Event{Type: rdma.EventAddrChange, Listener: l}, nil)
	}
	for _, c := range f.connsOf(d) {
		c.ch.emit(rdma.Event{Type: rdma.EventAddrChange, Conn: c}, c)
	}
}

// Break moves a queue pair to error as a device does on its own: flushed, and an asynchronous QP_FATAL.
func (d *Device) Break(qpNum uint32) bool {
	f := d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.qps[qpNum]
	if q == nil || q.dev != d {
		return false
	}
	q.enterError()
	d.raise(rdma.AsyncEvent{Type: rdma.AsyncQPFatal, QPNum: qpNum})
	return true
}
