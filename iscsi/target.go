package iscsi

import (
	"net/netip"
	"slices"

	"iserd/iscsi/login"
	"iserd/scsi"
)

// TargetConfig is what a target is.
type TargetConfig struct {
	Name, Alias string
	// PortalGroupTag is the portal group that leads to the target.
	PortalGroupTag uint16
	Device         *scsi.Device
	// Authorize says who may see and use the target; nil: everyone. It is the only such rule, asked by discovery and by
	// login over every transport (known-faults B29, B34). It is called inside turns: it must not block.
	Authorize func(Initiator) *Refusal
	// Authenticator, if set, gives the proof that a login to the target takes.
	Authenticator func(Initiator) login.Authenticator
	// MaxSessions bounds the sessions of the target; 0 is no bound but that of the node.
	MaxSessions int
}

// Initiator is who asks.
type Initiator struct {
	Name          string
	Remote, Local netip.AddrPort
	Transport     login.Transport
}

// Refusal is why somebody may not.
type Refusal struct {
	Status login.Status // 0 is [login.StatusAuthorizationFailure]
	Cause  string       // for the log
}

// Target is an iSCSI target node with one portal group.
type Target struct {
	node *Node
	cfg  TargetConfig

	// Guarded by node.mu.
	sessions  []*Session
	removed   bool
	lingering []*quiet // sessions that ended with requests in stores
}

// Name is the target's iSCSI name.
func (t *Target) Name() string { return t.cfg.Name }

// Config is what the target was made with.
func (t *Target) Config() TargetConfig { return t.cfg }

// authorize asks the one rule.
func (t *Target) authorize(i Initiator) *Refusal {
	if t.cfg.Authorize == nil {
		return nil
	}
	r := t.cfg.Authorize(i)
	if r != nil && r.Status == login.StatusSuccess {
		return &Refusal{Status: login.StatusAuthorizationFailure, Cause: r.Cause}
	}
	return r
}

// Sessions lists the sessions of the target.
func (t *Target) Sessions() []*Session {
	t.node.mu.Lock()
	defer t.node.mu.Unlock()
	return slices.Clone(t.sessions)
}

// RemoveSessions ends the sessions of the target. It does not wait; they are not found any more soon after.
func (t *Target) RemoveSessions(cause string) {
	for _, s := range t.Sessions() {
		s.conn.post(message{kind: msgEnd, how: endRemoved, cause: cause, notice: true})
	}
}

// lingerLocked gives the sessions that a login of this initiator must wait for: those that ended lately and have requests
// in stores. A late write of theirs must not overwrite one of the new session.
func (t *Target) lingerLocked(initiator string) []*quiet {
	now := t.node.monotonic()
	keep := t.lingering[:0]
	var found []*quiet
	for _, q := range t.lingering {
		if q.done() || now > q.ended+int64(t.node.cfg.ReinstatementWait) {
			continue
		}
		keep = append(keep, q)
		if q.initiator == initiator {
			found = append(found, q)
		}
	}
	clear(t.lingering[len(keep):])
	t.lingering = keep
	return found
}
