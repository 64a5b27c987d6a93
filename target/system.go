package target

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"iserd/backstore"
	"iserd/iscsi"
	"iserd/iscsi/tcp"
	"iserd/iser"
	"iserd/rdma"
	"iserd/scsi"
)

// portalGroupTag is the tag of the one portal group that every portal is in.
const portalGroupTag = 1

// Options are what the daemon around the system provides.
type Options struct {
	// HostID seeds the identities that the configuration leaves out, see [HostID].
	HostID string
	// Revision is the product revision that INQUIRY shows, up to four characters.
	Revision string
	// Provider opens the provider of RDMA devices; nil means that there is none.
	Provider func() (rdma.Provider, error)
	// SoftProvider opens the provider that needs no device, which tells warn what an administrator should know; nil means
	// that there is none.
	SoftProvider func(warn func(message string)) (rdma.Provider, error)
	Node         iscsi.Events
	ISER         iser.Events
	TCP          tcp.Events
	// StoreFailed is told of requests that a medium failed (full, broken, cut), as often as it happens; nil is silent.
	StoreFailed func(error)
	// Warn reports what is not as the configuration may have meant it; nil is silent.
	Warn func(message string)
}

// System is a configured daemon.
type System struct {
	cfg      Config
	opt      Options
	node     *iscsi.Node
	tcp      *tcp.Server
	iser     *iser.Server
	provider rdma.Provider
	// choice says in one line what iSER is served by and why, or why it is not served.
	choice       string
	soft         bool   // iSER is served by the provider that needs no device
	softWhy      string // why it is that provider
	softWarnings heldWarnings
	derived      int

	mu      sync.Mutex
	units   []Unit
	devices []*scsi.Device
	lus     []*scsi.LogicalUnit
	portals []PortalStatus
	orphans []backstore.Store // opened, and in no logical unit
}

// Unit is a logical unit as it is served.
type Unit struct {
	Target    string
	LUN       uint16
	Store     string
	Size      uint64
	BlockSize uint32
	ReadOnly  bool
	Serial    string
	NAA       string
}

// PortalStatus is a portal as it is served.
type PortalStatus struct {
	Addr      netip.AddrPort
	TCP, ISER bool
	// Problem says why a transport that was asked for is not served there.
	Problem string
}

// New opens every store and the RDMA side. cfg must have passed Validate. On an error everything is closed again.
func New(cfg Config, opt Options) (_ *System, err error) {
	if opt.Warn == nil {
		opt.Warn = func(string) {}
	}
	s := &System{opt: opt}
	s.cfg, s.derived = cfg.Effective(opt.HostID)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeAll())
		}
	}()
	s.node = iscsi.NewNode(iscsi.Config{QueueDepth: cfg.QueueDepth, Events: opt.Node})
	var errs []error
	for i := range s.cfg.Targets {
		if err := s.addTarget(uint16(i+1), &s.cfg.Targets[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.tcp = tcp.New(s.node, tcp.Config{Events: s.opt.TCP})
	if err := s.openRDMA(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *System) addTarget(port uint16, t *TargetConfig) error {
	dev := scsi.NewDevice(scsi.DeviceConfig{
		PortName:       fmt.Sprintf("%s,t,0x%04x", t.Name, portalGroupTag),
		RelativePortID: port,
	})
	for i := range t.LUNs {
		if err := s.addLUN(dev, t, &t.LUNs[i]); err != nil {
			return err
		}
	}
	s.devices = append(s.devices, dev)
	_, err := s.node.AddTarget(iscsi.TargetConfig{Name: t.Name, Alias: t.Alias, PortalGroupTag: portalGroupTag, Device: dev})
	return err
}

func (s *System) addLUN(dev *scsi.Device, t *TargetConfig, l *LUNConfig) error {
	where := fmt.Sprintf("target %s LUN %d", t.Name, *l.LUN)
	store, err := openStore(l.spec, l.ReadOnly, s.opt.StoreFailed)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	owned := false
	defer func() {
		if !owned {
			s.orphans = append(s.orphans, store)
		}
	}()
	naa, err := parseNAA(l.NAA)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	id := scsi.Identity{Vendor: l.Vendor, Product: l.Product, Revision: s.opt.Revision, Serial: l.Serial, NAA: naa}
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{
		Name: fmt.Sprintf("%s/%d", t.Name, *l.LUN), Store: store, Identity: id, BlockSize: l.BlockSize, ReadOnly: l.ReadOnly,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	s.lus = append(s.lus, lu)
	owned = true
	if err := dev.SetLUN(*l.LUN, lu); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	info := store.Info()
	bs := l.BlockSize
	if bs == 0 {
		bs = 512
	}
	s.units = append(s.units, Unit{Target: t.Name, LUN: *l.LUN, Store: l.Store, Size: info.Size, BlockSize: bs,
		ReadOnly: l.ReadOnly || info.ReadOnly, Serial: l.Serial, NAA: l.NAA})
	return nil
}

// regions are the memory of stores that iSER may read in place.
func (s *System) regions() [][]byte {
	var all [][]byte
	seen := map[uint64]bool{}
	for _, lu := range s.lus {
		m, ok := lu.Store().(backstore.Mapper)
		if !ok {
			continue
		}
		for _, r := range m.Regions() {
			if a := rdma.AddrOf(r); !seen[a] {
				seen[a] = true
				all = append(all, r)
			}
		}
	}
	return all
}

// Listen opens every portal. A portal that fails is an error, unless it is one that nobody asked for.
func (s *System) Listen() error {
	var portals []iscsi.Portal
	for _, p := range s.cfg.Portals {
		st, err := s.listenPortal(p)
		if err != nil {
			// A host without IPv6 serves IPv4. A port that is taken is another matter: initiators would find another target there.
			if p.optional && !errors.Is(err, syscall.EADDRINUSE) {
				s.opt.Warn(err.Error())
				continue
			}
			return err
		}
		s.mu.Lock()
		s.portals = append(s.portals, st)
		s.mu.Unlock()
		portals = append(portals, iscsi.Portal{Addr: st.Addr, Tag: portalGroupTag, TCP: st.TCP, ISER: st.ISER})
		// Discovery must not name fewer portals than answer; it is brought up to date with each one.
		s.node.SetPortals(portals)
	}
	if len(portals) == 0 {
		return errors.New("no portal could be opened")
	}
	s.settleSoft()
	return nil
}

func (s *System) listenPortal(p PortalConfig) (PortalStatus, error) {
	ap, err := ParsePortal(p.Address)
	if err != nil {
		return PortalStatus{}, err
	}
	wantTCP, wantISER, err := p.transports()
	if err != nil {
		return PortalStatus{}, err
	}
	st := PortalStatus{Addr: ap}
	if wantTCP {
		l, err := s.tcp.Listen(ap)
		if err != nil {
			return st, portalError(ap, "TCP", err)
		}
		st.TCP, st.Addr = true, l.Addr()
	}
	if wantISER && s.iser != nil {
		// The same port for both, also where the system chose it.
		l, err := s.iser.Listen(st.Addr)
		switch {
		case err == nil:
			st.ISER = true
			if !st.TCP {
				st.Addr = l.Addr()
			}
		case !st.TCP || s.needsISER(p):
			return st, s.iserError(ap, err)
		case s.soft:
			st.Problem = fmt.Sprintf("portal %s serves TCP only: %v", st.Addr, softError(st.Addr.Addr(), err))
			s.opt.Warn(st.Problem)
		default:
			st.Problem = fmt.Sprintf("no iSER at %s: %v", st.Addr, err)
			s.opt.Warn(st.Problem)
		}
	}
	if wantISER && s.iser == nil && !st.TCP {
		return st, fmt.Errorf("portal %s: iSER alone is asked for: %s", ap, s.choice)
	}
	return st, nil
}

// Units lists the logical units, Portals the open portals.
func (s *System) Units() []Unit { return s.units }

// Portals lists the portals that are open.
func (s *System) Portals() []PortalStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]PortalStatus(nil), s.portals...)
}

// RDMA says in one line what iSER is served by and why, or why it is not served.
func (s *System) RDMA() string { return s.choice }

// NoRDMA says in one line why iSER is not served; it is empty when it is.
func (s *System) NoRDMA() string {
	if s.iser != nil {
		return ""
	}
	return s.choice
}

// Derived is the number of LUNs whose identity was made from the host because the configuration has none.
func (s *System) Derived() int { return s.derived }

// Devices are the RDMA devices in use.
func (s *System) Devices() []rdma.DeviceInfo {
	if s.provider == nil {
		return nil
	}
	devs, err := s.provider.Devices()
	if err != nil {
		return nil
	}
	infos := make([]rdma.DeviceInfo, len(devs))
	for i, d := range devs {
		infos[i] = d.Info()
	}
	return infos
}

// Shutdown ends every session, waits for what stores hold until ctx is done, and closes everything.
func (s *System) Shutdown(ctx context.Context) error {
	err := s.node.Shutdown(ctx)
	if s.iser != nil {
		err = errors.Join(err, s.iser.Close(ctx))
	}
	if s.tcp != nil {
		err = errors.Join(err, s.tcp.Shutdown(ctx))
	}
	return errors.Join(err, s.closeAll())
}

func (s *System) closeAll() error {
	var errs []error
	if s.provider != nil {
		errs = append(errs, s.provider.Close())
		s.provider = nil
	}
	for _, lu := range s.lus {
		// A unit whose commands do not end keeps its store: the store's memory is in use.
		if err := lu.Close(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", lu.Name(), err))
			continue
		}
		errs = append(errs, lu.Store().Close())
	}
	for _, c := range s.orphans {
		errs = append(errs, c.Close())
	}
	s.lus, s.orphans = nil, nil
	return errors.Join(errs...)
}
