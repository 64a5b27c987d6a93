package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"iserd/rdma"
	"iserd/rdma/softroce"
	"iserd/rdma/verbs"
)

// RDMA says by which provider to do RDMA.
type RDMA string

// The providers. RDMAAuto is verbs where a device reaches the target, and softroce elsewhere.
const (
	RDMAAuto     RDMA = "auto"
	RDMAVerbs    RDMA = "verbs"
	RDMASoftRoCE RDMA = "softroce"
)

// ParseRDMA reads the name of a provider.
func ParseRDMA(s string) (RDMA, error) {
	switch m := RDMA(s); m {
	case RDMAAuto, RDMAVerbs, RDMASoftRoCE:
		return m, nil
	}
	return "", fmt.Errorf("%q is no RDMA provider: want auto, verbs or softroce", s)
}

// resolveTime bounds the question whether a device reaches the target.
const resolveTime = 3 * time.Second

// openProvider opens the provider for a target. local may be the zero value. note says in a line why softroce was taken.
func openProvider(ctx context.Context, mode RDMA, local netip.Addr, remote netip.AddrPort, warn func(string)) (p rdma.Provider, note string, err error) {
	soft := func() rdma.Provider {
		o := softroce.Options{Warn: warn}
		if local.IsValid() {
			o.Addrs = []netip.Addr{local}
		}
		return softroce.New(o)
	}
	if mode == RDMASoftRoCE {
		return soft(), "", nil
	}
	p, err = verbs.New(verbs.Options{})
	if err == nil {
		if err = reaches(ctx, p, local, remote); err == nil {
			return p, "", nil
		}
		err = errors.Join(err, p.Close())
	}
	if mode == RDMAVerbs {
		return nil, "", fmt.Errorf("--rdma verbs: %w", err)
	}
	return soft(), fmt.Sprintf("no RDMA device reaches %s (%v): RDMA by softroce, in user space", remote, err), nil
}

// reaches is nil if a device of the provider has a route to the target.
func reaches(ctx context.Context, p rdma.Provider, local netip.Addr, remote netip.AddrPort) error {
	devs, err := p.Devices()
	if err != nil {
		return err
	}
	if len(devs) == 0 {
		return rdma.ErrNoDevice
	}
	ch, err := p.NewEventChannel()
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := ch.Next(); err != nil {
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	c, err := ch.Resolve(ctx, netip.AddrPortFrom(local, 0), remote)
	if err == nil {
		err = c.Close()
	}
	return errors.Join(err, ch.Close())
}

// readDepth is how many RDMA READs the devices can answer at a time, at most what is usual for an initiator.
func readDepth(p rdma.Provider) uint8 {
	const usual = 16
	n := usual
	devs, err := p.Devices()
	if err != nil {
		return 0
	}
	for _, d := range devs {
		if m := d.Attr().MaxQPRDAtom; m > 0 {
			n = min(n, m)
		}
	}
	return uint8(n)
}
