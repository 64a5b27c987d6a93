package iser

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"iserd/iscsi"
	"iserd/rdma"
)

// Server is the iSER side of a network entity: its RDMA devices with their shards, the listeners, the connection
// manager's events.
type Server struct {
	cfg       Config
	provider  rdma.Provider
	newEngine func(iscsi.Datamover, iscsi.ConnInfo) engine
	channel   rdma.EventChannel
	cpus      []int
	wg        sync.WaitGroup
	quit      chan struct{}
	rescan    chan struct{}
	reaped    chan struct{} // something for the reaper
	ended     chan struct{} // a connection or an identifier went away

	mu        sync.Mutex // never held while a shard's lock is taken
	devices   []*device
	failed    map[string]string // devices that could not be opened, with the reason last told
	lost      bool              // a device is missing: one went away, or could not be opened
	most      int               // most devices that worked at a time
	closing   bool
	listeners map[*Listener]struct{}
	memory    []*memory

	scanMu sync.Mutex // one scan at a time

	idsMu   sync.Mutex // innermost
	ids     map[rdma.Conn]*conn
	closers []closer
}

// New opens every device of the provider: protection domain, registered memory, completion queues. A device that cannot
// be opened is reported and left out; it is an error only if none is left.
func New(provider rdma.Provider, node *iscsi.Node, cfg Config) (*Server, error) {
	if cfg.RecvDepth == 0 {
		r := node.Resources()
		cfg.RecvDepth = r.Window + r.Immediate
	}
	return newServer(provider, func(dm iscsi.Datamover, info iscsi.ConnInfo) engine { return node.NewConnection(dm, info) }, cfg)
}

func newServer(provider rdma.Provider, newEngine func(iscsi.Datamover, iscsi.ConnInfo) engine, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg.withDefaults(), provider: provider, newEngine: newEngine, cpus: usableCPUs(),
		quit: make(chan struct{}), rescan: make(chan struct{}, 1), reaped: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		failed: map[string]string{}, listeners: map[*Listener]struct{}{}, ids: map[rdma.Conn]*conn{},
	}
	devs, err := provider.Devices()
	if err != nil {
		return nil, fmt.Errorf("iser: %s: %w", provider.Name(), err)
	}
	var errs []error
	for _, dev := range devs {
		if err := s.addDevice(dev); err != nil {
			errs = append(errs, err)
		}
	}
	if len(s.devices) == 0 {
		if len(errs) == 0 {
			errs = append(errs, rdma.ErrNoDevice)
		}
		return nil, fmt.Errorf("iser: no usable device: %w", errors.Join(errs...))
	}
	s.most = len(s.devices)
	if s.channel, err = provider.NewEventChannel(); err != nil {
		s.closeDevices()
		return nil, fmt.Errorf("iser: connection event channel: %w", err)
	}
	for _, f := range []func(){s.handleEvents, s.reaper, s.watch} {
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			f()
		}()
	}
	return s, nil
}

// usableCPUs are those that the process may run on.
func usableCPUs() []int {
	var set unix.CPUSet
	var cpus []int
	if unix.SchedGetaffinity(0, &set) == nil {
		for i := 0; len(cpus) < set.Count(); i++ {
			if set.IsSet(i) {
				cpus = append(cpus, i)
			}
		}
	}
	if len(cpus) == 0 {
		cpus = []int{0}
	}
	return cpus
}

func (s *Server) cpuOf(shard int) (int, bool) { return s.cpus[shard%len(s.cpus)], true }

// addDevice opens a device and starts its shards.
func (s *Server) addDevice(dev rdma.Device) error {
	name := dev.Info().Name
	d, err := s.openDevice(dev)
	if err != nil {
		err = fmt.Errorf("device %s: %w", name, err)
		s.mu.Lock()
		told := s.failed[name] == err.Error()
		s.failed[name] = err.Error()
		s.lost = true // it is tried again
		s.mu.Unlock()
		if f := s.cfg.Events.DeviceFailed; f != nil && !told {
			f(name, err)
		}
		return err
	}
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		_ = d.closeObjects()
		return rdma.ErrClosed
	}
	var errs []error
	for _, m := range s.memory {
		if err := d.register(m); err != nil {
			errs = append(errs, err)
		}
	}
	delete(s.failed, name)
	s.devices = append(s.devices, d)
	s.mu.Unlock()
	d.run()
	if f := s.cfg.Events.DeviceOpened; f != nil {
		f(d.report(errors.Join(errs...)))
	}
	return nil
}

// find returns the opened device, which it opens if it is new.
func (s *Server) find(dev rdma.Device) (*device, error) {
	lookup := func() *device {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range s.devices {
			if d.dev == dev && !d.removed.Load() {
				return d
			}
		}
		return nil
	}
	if dev == nil {
		return nil, errDeviceGone
	}
	if d := lookup(); d != nil {
		return d, nil
	}
	if dev.Removed() {
		return nil, errDeviceGone
	}
	s.scan()
	if d := lookup(); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("iser: device %s is not in use", dev.Info().Name)
}

// scan opens devices that came since.
func (s *Server) scan() {
	s.scanMu.Lock()
	defer s.scanMu.Unlock()
	devs, err := s.provider.Devices()
	if err != nil {
		return // ErrNoDevice, or a provider in trouble: the next scan may find more
	}
	all := true
	for _, dev := range devs {
		if dev.Removed() {
			continue
		}
		s.mu.Lock()
		known := s.closing
		for _, d := range s.devices {
			known = known || d.dev == dev
		}
		s.mu.Unlock()
		if !known && s.addDevice(dev) != nil {
			all = false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	live := 0
	for _, d := range s.devices {
		if !d.removed.Load() {
			live++
		}
	}
	// While fewer devices work than did once, one of them may come back.
	s.most = max(s.most, live)
	s.lost = !all || live < s.most
}

// watch looks for devices that are missing. When none is, it sleeps.
func (s *Server) watch() {
	t := time.NewTicker(s.cfg.RescanInterval)
	defer t.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-s.rescan:
		case <-t.C:
			s.mu.Lock()
			lost := s.lost
			s.mu.Unlock()
			if !lost && !s.anyRemoved() {
				continue
			}
		}
		s.scan()
	}
}

// anyRemoved finds devices that went away without an event, and takes them down.
func (s *Server) anyRemoved() bool {
	s.mu.Lock()
	var gone []*device
	for _, d := range s.devices {
		if !d.removed.Load() && d.dev.Removed() {
			gone = append(gone, d)
		}
	}
	s.mu.Unlock()
	for _, d := range gone {
		s.deviceLost(d, errDeviceGone)
	}
	return len(gone) > 0
}

// deviceLost takes a device down. It may be called more than once, from any goroutine without a shard's lock.
func (s *Server) deviceLost(d *device, cause error) {
	if d.removed.Swap(true) {
		return
	}
	if !errors.Is(cause, errDeviceGone) {
		cause = fmt.Errorf("%w: %w", errDeviceGone, cause)
	}
	if f := s.cfg.Events.DeviceRemoved; f != nil {
		f(d.name)
	}
	d.tearDown(cause)
	s.mu.Lock()
	s.lost = true
	s.most = max(s.most, len(s.devices))
	if s.closing {
		s.mu.Unlock()
		return
	}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		// Its memory goes when the last store has let go of it.
		for _, sh := range d.shards {
			<-sh.stopped
		}
		_ = d.closeObjects()
		s.mu.Lock()
		for i, x := range s.devices {
			if x == d {
				s.devices = append(s.devices[:i:i], s.devices[i+1:]...)
				break
			}
		}
		s.mu.Unlock()
	}()
	select {
	case s.rescan <- struct{}{}:
	default:
	}
}

// RegisterMemory registers memory of a store, outside the Go heap, on every device, present and future, so that
// data-in can leave from where it lies. It must stay mapped until the returned function was called, which must not be
// before the last command that uses it has ended. When a device cannot register it, nothing is registered: reads are
// then copied, and the error says why.
func (s *Server) RegisterMemory(regions [][]byte) (unregister func(), err error) {
	m := &memory{regions: regions}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, rdma.ErrClosed
	}
	for _, d := range s.devices {
		if d.removed.Load() {
			continue
		}
		if err := d.register(m); err != nil {
			for _, d := range s.devices {
				d.unregister(m)
			}
			return nil, fmt.Errorf("iser: device %s: %w", d.name, err)
		}
	}
	s.memory = append(s.memory, m)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, x := range s.memory {
			if x == m {
				s.memory = append(s.memory[:i:i], s.memory[i+1:]...)
				break
			}
		}
		for _, d := range s.devices {
			d.unregister(m)
		}
	}), nil
}

// Close ends every connection in order, closes listeners and devices and waits for all of it, until ctx is done. What is
// left then is cut off. Memory that a store still uses stays mapped; the error says so.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	listeners := make([]*Listener, 0, len(s.listeners))
	for l := range s.listeners {
		listeners = append(listeners, l)
	}
	s.mu.Unlock()
	for _, l := range listeners {
		_ = l.Close()
	}
	err := s.endConnections(ctx)
	close(s.quit)
	_ = s.channel.Close()
	for _, d := range s.devices {
		for _, sh := range d.shards {
			sh.stopping.Store(true)
			sh.wakeLoop()
			if err != nil {
				sh.abandoned.Store(true)
				sh.channel.Wake()
				sh.wakeLoop()
			}
		}
		d.stopEvents()
	}
	s.wg.Wait()
	s.closeIDs()
	if err != nil {
		return err
	}
	return s.closeDevices()
}

// endConnections asks every connection to end and waits until the last has.
func (s *Server) endConnections(ctx context.Context) error {
	s.eachConn(func(c *conn) { c.end(phaseGraceful, nil) })
	if s.waitConns(ctx) {
		return nil
	}
	s.eachConn(func(c *conn) {
		if c.phase < phaseDrained {
			c.end(phaseAbort, context.Cause(ctx))
			c.deadline = time.Now()
		}
	})
	last, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	s.eachConn(func(c *conn) { c.deadline = time.Now() }) // of the drain
	if s.waitConns(last) {
		return nil
	}
	return fmt.Errorf("iser: %d connections have not ended: %w", s.connections(), ctx.Err())
}

func (s *Server) waitConns(ctx context.Context) bool {
	for s.connections() > 0 {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// connections is the number of connections that are not wholly gone.
func (s *Server) connections() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.devices {
		for _, sh := range d.shards {
			n += sh.load.Load()
		}
	}
	return n
}

// eachConn calls f, in a turn, for every connection.
func (s *Server) eachConn(f func(*conn)) {
	s.mu.Lock()
	devices := append([]*device(nil), s.devices...)
	s.mu.Unlock()
	for _, d := range devices {
		for _, sh := range d.shards {
			sh.locked(func() {
				for i := range sh.slots {
					if c := sh.slots[i].c; c != nil {
						f(c)
					}
				}
			})
		}
	}
}

// connGone is told by a shard, under its lock, that a connection is wholly gone.
func (s *Server) connGone() {
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

func (s *Server) closeDevices() error {
	var errs []error
	for _, d := range s.devices {
		for _, sh := range d.shards {
			sh.stopping.Store(true)
			sh.wakeLoop()
			<-sh.stopped
		}
		d.stopEvents()
		if err := d.closeObjects(); err != nil && !d.removed.Load() {
			errs = append(errs, fmt.Errorf("iser: device %s: %w", d.name, err))
		}
	}
	s.devices = nil
	return errors.Join(errs...)
}
