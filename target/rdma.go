package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"iserd/iser"
	"iserd/rdma"
)

// softName is how people are told of the provider that needs no device.
const softName = "softroce (RoCEv2 in user space, slower than a device)"

// openRDMA chooses the provider and starts the iSER server on it.
func (s *System) openRDMA() error {
	var err error
	switch s.cfg.RDMA {
	case RDMAOff:
		s.choice = "RDMA is off; serving TCP only"
		return nil
	case RDMASoftRoCE:
		err = s.serveSoft("rdma: softroce asks for it")
	default:
		var p rdma.Provider
		var names []string
		if p, names, err = openDevices(s.opt.Provider); err == nil {
			s.choice = "iSER is served by verbs: RDMA device " + strings.Join(names, ", ")
			err = s.serveISER(p)
			break
		}
		if s.cfg.RDMA != RDMAAuto || s.opt.SoftProvider == nil {
			break
		}
		if !errors.Is(err, rdma.ErrNoDevice) && !errors.Is(err, rdma.ErrUnsupported) {
			// A device that is there and cannot be used is a fault to be seen, not a reason to be slow.
			err = fmt.Errorf("the RDMA device cannot be used: %w (--rdma softroce does without it)", err)
			break
		}
		why := plain(err)
		if errors.Is(err, rdma.ErrUnsupported) {
			why = "this build cannot use RDMA devices (iserd version says what it lacks)"
		}
		if !s.wantsISER() {
			s.choice = fmt.Sprintf("no portal is to serve iSER, and %s; serving TCP only", why)
			return nil
		}
		if soft := s.serveSoft(why); soft != nil {
			err = fmt.Errorf("%s; softroce: %w", why, soft)
		} else {
			err = nil
		}
	}
	if err != nil {
		return s.withoutRDMA(err)
	}
	if r := s.regions(); len(r) > 0 {
		if _, err := s.iser.RegisterMemory(r); err != nil {
			// Not fatal: data is then copied through the pool.
			s.opt.Warn(fmt.Sprintf("memory of RAM stores could not be registered with the RDMA device, reads will be copied: %v", err))
		}
	}
	return nil
}

// openDevices opens the provider of devices and gives their names. An error is ErrUnsupported where the build has no such
// provider and ErrNoDevice where the machine has no device; any other is a fault of a device.
func openDevices(open func() (rdma.Provider, error)) (rdma.Provider, []string, error) {
	if open == nil {
		return nil, nil, rdma.ErrNoDevice
	}
	p, err := open()
	if err != nil {
		return nil, nil, err
	}
	devs, err := p.Devices()
	if err == nil && len(devs) == 0 {
		err = rdma.ErrNoDevice
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	names := make([]string, len(devs))
	for i, d := range devs {
		names[i] = d.Info().Name
	}
	return p, names, nil
}

// serveSoft starts the iSER server on the provider that needs no device. why goes into the line that says so.
func (s *System) serveSoft(why string) error {
	if s.opt.SoftProvider == nil {
		return rdma.ErrUnsupported
	}
	s.softWarnings.to = s.opt.Warn
	p, err := s.opt.SoftProvider(s.softWarnings.warn)
	if err != nil {
		return err
	}
	if err := s.serveISER(p); err != nil {
		return err
	}
	s.soft, s.softWhy = true, why
	s.choice = fmt.Sprintf("iSER is served by %s: %s", softName, why)
	return nil
}

// serveISER starts the iSER server on a provider, which is closed where that fails.
func (s *System) serveISER(p rdma.Provider) error {
	srv, err := iser.New(p, s.node, iser.Config{Shards: s.cfg.Shards, Events: s.opt.ISER})
	if err != nil {
		return errors.Join(err, p.Close())
	}
	s.provider, s.iser = p, srv
	return nil
}

// withoutRDMA decides whether the lack of RDMA is fatal.
func (s *System) withoutRDMA(why error) error {
	if s.cfg.RDMA != RDMAAuto {
		return fmt.Errorf("rdma: %s is asked for, but RDMA cannot be used: %w", s.cfg.RDMA, why)
	}
	s.choice = fmt.Sprintf("no iSER: %s; serving TCP only", plain(why))
	return nil
}

// wantsISER tells whether any portal is to serve iSER.
func (s *System) wantsISER() bool {
	for _, p := range s.cfg.Portals {
		if _, iser, err := p.transports(); err == nil && iser {
			return true
		}
	}
	return false
}

// needsISER tells whether a portal that serves TCP is an error without iSER. Where auto came down to softroce it is not:
// before it came to that, such a portal served TCP.
func (s *System) needsISER(p PortalConfig) bool {
	switch {
	case s.cfg.RDMA != RDMAAuto:
		return true
	case s.soft:
		return false
	}
	return len(p.Transports) > 0
}

// idleClose bounds the end of an iSER server that has no listener and so no connection.
const idleClose = 5 * time.Second

// settleSoft ends what auto began with softroce and no portal can use, and lets the warnings through that are left to say.
func (s *System) settleSoft() {
	served := false
	for _, p := range s.Portals() {
		served = served || p.ISER
	}
	s.softWarnings.release(served) // else the portals' own warnings say it all
	if served || !s.soft || s.cfg.RDMA != RDMAAuto {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), idleClose)
	defer cancel()
	if err := errors.Join(s.iser.Close(ctx), s.provider.Close()); err != nil {
		s.opt.Warn(fmt.Sprintf("softroce, which no portal uses, did not end: %v", err))
	}
	s.iser, s.provider, s.soft = nil, nil, false
	s.choice = fmt.Sprintf("no iSER: %s; softroce can serve it at no portal; serving TCP only", s.softWhy)
}

// heldWarnings are those of softroce. At a wildcard it has one for each address that it does not get, which are held back
// until it is known whether it got any.
type heldWarnings struct {
	to func(string)

	mu   sync.Mutex
	free bool
	held []string
}

func (h *heldWarnings) warn(m string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free {
		h.to(m)
		return
	}
	h.held = append(h.held, m)
}

// release lets warnings through from now on, and those that were held if tell is set.
func (h *heldWarnings) release(tell bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if tell {
		for _, m := range h.held {
			h.to(m)
		}
	}
	h.held, h.free = nil, true
}

// iserError names the portal, why iSER cannot be served there, and the remedy.
func (s *System) iserError(ap netip.AddrPort, err error) error {
	if s.soft {
		return fmt.Errorf("portal %s: %w", ap, softError(ap.Addr(), err))
	}
	return portalError(ap, "iSER", err)
}

// softError says why softroce cannot serve an address, and the remedy.
func softError(a netip.Addr, err error) error {
	var op *rdma.OpError
	switch {
	case !errors.As(err, &op):
		return fmt.Errorf("iSER by softroce: %w", err)
	case op.Errno != syscall.EADDRINUSE:
		return fmt.Errorf("iSER by softroce: %w; remedy: an address of this host that is not link-local, or --rdma off", op)
	}
	of := a.String()
	switch {
	case a.IsUnspecified() && a.Is4():
		of = "every IPv4 address of this host"
	case a.IsUnspecified():
		of = "every IPv6 address of this host"
	}
	return fmt.Errorf("iSER by softroce: UDP port %d of %s: %w, by another program with softroce or by the kernel's rdma_rxe "+
		"(ss -lunp 'sport = :%d' names the program; rdma_rxe has no name there); remedy: stop that program or unload rdma_rxe, listen on another address, or --rdma off",
		roceV2Port, of, op.Errno, roceV2Port)
}

// roceV2Port is the UDP port of RoCEv2 (IBTA annex A17).
const roceV2Port = 4791
