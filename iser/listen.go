package iser

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"iserd/rdma"
)

// Listener is an address that the server listens on. When the address moves or its device goes away, it is listened on
// again as soon as that works.
type Listener struct {
	srv  *Server
	want netip.AddrPort
	redo chan struct{} // the identifier is dead
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu   sync.Mutex
	id   rdma.Listener // nil while it cannot be had
	addr netip.AddrPort
}

// Listen listens on an address; an unspecified one means every device. Port 0 picks a free port, which is kept.
func (s *Server) Listen(addr netip.AddrPort) (*Listener, error) {
	s.mu.Lock()
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return nil, rdma.ErrClosed
	}
	l := &Listener{srv: s, want: addr, redo: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	// Held over the call: an event for the new identifier waits until it is known.
	l.mu.Lock()
	s.mu.Lock()
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	id, err := s.channel.Listen(addr, s.cfg.Backlog)
	if err != nil {
		l.mu.Unlock()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		return nil, fmt.Errorf("iser: listen on %s: %w", addr, err)
	}
	l.id, l.addr = id, id.Addr()
	if addr.Port() == 0 {
		l.want = netip.AddrPortFrom(addr.Addr(), l.addr.Port())
	}
	l.mu.Unlock()
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer close(l.done)
		l.keep()
	}()
	return l, nil
}

// Addr is the address listened on.
func (l *Listener) Addr() netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// Up tells whether it is listened on just now.
func (l *Listener) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id != nil
}

// Close stops listening. Connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.quit) })
	<-l.done
	l.srv.mu.Lock()
	delete(l.srv.listeners, l)
	l.srv.mu.Unlock()
	return nil
}

// keep renews the identifier when it dies. It never happens in the event handler: the old identifier must be closed
// before the address can be bound again, and closing waits for the handler.
func (l *Listener) keep() {
	defer l.drop()
	for {
		select {
		case <-l.quit:
			return
		case <-l.redo:
		}
		l.drop()
		pause := 10 * time.Millisecond
		for {
			err := l.again()
			if err == nil {
				if f := l.srv.cfg.Events.ListenerBack; f != nil {
					f(l.want)
				}
				break
			}
			if f := l.srv.cfg.Events.ListenerLost; f != nil && pause == 10*time.Millisecond {
				f(l.want, err)
			}
			select {
			case <-l.quit:
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, l.srv.cfg.RescanInterval)
		}
	}
}

func (l *Listener) drop() {
	l.mu.Lock()
	id := l.id
	l.id = nil
	l.mu.Unlock()
	if id != nil {
		_ = id.Close()
	}
}

func (l *Listener) again() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, err := l.srv.channel.Listen(l.want, l.srv.cfg.Backlog)
	if err == nil {
		l.id, l.addr = id, id.Addr()
	}
	return err
}

// listenerEvent handles an event of a listener.
func (s *Server) listenerEvent(ev *rdma.Event) {
	switch ev.Type {
	case rdma.EventAddrChange, rdma.EventDeviceRemoval:
	default:
		return
	}
	s.mu.Lock()
	all := make([]*Listener, 0, len(s.listeners))
	for l := range s.listeners {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.mu.Lock()
		mine := l.id == ev.Listener
		l.mu.Unlock()
		if mine {
			select {
			case l.redo <- struct{}{}:
			default:
			}
		}
	}
	if ev.Type == rdma.EventDeviceRemoval {
		s.anyRemoved()
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
		select {
		case s.rescan <- struct{}{}:
		default:
		}
	}
}
