package iscsi

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"iserd/iscsi/login"
	"iserd/scsi"
)

// Session is one session with its one connection. Discovery sessions have no target.
type Session struct {
	node   *Node
	target *Target // nil in a discovery session
	conn   *Connection
	names  login.Names
	tsih   uint16
	since  time.Time
	quiet  *quiet

	// Guarded by node.mu.
	gone bool

	// The connection's.
	nexus *scsi.ITNexus
	ended bool
}

// SessionInfo describes a session.
type SessionInfo struct {
	TSIH          uint16
	ISID          [6]byte
	Initiator     string
	Alias         string
	Target        string // empty in a discovery session
	Discovery     bool
	Transport     login.Transport
	Local, Remote netip.AddrPort
	Device        string
	Since         time.Time
	Commands      uint64
	BytesIn       uint64 // data-in, to the initiator
	BytesOut      uint64
}

// Info describes the session.
func (s *Session) Info() SessionInfo {
	c := s.conn
	info := SessionInfo{TSIH: s.tsih, ISID: s.names.ISID, Initiator: s.names.InitiatorName, Alias: s.names.InitiatorAlias,
		Discovery: s.target == nil, Transport: c.info.Transport, Local: c.info.Local, Remote: c.info.Remote, Device: c.info.Device,
		Since: s.since, Commands: c.commands.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load()}
	if s.target != nil {
		info.Target = s.target.cfg.Name
	}
	return info
}

// RequestLogout asks the initiator to log out (asynchronous event 1). When it did not after so many seconds, the session
// is ended.
func (s *Session) RequestLogout(seconds uint16) {
	s.conn.post(message{kind: msgRequestLogout, seconds: seconds})
}

// Remove ends the session.
func (s *Session) Remove(cause string) {
	s.conn.post(message{kind: msgEnd, how: endRemoved, cause: cause, notice: true})
}

// Sessions describes the sessions of the node, in the order of TSIH.
func (n *Node) Sessions() []SessionInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]SessionInfo, 0, len(n.sessions))
	for _, s := range n.sessions {
		list = append(list, s.Info())
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return int(a.TSIH) - int(b.TSIH) })
	return list
}

// portName is the name of the initiator port: RFC 7143 makes it of the initiator's name and the ISID.
func portName(names login.Names) string {
	return fmt.Sprintf("%s,i,0x%012x", names.InitiatorName, names.ISID)
}

// admission is what a login meets when it is about to complete.
type admission struct {
	status   login.Status
	cause    string
	session  *Session
	replaces *Connection // its session is reinstated
	waitFor  []*quiet
}

// admit registers the session of a connection whose login is complete, in place of an older one of the same initiator
// port. The old one is not found any more from here on; its connection is still to be told.
func (n *Node) admit(c *Connection) admission {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return admission{status: login.StatusServiceUnavailable, cause: "the target is shutting down"}
	}
	s := &Session{node: n, conn: c, names: c.names, since: time.Now()}
	s.quiet = newQuiet(c.names.InitiatorName)
	a := admission{session: s}
	t := c.target
	if t == nil {
		if len(n.sessions) >= n.cfg.MaxSessions {
			return admission{status: login.StatusOutOfResources, cause: fmt.Sprintf("%d sessions, no more are allowed", len(n.sessions))}
		}
		n.registerLocked(s, 0)
		return a
	}
	if t.removed {
		return admission{status: login.StatusTargetRemoved, cause: "the target was removed during the login"}
	}
	s.target = t
	old := t.findLocked(c.names)
	if c.names.TSIH != 0 {
		if status, cause := n.joinLocked(c, t); status != login.StatusSuccess {
			return admission{status: status, cause: cause}
		}
		old = n.sessions[c.names.TSIH]
	}
	var tsih uint16
	if old != nil {
		if c.names.TSIH != 0 {
			tsih = old.tsih
		}
		n.unregisterLocked(old)
		a.replaces = old.conn
		a.waitFor = append(a.waitFor, old.quiet)
	} else if t.cfg.MaxSessions > 0 && len(t.sessions) >= t.cfg.MaxSessions {
		return admission{status: login.StatusTooManyConnections, cause: fmt.Sprintf("the target has %d sessions, no more are allowed", len(t.sessions))}
	} else if len(n.sessions) >= n.cfg.MaxSessions {
		return admission{status: login.StatusOutOfResources, cause: fmt.Sprintf("%d sessions, no more are allowed", len(n.sessions))}
	}
	a.waitFor = append(a.waitFor, t.lingerLocked(c.names.InitiatorName)...)
	n.registerLocked(s, tsih)
	return a
}

// joinLocked checks a login that names a session. With one connection per session it can only replace the connection.
func (n *Node) joinLocked(c *Connection, t *Target) (login.Status, string) {
	s := n.sessions[c.names.TSIH]
	if s == nil || s.target != t || s.names.InitiatorName != c.names.InitiatorName || s.names.ISID != c.names.ISID {
		return login.StatusSessionDoesNotExist, fmt.Sprintf("the initiator has no session 0x%04x with this target", c.names.TSIH)
	}
	if s.names.CID != c.names.CID {
		return login.StatusTooManyConnections, "a session has one connection"
	}
	return login.StatusSuccess, ""
}

// findLocked finds the session of an initiator port.
func (t *Target) findLocked(names login.Names) *Session {
	for _, s := range t.sessions {
		if s.names.ISID == names.ISID && s.names.InitiatorName == names.InitiatorName {
			return s
		}
	}
	return nil
}

func (n *Node) registerLocked(s *Session, tsih uint16) {
	for tsih == 0 || n.sessions[tsih] != nil {
		n.lastTSIH++
		tsih = n.lastTSIH
	}
	s.tsih = tsih
	n.sessions[tsih] = s
	if s.target != nil {
		s.target.sessions = append(s.target.sessions, s)
	}
}

func (n *Node) unregisterLocked(s *Session) {
	if s.gone {
		return
	}
	s.gone = true
	delete(n.sessions, s.tsih)
	if t := s.target; t != nil {
		if i := slices.Index(t.sessions, s); i >= 0 {
			t.sessions = slices.Delete(t.sessions, i, i+1)
		}
	}
}

// unregister takes an ended session out of the tables. linger: requests of it are still in stores.
func (n *Node) unregister(s *Session, linger bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unregisterLocked(s)
	if linger && s.target != nil {
		s.quiet.ended = n.monotonic()
		s.target.lingering = append(s.target.lingering, s.quiet)
	}
}

// quiet says when nothing of a session can change data any more: it has ended, its requests came back from the stores,
// and so did those of the sessions that it followed. It does not need the session's connection for that, which may be
// gone.
type quiet struct {
	initiator string
	ended     int64 // node's clock; guarded by node.mu

	mu      sync.Mutex
	parts   int
	waiters []func()
}

func newQuiet(initiator string) *quiet { return &quiet{initiator: initiator, parts: 1} }

func (q *quiet) add(n int) {
	q.mu.Lock()
	q.parts += n
	q.mu.Unlock()
}

// part ends one of the things that keep q from being quiet.
func (q *quiet) part() {
	q.mu.Lock()
	q.parts--
	var waiters []func()
	if q.parts == 0 {
		waiters, q.waiters = q.waiters, nil
	}
	q.mu.Unlock()
	for _, f := range waiters {
		f()
	}
}

func (q *quiet) done() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.parts == 0
}

// then calls f once q is quiet: at once, or later on any goroutine.
func (q *quiet) then(f func()) {
	q.mu.Lock()
	if q.parts > 0 {
		q.waiters = append(q.waiters, f)
		q.mu.Unlock()
		return
	}
	q.mu.Unlock()
	f()
}
