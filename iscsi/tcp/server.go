package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"iserd/iscsi"
	"iserd/iscsi/login"
)

// ErrClosed is the error of using a server after its end.
var ErrClosed = errors.New("tcp: server closed")

// Server accepts connections for a node and moves their data.
type Server struct {
	node     *iscsi.Node
	cfg      Config
	cfgErr   error
	buffers  bufferPool
	chunks   freeList[chunk]
	blocks   freeList[block]
	counters counters

	mu        sync.Mutex
	closed    bool
	listeners map[*Listener]struct{}
	conns     map[*conn]struct{}
	idle      chan struct{} // closed when closed is set and conns is empty
}

// New makes a server. A configuration that Validate refuses is reported by Listen and Serve.
func New(node *iscsi.Node, cfg Config) *Server {
	s := &Server{node: node, cfgErr: cfg.Validate(), cfg: cfg.withDefaults(), listeners: map[*Listener]struct{}{},
		conns: map[*conn]struct{}{}, idle: make(chan struct{})}
	s.buffers.reserve = s.cfg.BufferMemory / reservePart
	s.buffers.limit = s.cfg.BufferMemory - s.buffers.reserve
	s.chunks.limit, s.chunks.make = maxIdleChunks, newChunk
	s.blocks.limit, s.blocks.make = maxIdleBlocks, newBlock
	return s
}

// Listener is a portal that is open.
type Listener struct {
	s    *Server
	l    net.Listener
	addr netip.AddrPort
	done chan struct{}
}

// Listen opens a portal. [::] takes IPv6 only, so that 0.0.0.0 can be open on the same port. Port 0 lets the system
// choose.
func (s *Server) Listen(addr netip.AddrPort) (*Listener, error) {
	network := "tcp6"
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if addr.Addr().Is4() {
		network = "tcp4"
	}
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: s.cfg.KeepAlive, Interval: s.cfg.KeepAlive, Count: 3}}
	// Initiators do not speak it, and its sockets take a slower way through the kernel.
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return s.start(l)
}

// Serve accepts connections from l until it is closed, and then returns. Connections go on.
func (s *Server) Serve(l net.Listener) error {
	ln, err := s.start(l)
	if err != nil {
		return err
	}
	<-ln.done
	return nil
}

func (s *Server) start(l net.Listener) (*Listener, error) {
	ta, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("tcp: %s is not a TCP address", l.Addr()), l.Close())
	}
	ln := &Listener{s: s, l: l, addr: addrPort(ta), done: make(chan struct{})}
	s.mu.Lock()
	err := s.cfgErr
	if s.closed {
		err = ErrClosed
	}
	if err == nil {
		s.listeners[ln] = struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	go ln.accept()
	return ln, nil
}

// Addr is the address that the listener is bound to.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close stops accepting and returns when no accept is under way. Connections go on.
func (l *Listener) Close() error {
	err := l.l.Close()
	<-l.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Pauses after a failed accept: out of descriptors, or of memory. The pending connection stays readable all the time, so
// going on at once would spin (known-faults B138).
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

func (l *Listener) accept() {
	defer close(l.done)
	defer func() {
		l.s.mu.Lock()
		delete(l.s.listeners, l)
		l.s.mu.Unlock()
	}()
	pause := minAcceptPause
	for {
		nc, err := l.l.Accept()
		switch {
		case err == nil:
			pause = minAcceptPause
			l.s.add(nc, l.addr)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			l.s.counters.acceptErrors.Add(1)
			if f := l.s.cfg.Events.AcceptError; f != nil {
				f(err, pause)
			}
			time.Sleep(pause)
			pause = min(2*pause, maxAcceptPause)
		}
	}
}

// add begins a connection.
func (s *Server) add(nc net.Conn, portal netip.AddrPort) {
	sock, ok := nc.(*net.TCPConn)
	if !ok {
		_ = nc.Close()
		return
	}
	c, err := newConn(s, sock)
	if err != nil {
		_ = sock.Close() // it was reset before we looked at it
		return
	}
	info := iscsi.ConnInfo{Transport: login.TransportTCP, Portal: portal}
	if a, ok := sock.LocalAddr().(*net.TCPAddr); ok {
		info.Local = addrPort(a)
	}
	if a, ok := sock.RemoteAddr().(*net.TCPAddr); ok {
		info.Remote = addrPort(a)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = sock.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.counters.accepted.Add(1)
	c.start(func() engine { return s.node.NewConnection(c, info) })
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.closed && len(s.conns) == 0 {
		close(s.idle)
	}
}

// Close is Shutdown without patience.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Shutdown stops accepting and waits until every connection has ended, which is the node's to do. When ctx is done, what
// is left is cut off, and Shutdown returns without waiting for what stores still hold.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	listeners := make([]*Listener, 0, len(s.listeners))
	for l := range s.listeners {
		listeners = append(listeners, l)
	}
	if first && len(s.conns) == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	select {
	case <-s.idle:
		return errors.Join(errs...)
	default:
	}
	select {
	case <-s.idle:
	case <-ctx.Done():
		s.cut()
		// Connections without work at a store are gone in a moment.
		select {
		case <-s.idle:
		case <-time.After(cutPatience):
			errs = append(errs, fmt.Errorf("tcp: connections are still busy: %w", ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

const cutPatience = 100 * time.Millisecond

// cut ends every connection as if its peer had gone.
func (s *Server) cut() {
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

func addrPort(a *net.TCPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
