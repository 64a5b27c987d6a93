package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"iserd/internal/initiator"
	"iserd/internal/iserclient"
	"iserd/rdma"
)

// Options say how to connect.
type Options struct {
	Target Target
	// Sessions to log in, at least 1.
	Sessions int
	// Depth is how many requests a session must be able to keep under way.
	Depth int
	RDMA  RDMA
	// Local is the address to connect from; the zero value leaves it to the routes.
	Local netip.Addr
	// Initiator is the name to log in with; empty is one made from the host's name.
	Initiator string
	// Provider, if set, is used for iSER in place of the one that RDMA names. It stays the caller's.
	Provider rdma.Provider
	// Notice is told what the user should know.
	Notice func(string)
}

// loginTime bounds the login, and every other exchange before and after a load.
const loginTime = 10 * time.Second

// Client is a target that was logged in to.
type Client struct {
	LUN
	Link Link

	provider rdma.Provider // closed with the client
	opt      Options
	addr     netip.AddrPort
	isid     [6]byte
}

// Connect logs in and asks the logical unit what it is. The client must be closed.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if o.Sessions < 1 || o.Depth < 1 {
		return nil, fmt.Errorf("%d sessions of depth %d: want at least 1 of each", o.Sessions, o.Depth)
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if o.Initiator == "" {
		o.Initiator = defaultInitiator()
	}
	c := &Client{opt: o}
	c.Number = o.Target.LUN
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Client) open(ctx context.Context) (err error) {
	o := &c.opt
	if c.addr, err = o.Target.Address(ctx); err != nil {
		return err
	}
	if o.Target.ISER && o.Provider == nil {
		p, note, err := openProvider(ctx, o.RDMA, o.Local, c.addr, o.Notice)
		if err != nil {
			return err
		}
		if note != "" {
			o.Notice(note)
		}
		c.provider, o.Provider = p, p
	}
	// A random identifier (RFC 7143 §11.12.5, type 10b), so that two runs at a time do not reinstate each other's sessions.
	c.isid[0] = 0x80
	if _, err := rand.Read(c.isid[1:4]); err != nil {
		return err
	}
	if o.Target.Name == "" {
		if o.Target.Name, err = c.discover(); err != nil {
			return err
		}
	}
	for i := range o.Sessions {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.isid[5] = byte(i)
		c.isid[4] = byte(i >> 8)
		s, err := c.login()
		if err != nil {
			return fmt.Errorf("%s, session %d of %d: %w", o.Target, i+1, o.Sessions, err)
		}
		c.Sessions = append(c.Sessions, s)
		d, err := identify(s, c.Number)
		if err != nil {
			return err
		}
		if i == 0 {
			c.Disk = d
		}
	}
	c.describe()
	return nil
}

func (c *Client) login() (initiator.Session, error) {
	l := initiator.Login{Initiator: c.opt.Initiator, Target: c.opt.Target.Name, ISID: c.isid}
	if c.opt.Target.ISER {
		return iserclient.OpenSession(c.opt.Provider, c.addr, c.iserOptions(), l, c.opt.Depth)
	}
	return c.openTCP(l)
}

func (c *Client) iserOptions() iserclient.Options {
	return iserclient.Options{Local: netip.AddrPortFrom(c.opt.Local, 0), ResponderResources: readDepth(c.opt.Provider), Sleep: true, Timeout: loginTime}
}

// discover asks the portal for its targets and takes the only one.
func (c *Client) discover() (string, error) {
	list, err := c.targets()
	if err != nil {
		return "", fmt.Errorf("discovery at %s: %w", c.addr, err)
	}
	switch len(list) {
	case 0:
		return "", fmt.Errorf("%s has no targets for %s", c.addr, c.opt.Initiator)
	case 1:
		return list[0].Name, nil
	}
	t := c.opt.Target
	var urls []string
	for _, d := range list {
		t.Name = d.Name
		urls = append(urls, "  "+t.String())
	}
	return "", fmt.Errorf("%s has %d targets; take one:\n%s", c.addr, len(list), strings.Join(urls, "\n"))
}

func (c *Client) targets() ([]initiator.Discovered, error) {
	l := initiator.Login{Initiator: c.opt.Initiator, Discovery: true, ISID: c.isid}
	if !c.opt.Target.ISER {
		return c.targetsTCP(l)
	}
	conn, err := iserclient.Open(c.opt.Provider, c.addr, c.iserOptions(), l)
	if err != nil {
		return nil, err
	}
	list, err := conn.SendTargets("All")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return list, conn.Logout()
}

// Close logs out of every session and lets go of everything. Sessions that have failed are closed without a word.
func (c *Client) Close() error {
	var errs []error
	for _, s := range c.Sessions {
		if s.Outstanding() > 0 {
			errs = append(errs, s.Close())
			continue
		}
		if err := s.Logout(); err != nil && !errors.Is(err, initiator.ErrClosed) {
			errs = append(errs, fmt.Errorf("logout: %w", err))
		}
	}
	c.Sessions = nil
	if c.provider != nil {
		errs = append(errs, c.provider.Close())
		c.provider = nil
	}
	return errors.Join(errs...)
}

// Counters are what the RDMA provider counted since it was opened; nil if it does not count.
func (c *Client) Counters() Counters {
	p, ok := c.opt.Provider.(rdma.Counted)
	if !ok {
		return nil
	}
	out := Counters{}
	for _, x := range p.Counters() {
		out[x.Name] = x.Value
	}
	return out
}

// describe fills in what a report says of the sessions.
func (c *Client) describe() {
	s := c.Sessions[0]
	i := s.Info()
	c.Link = Link{URL: c.opt.Target.String(), Target: c.opt.Target.Name, LUN: c.Number, Disk: c.Disk, Transport: i.Transport, Provider: i.Provider, Device: i.Device,
		Local: i.Local, Remote: i.Remote, Loopback: loopback(i.Local, i.Remote), Initiator: c.opt.Initiator, Sessions: len(c.Sessions), Window: s.Window()}
	if p := c.opt.Provider; p != nil && i.Transport == "iSER" {
		if devs, err := p.Devices(); err == nil {
			for _, d := range devs {
				if info := d.Info(); info.Name == i.Device {
					c.Link.Driver = info.Driver
				}
			}
		}
	}
	p := i.Params
	yes := map[bool]string{true: "Yes", false: "No"}
	add := func(name string, v any) { c.Link.Negotiated = append(c.Link.Negotiated, Key{name, fmt.Sprint(v)}) }
	add("ImmediateData", yes[p.ImmediateData])
	add("InitialR2T", yes[p.InitialR2T])
	add("FirstBurstLength", p.FirstBurstLength)
	add("MaxBurstLength", p.MaxBurstLength)
	add("MaxOutstandingR2T", p.MaxOutstandingR2T)
	if i.Transport == "iSER" {
		add("RDMAExtensions", yes[p.RDMAExtensions])
		add("InitiatorRecvDataSegmentLength", p.InitiatorRecvDataSegmentLength)
		add("TargetRecvDataSegmentLength", p.TargetRecvDataSegmentLength)
	} else {
		add("MaxRecvDataSegmentLength", p.MaxRecvDataSegmentLength)
		add("MaxSendDataSegmentLength", p.MaxSendDataSegmentLength)
		add("HeaderDigest", digestName(p.HeaderDigest))
		add("DataDigest", digestName(p.DataDigest))
	}
}

func digestName(on bool) string {
	if on {
		return "CRC32C"
	}
	return "None"
}

// loopback is whether both ends of a connection are this machine, as far as the addresses say.
func loopback(local, remote string) bool {
	l, err1 := netip.ParseAddrPort(local)
	r, err2 := netip.ParseAddrPort(remote)
	if err1 != nil || err2 != nil {
		return false
	}
	if r.Addr().IsLoopback() || l.Addr() == r.Addr() {
		return true
	}
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == r.Addr().Unmap() {
			return true
		}
	}
	return false
}

// defaultInitiator is a name made from the host's.
func defaultInitiator() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, host)
	return "iqn.2026-12.lab.iserd:iserbench." + host
}
