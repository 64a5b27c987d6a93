package tcp

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of Config.
const (
	// defaultBufferMemory bounds the data that all connections together have on its way to or from stores that cannot be
	// used in place.
	defaultBufferMemory = 1 << 30
	// defaultStallTimeout is longer than a network usually needs to come back, and shorter than the patience of people.
	defaultStallTimeout = 30 * time.Second
	defaultCloseTimeout = time.Second
	defaultKeepAlive    = 30 * time.Second
)

// Config says how connections are served. The zero value is useful.
type Config struct {
	// BufferMemory bounds the memory of all task buffers, in bytes. Zero is 1 GiB.
	BufferMemory int64
	// StallTimeout ends a connection whose peer takes no byte for so long while there is something to send. It is also
	// the kernel's limit for unacknowledged data (TCP_USER_TIMEOUT). Zero is 30 s.
	StallTimeout time.Duration
	// CloseTimeout bounds each step of an orderly end: sending what was queued, and waiting for the peer to close. Zero
	// is 1 s.
	CloseTimeout time.Duration
	// KeepAlive is the idle time after which the kernel probes the peer, and the time between probes. Zero is 30 s.
	KeepAlive time.Duration
	// Events reports what happens to listeners.
	Events Events
}

// Events are called, if set, from any goroutine; they must not block.
type Events struct {
	// AcceptError: a listener could not accept and tries again after the pause.
	AcceptError func(err error, pause time.Duration)
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.BufferMemory < 0 || c.BufferMemory > 0 && c.BufferMemory < minBufferMemory {
		errs = append(errs, fmt.Errorf("tcp: buffer memory of %d bytes, want 0 (the default) or at least %d", c.BufferMemory, minBufferMemory))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"stall timeout", c.StallTimeout}, {"close timeout", c.CloseTimeout}, {"keep-alive time", c.KeepAlive}} {
		if d.v < 0 {
			errs = append(errs, fmt.Errorf("tcp: negative %s %v", d.name, d.v))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.BufferMemory == 0 {
		c.BufferMemory = defaultBufferMemory
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = defaultStallTimeout
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = defaultCloseTimeout
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = defaultKeepAlive
	}
	return c
}
