package iscsi

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"iserd/internal/serial"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// Node is the network entity: targets, portals, sessions, and the one timer of them all. Its methods may be called from
// any goroutine.
type Node struct {
	cfg     Config
	started time.Time
	clock   atomic.Int64 // time since started in ns, as of the last tick
	count   counters

	mu       sync.Mutex
	targets  map[string]*Target
	names    []string // of targets, in order
	portals  []Portal
	conns    map[*Connection]struct{}
	inLogin  int
	silent   []*Connection       // of those, the ones that have not sent anything yet, oldest first
	sessions map[uint16]*Session // by TSIH
	lastTSIH uint16
	ticking  bool
	closing  bool
	empty    chan struct{} // while Shutdown waits: closed when the last connection is gone
}

// Portal is an address where the node can be reached.
type Portal struct {
	Addr      netip.AddrPort // may be a wildcard
	Tag       uint16         // portal group
	TCP, ISER bool
}

// Errors of the node.
var (
	ErrTargetExists = errors.New("iscsi: there is a target of that name")
	ErrNoTarget     = errors.New("iscsi: no target of that name")
	ErrClosing      = errors.New("iscsi: shutting down")
)

// NewNode makes a node without targets. A field of cfg that is out of its range counts as zero; see [Config.Validate].
func NewNode(cfg Config) *Node {
	return &Node{
		cfg:      cfg.withDefaults(),
		started:  time.Now(),
		targets:  map[string]*Target{},
		conns:    map[*Connection]struct{}{},
		sessions: map[uint16]*Session{},
	}
}

// AddTarget makes a target known, to discovery as well.
func (n *Node) AddTarget(cfg TargetConfig) (*Target, error) {
	cfg.Name = pdu.NormalizeName(cfg.Name)
	if !pdu.ValidName(cfg.Name) {
		return nil, fmt.Errorf("target %q: not an iSCSI name (iqn.YYYY-MM.domain:text, eui. or naa.)", cfg.Name)
	}
	if cfg.Device == nil {
		return nil, fmt.Errorf("target %s: no SCSI device", cfg.Name)
	}
	if len(cfg.Alias) > pdu.MaxValueLength {
		return nil, fmt.Errorf("target %s: the alias has %d bytes, more than %d", cfg.Name, len(cfg.Alias), pdu.MaxValueLength)
	}
	t := &Target{node: n, cfg: cfg}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return nil, ErrClosing
	}
	if n.targets[cfg.Name] != nil {
		return nil, fmt.Errorf("%w: %s", ErrTargetExists, cfg.Name)
	}
	n.targets[cfg.Name] = t
	i, _ := slices.BinarySearch(n.names, cfg.Name)
	n.names = slices.Insert(n.names, i, cfg.Name)
	return t, nil
}

// RemoveTarget takes a target away and ends its sessions; it does not wait for their ends.
func (n *Node) RemoveTarget(name string) error {
	name = pdu.NormalizeName(name)
	n.mu.Lock()
	t := n.targets[name]
	if t == nil {
		n.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrNoTarget, name)
	}
	delete(n.targets, name)
	if i, ok := slices.BinarySearch(n.names, name); ok {
		n.names = slices.Delete(n.names, i, i+1)
	}
	t.removed = true
	n.mu.Unlock()
	t.RemoveSessions("the target was removed")
	return nil
}

// Target is the target of that name, nil if there is none.
func (n *Node) Target(name string) *Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.targets[pdu.NormalizeName(name)]
}

// Targets lists the targets in the order of their names.
func (n *Node) Targets() []*Target {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]*Target, len(n.names))
	for i, name := range n.names {
		list[i] = n.targets[name]
	}
	return list
}

// SetPortals says where the node can be reached, for discovery. Only the portals of a target's portal group lead to it.
func (n *Node) SetPortals(list []Portal) {
	n.mu.Lock()
	n.portals = slices.Clone(list)
	n.mu.Unlock()
}

// NewConnection takes a connection that a datamover accepted. It may be called outside turns; it calls no method of dm
// but Wake.
func (n *Node) NewConnection(dm Datamover, info ConnInfo) *Connection {
	c := &Connection{node: n, dm: dm, info: info, statSN: randomSN()}
	c.canceler, _ = dm.(DataCanceler)
	c.machine = login.New(info.Transport, n.cfg.Limits, c.resolve)
	n.mu.Lock()
	var out *Connection
	defer func() {
		n.mu.Unlock()
		if out != nil {
			out.post(message{kind: msgEnd, how: endLost, cause: "silent while too many others want to log in"})
		}
	}()
	n.startTickerLocked()
	now := n.monotonic()
	wait := n.cfg.LoginTimeout
	if n.inLogin >= n.cfg.MaxConnectionsInLogin && len(n.silent) > 0 {
		// A flood of connections that say nothing must not keep out those who do (known-faults B114).
		out = n.silent[0]
		n.leaveLoginLocked(out)
	}
	if n.inLogin >= n.cfg.MaxConnectionsInLogin {
		// It gets an answer, but no time.
		c.overload = true
		wait = min(wait, time.Second)
	}
	if n.closing {
		wait = 0 // Shutdown waits for the last one
	}
	c.loginBy = now + int64(wait)
	c.due.Store(c.loginBy)
	c.inLogin = true
	n.inLogin++
	if !c.overload {
		n.silent = append(n.silent, c)
	}
	n.conns[c] = struct{}{}
	n.count.connections.Add(1)
	return c
}

// randomSN is where StatSN begins: anywhere, so that PDUs of an older connection are not taken for ours.
func randomSN() serial.Number {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return serial.New(binary.BigEndian.Uint32(b[:]))
}

// leaveLogin counts a connection as out of login.
func (n *Node) leaveLogin(c *Connection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaveLoginLocked(c)
}

func (n *Node) leaveLoginLocked(c *Connection) {
	if c.inLogin {
		c.inLogin = false
		n.inLogin--
	}
	n.heardLocked(c)
}

// heard notes that a connection has begun to log in.
func (n *Node) heard(c *Connection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heardLocked(c)
}

func (n *Node) heardLocked(c *Connection) {
	if i := slices.Index(n.silent, c); i >= 0 {
		n.silent = slices.Delete(n.silent, i, i+1)
	}
}

// forget ends the node's knowledge of a connection.
func (n *Node) forget(c *Connection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaveLoginLocked(c)
	delete(n.conns, c)
	if len(n.conns) == 0 && n.empty != nil {
		close(n.empty)
		n.empty = nil
	}
}

// Shutdown refuses new logins and ends every connection. It returns when they are gone, disconnects and all, or with an
// error when ctx ends first: a store that hangs keeps its connections.
func (n *Node) Shutdown(ctx context.Context) error {
	n.mu.Lock()
	n.closing = true
	conns := make([]*Connection, 0, len(n.conns))
	for c := range n.conns {
		conns = append(conns, c)
	}
	var empty chan struct{}
	if len(conns) > 0 {
		if n.empty == nil {
			n.empty = make(chan struct{})
		}
		empty = n.empty
	}
	n.mu.Unlock()
	for _, c := range conns {
		c.post(message{kind: msgEnd, how: endRemoved, cause: "the target is shutting down", notice: true})
	}
	if empty == nil {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		n.mu.Lock()
		left := len(n.conns)
		n.mu.Unlock()
		if left == 0 {
			return nil
		}
		return fmt.Errorf("iscsi: %d connections did not end: %w", left, ctx.Err())
	}
}
