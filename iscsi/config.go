package iscsi

import (
	"errors"
	"fmt"
	"time"

	"iserd/iscsi/login"
)

// Config is what a [Node] needs to know. The zero value is useful: every zero field has the default that stands with it.
type Config struct {
	// QueueDepth is the command window of a session, 1 to 512. 128 is what open-iscsi queues per session.
	QueueDepth int
	// Limits are the target's side of login negotiation; the zero value is [login.DefaultLimits].
	Limits login.Limits
	// LoginTimeout (15 s) ends connections that do not reach full feature phase in time.
	LoginTimeout time.Duration
	// A connection that was silent for NopInterval (15 s) is asked with a NOP-In, and ended when it stays silent for
	// NopTimeout (30 s) more. Negative NopInterval: never.
	NopInterval, NopTimeout time.Duration
	// ReinstatementWait (3 s) bounds how long a login waits for the store requests of a session that it follows.
	ReinstatementWait time.Duration
	// TMFWait (3 s) bounds how long the response to a task management function waits for store requests in flight.
	TMFWait time.Duration
	// MaxSessions (4096) bounds the sessions of the node, MaxConnectionsInLogin (512) the connections that are not yet in
	// full feature phase. When there are as many, the oldest that has not sent anything makes room.
	MaxSessions, MaxConnectionsInLogin int
	// Events are told of what happens on the control path.
	Events Events
}

const (
	defaultQueueDepth = 128
	maxQueueDepth     = 512
	// immediateAllowance is how many PDUs outside the command window may be unanswered: immediate SCSI commands and task
	// management functions. Initiators use a handful.
	immediateAllowance = 16
	// taskSlack are task slots beyond the window, for responses that are on their way out while the initiator already
	// fills the window again.
	taskSlack = 32
)

// Validate says what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.QueueDepth < 0 || c.QueueDepth > maxQueueDepth {
		errs = append(errs, fmt.Errorf("queue depth %d: use 1 to %d, or 0 for %d", c.QueueDepth, maxQueueDepth, defaultQueueDepth))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"login timeout", c.LoginTimeout}, {"NOP timeout", c.NopTimeout}, {"reinstatement wait", c.ReinstatementWait}, {"task management wait", c.TMFWait}} {
		if d.v < 0 || d.v > time.Hour {
			errs = append(errs, fmt.Errorf("%s %v: use up to an hour, or 0 for the default", d.name, d.v))
		}
	}
	if c.NopInterval > time.Hour {
		errs = append(errs, fmt.Errorf("NOP interval %v: use up to an hour, 0 for the default, or less than 0 for no probes", c.NopInterval))
	}
	if c.MaxSessions < 0 || c.MaxSessions > 65535 {
		errs = append(errs, fmt.Errorf("maximum of %d sessions: use 1 to 65535, or 0 for the default", c.MaxSessions))
	}
	if c.MaxConnectionsInLogin < 0 {
		errs = append(errs, fmt.Errorf("maximum of %d connections in login: it must not be negative", c.MaxConnectionsInLogin))
	}
	if c.Limits != (login.Limits{}) {
		if err := c.Limits.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withDefaults fills the zero fields, and puts numbers that Validate would refuse back into their range.
func (c Config) withDefaults() Config {
	if c.QueueDepth <= 0 {
		c.QueueDepth = defaultQueueDepth
	}
	c.QueueDepth = min(c.QueueDepth, maxQueueDepth)
	if c.Limits == (login.Limits{}) {
		c.Limits = login.DefaultLimits()
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.LoginTimeout, 15*time.Second)
	if c.NopInterval == 0 {
		c.NopInterval = 15 * time.Second
	}
	def(&c.NopTimeout, 30*time.Second)
	def(&c.ReinstatementWait, 3*time.Second)
	def(&c.TMFWait, 3*time.Second)
	if c.MaxSessions <= 0 || c.MaxSessions > 65535 {
		c.MaxSessions = 4096
	}
	if c.MaxConnectionsInLogin <= 0 {
		c.MaxConnectionsInLogin = 512
	}
	return c
}

// tick is how often the timers are looked at: a fraction of the shortest wait, so that none is late by much.
func (c Config) tick() time.Duration {
	shortest := min(c.LoginTimeout, c.NopTimeout, c.ReinstatementWait, c.TMFWait)
	if c.NopInterval > 0 {
		shortest = min(shortest, c.NopInterval)
	}
	return max(time.Millisecond, min(shortest/8, 250*time.Millisecond))
}
