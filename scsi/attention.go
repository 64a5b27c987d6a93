package scsi

import (
	"sync"
	"sync/atomic"
)

// maxAttentions bounds the unit attention conditions that wait on one path.
const maxAttentions = 8

// attentions are the unit attention conditions of one I_T nexus at one logical unit, oldest first, no two alike.
type attentions struct {
	count atomic.Int32 // len of the queue, for the path without a lock
	mu    sync.Mutex
	queue [maxAttentions]AdditionalSense
}

// add establishes a condition. An initiator that let the queue fill up is told of a reset instead, upon which it has to
// expect every one of the lost conditions.
func (a *attentions) add(code AdditionalSense) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := int(a.count.Load())
	for _, c := range a.queue[:n] {
		if c == code {
			return
		}
	}
	if n == maxAttentions {
		n, code = 0, PowerOnResetOrBusDeviceReset
	}
	a.queue[n] = code
	a.count.Store(int32(n + 1))
}

// take removes the oldest condition.
func (a *attentions) take() (AdditionalSense, bool) {
	if a.count.Load() == 0 {
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := int(a.count.Load())
	if n == 0 {
		return 0, false
	}
	code := a.queue[0]
	copy(a.queue[:], a.queue[1:n])
	a.count.Store(int32(n - 1))
	return code, true
}

// drop removes every condition with this code.
func (a *attentions) drop(code AdditionalSense) {
	if a.count.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.queue[:a.count.Load()] {
		if c != code {
			a.queue[n] = c
			n++
		}
	}
	a.count.Store(int32(n))
}
