package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/ram"
	"iserd/iscsi"
	"iserd/iscsi/tcp"
	"iserd/iser"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
	"iserd/rdma/softroce"
	"iserd/scsi"
)

const (
	targetName = "iqn.2026-01.test:disk"
	storeSize  = 4 << 20
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a whole target, on one transport. LUN 0 is memory, LUN 1 memory that can be told to misbehave.
type rig struct {
	t      testing.TB
	target Target
	peer   rdma.Provider // nil over TCP
	mem    *ram.Store    // of LUN 0
	fault  *faultstore.Store
	node   *iscsi.Node
}

// transports are those that a test is run over.
var transports = []string{"rdmatest", "softroce", "tcp"}

func newRig(t testing.TB, transport string) *rig {
	t.Helper()
	r := &rig{t: t, node: iscsi.NewNode(iscsi.Config{})}
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: targetName + ",t,0x0001", RelativePortID: 1})
	var err error
	r.mem, err = ram.New(storeSize)
	check(t, err)
	inner, err := ram.New(storeSize)
	check(t, err)
	r.fault = faultstore.New(inner)
	stores := []backstore.Store{r.mem, r.fault}
	var lus []*scsi.LogicalUnit
	for i, s := range stores {
		lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: fmt.Sprint(i), Store: s, Identity: scsi.NewIdentity(fmt.Sprintf("bench test %d", i))})
		check(t, err)
		check(t, dev.SetLUN(uint16(i), lu))
		lus = append(lus, lu)
	}
	_, err = r.node.AddTarget(iscsi.TargetConfig{Name: targetName, PortalGroupTag: 1, Device: dev})
	check(t, err)
	stop := r.serve(transport)
	r.target.Name = targetName
	t.Cleanup(func() {
		r.fault.Release()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.node.Shutdown(ctx); err != nil {
			t.Errorf("node: %v", err)
		}
		stop(ctx)
		for _, lu := range lus {
			lu.Close()
		}
		for _, s := range stores {
			check(t, s.Close())
		}
	})
	return r
}

// serve serves the node and fills in where.
func (r *rig) serve(transport string) (stop func(context.Context)) {
	t := r.t
	t.Helper()
	if transport == "tcp" {
		srv := tcp.New(r.node, tcp.Config{})
		l, err := srv.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
		check(t, err)
		r.at(l.Addr(), false)
		return func(ctx context.Context) { check(t, srv.Shutdown(ctx)) }
	}
	var p rdma.Provider
	addr := netip.MustParseAddr("192.0.2.1")
	if transport == "softroce" {
		addr = loopbackAddr()
		a, b := softroce.New(softroce.Options{Addrs: []netip.Addr{addr}}), softroce.New(softroce.Options{Addrs: []netip.Addr{loopbackAddr()}})
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		p, r.peer = a, b
	} else {
		f, a, b := rdmatest.Pair(rdmatest.Config{Misuse: rdmatest.FailOnMisuse(t, rdmatest.MisuseAfterError)})
		p, r.peer = a, b
		t.Cleanup(func() {
			if l := f.Leaks(); len(l) > 0 {
				t.Errorf("left open: %q", l)
			}
		})
	}
	srv, err := iser.New(p, r.node, iser.Config{Shards: 1, PoolBytes: 16 << 20, NoHugePages: true})
	check(t, err)
	unregister, err := srv.RegisterMemory(r.mem.Regions())
	check(t, err)
	l, err := srv.Listen(netip.AddrPortFrom(addr, 3260))
	check(t, err)
	r.at(l.Addr(), true)
	return func(ctx context.Context) {
		unregister()
		check(t, srv.Close(ctx))
	}
}

func (r *rig) at(a netip.AddrPort, iser bool) {
	r.target = Target{ISER: iser, Host: a.Addr().String(), Port: a.Port()}
	r.node.SetPortals([]iscsi.Portal{{Addr: a, Tag: 1, TCP: !iser, ISER: iser}})
}

// loopbackAddr is an address that no other test is likely to use at the same time.
func loopbackAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
}

// connect logs in to a LUN; the client is closed at the end of the test.
func (r *rig) connect(lun, sessions, depth int) *Client {
	r.t.Helper()
	target := r.target
	target.LUN = lun
	c, err := Connect(context.Background(), Options{Target: target, Sessions: sessions, Depth: depth, Provider: r.peer})
	check(r.t, err)
	r.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.t.Errorf("close: %v", err)
		}
	})
	return c
}

// drive does a load that must go well, and holds its figures against each other.
func drive(t testing.TB, c *Client, l Load) Result {
	t.Helper()
	res, err := c.Run(context.Background(), l, nil)
	check(t, err)
	accounted(t, &res)
	if !res.OK() {
		t.Fatalf("%s: %v %v", res.Label, res.Failures, res.Mismatches)
	}
	return res
}

// accounted checks that no request is forgotten or counted twice.
func accounted(t testing.TB, r *Result) {
	t.Helper()
	if r.Launched != r.Completed+r.Failed+r.Lost {
		t.Errorf("%s: %d launched, but %d completed, %d failed and %d lost", r.Label, r.Launched, r.Completed, r.Failed, r.Lost)
	}
	if r.Latency != nil && uint64(r.Latency.Count) != r.Measured {
		t.Errorf("%s: %d latencies of %d requests", r.Label, r.Latency.Count, r.Measured)
	}
}
