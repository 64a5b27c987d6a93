package iscsi

import (
	"time"

	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// Events are optional functions that are told of control events; nil ones are silent. They are called inside turns, so
// they must not block and must not call the node. Everything in an event is a copy.
type Events struct {
	// Login: a session entered full feature phase.
	Login func(SessionEvent)
	// Logout: a session ended in order: by a Logout request, or because a discovery was over.
	Logout func(SessionEvent)
	// Reinstated: a session ended because its initiator logged in again.
	Reinstated func(SessionEvent)
	// Removed: a session was ended from our side: shutdown, removal of its target, a cold reset.
	Removed func(SessionEvent)
	// Lost: a session ended in any other way; Cause says how.
	Lost func(SessionEvent)
	// Refused: a login was refused.
	Refused func(RefusedEvent)
	// Probe: a connection ended before it sent a login request (port scanners, health checks).
	Probe func(ProbeEvent)
	// TaskManagement: a task management function was answered.
	TaskManagement func(TaskManagementEvent)
}

// Peer says who is at the other end of a connection.
type Peer struct {
	Initiator
	Target string // empty in a discovery session
	ISID   [6]byte
	TSIH   uint16
}

// SessionEvent is the begin or the end of a session.
type SessionEvent struct {
	Peer
	Discovery bool
	Device    string // RDMA device
	Since     time.Time
	Cause     string // of the end
}

// RefusedEvent is a refused login.
type RefusedEvent struct {
	Peer
	Status login.Status
	Cause  string
}

// ProbeEvent is a connection that came to nothing.
type ProbeEvent struct {
	Initiator // without a name
	Cause     string
}

// TaskManagementEvent is a task management function and its answer.
type TaskManagementEvent struct {
	Peer
	Function pdu.TMFunction
	LUN      uint64
	Response pdu.TMResponse
	// Tasks is the number of tasks affected, Late how many of them a store had not given back when the answer went out.
	Tasks, Late int
	Took        time.Duration
}

func call[E any](f func(E), e E) {
	if f != nil {
		f(e)
	}
}
