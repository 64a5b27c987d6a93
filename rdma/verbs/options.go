package verbs

import (
	"fmt"

	"iserd/rdma"
)

// Options of the provider. The zero value is good.
type Options struct {
	// AsyncQueue is how many asynchronous events of a device are kept for a slow reader; 0 means 64.
	AsyncQueue int
	Trace      Trace
}

// Trace are reports of control events; nil functions are silent. They are called by whatever goroutine
// noticed, and must neither block nor call the provider.
type Trace struct {
	DeviceAdded   func(name string)
	DeviceRemoved func(name string)
	// Warning tells of something that was survived, such as a connect request on a device that could not be opened.
	Warning func(err error)
}

// Validate reports what is wrong with the options.
func (o Options) Validate() error {
	if o.AsyncQueue < 0 || o.AsyncQueue == 1 {
		return fmt.Errorf("verbs: AsyncQueue %d: need at least 2 (the event and the note that others were dropped)", o.AsyncQueue)
	}
	return nil
}

// Stats counts what the provider did since it was made.
type Stats struct {
	Polls       uint64 // crossings by Poll
	EmptyPolls  uint64 // those that brought nothing
	Completions uint64
	Posts       uint64 // crossings by Post
	Doorbells   uint64 // calls of ibv_post_send and ibv_post_recv
	Sends       uint64 // send work requests posted
	Recvs       uint64 // receive work requests posted
	Arms        uint64
	Waits       uint64 // crossings to fetch completion events
	CQEvents    uint64
	CMEvents    uint64
	CMDropped   uint64 // events of identifiers that were closed already
	AsyncEvents uint64
	AsyncLost   uint64 // dropped because nobody read them
}

// Crossings is the sum of the calls into C on the data path.
func (s Stats) Crossings() uint64 { return s.Polls + s.Posts + s.Arms + s.Waits }

// Sub is what happened between o and s.
func (s Stats) Sub(o Stats) Stats {
	s.Polls -= o.Polls
	s.EmptyPolls -= o.EmptyPolls
	s.Completions -= o.Completions
	s.Posts -= o.Posts
	s.Doorbells -= o.Doorbells
	s.Sends -= o.Sends
	s.Recvs -= o.Recvs
	s.Arms -= o.Arms
	s.Waits -= o.Waits
	s.CQEvents -= o.CQEvents
	s.CMEvents -= o.CMEvents
	s.CMDropped -= o.CMDropped
	s.AsyncEvents -= o.AsyncEvents
	s.AsyncLost -= o.AsyncLost
	return s
}

// StatsOf gives the counters of a provider made by [New]; false for any other.
func StatsOf(p rdma.Provider) (Stats, bool) {
	s, ok := p.(interface{ Stats() Stats })
	if !ok {
		return Stats{}, false
	}
	return s.Stats(), true
}
