package iser_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"iserd/backstore/null"
	"iserd/internal/iserclient"
	"iserd/iscsi"
	"iserd/iser"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
	"iserd/scsi"
)

// benchTarget measures a whole target with a null store, one initiator with 32 commands out. The initiator posts one by
// one, so batches are what the target makes of that.
func benchTarget(b *testing.B, cmd *iserclient.Command) {
	deep := func(a *rdma.DeviceAttr) { a.MaxQPRDAtom, a.MaxQPInitRDAtom = 128, 128 }
	fabric := rdmatest.New(rdmatest.Config{})
	target := fabric.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Attr: deep})
	peer := fabric.NewProvider(rdmatest.DeviceConfig{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Attr: deep})
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	node := iscsi.NewNode(iscsi.Config{})
	store, err := null.New(1 << 40)
	check(err)
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: "0", Store: store, Identity: scsi.NewIdentity("bench")})
	check(err)
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: fuzzTarget + ",t,0x0001", RelativePortID: 1})
	check(dev.SetLUN(0, lu))
	_, err = node.AddTarget(iscsi.TargetConfig{Name: fuzzTarget, PortalGroupTag: 1, Device: dev})
	check(err)
	srv, err := iser.New(target, node, iser.Config{Shards: 1})
	check(err)
	unregister, err := srv.RegisterMemory(store.Regions())
	check(err)
	l, err := srv.Listen(netip.MustParseAddrPort("192.0.2.1:3260"))
	check(err)
	c, err := iserclient.Open(peer, l.Addr(), iserclient.Options{KeepRegistered: true, ResponderResources: 64,
		PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv}}, iserclient.Login{Target: fuzzTarget})
	check(err)
	for range 3 { // unit attentions
		_, err := c.Do(&iserclient.Command{CDB: make([]byte, 6)})
		check(err)
	}
	var window [32]*iserclient.Task
	run := func(i int) {
		if t := window[i]; t != nil {
			check(c.Wait(t))
			check(c.Release(t))
		}
		t, err := c.Start(cmd)
		check(err)
		window[i] = t
	}
	for i := range 4 * len(window) {
		run(i % len(window))
	}
	st := srv.Stats()
	before := st.Total()
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	for i := range b.N {
		run(i % len(window))
	}
	took := time.Since(start)
	b.StopTimer()
	st = srv.Stats()
	now := st.Total()
	per := func(x uint64) float64 { return float64(x) / float64(b.N) }
	b.ReportMetric(float64(b.N)/took.Seconds(), "IOPS")
	b.ReportMetric(per(now.Crossings()-before.Crossings()), "crossings/cmd")
	b.ReportMetric(per(now.Doorbells-before.Doorbells), "doorbells/cmd")
	for _, t := range window {
		check(c.Wait(t))
	}
	check(c.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check(node.Shutdown(ctx))
	unregister()
	check(srv.Close(ctx))
	lu.Close()
	check(store.Close())
}

func BenchmarkTargetRead4K(b *testing.B) {
	benchTarget(b, &iserclient.Command{CDB: iserclient.Read10(0, 8), In: 4096})
}

func BenchmarkTargetWrite4K(b *testing.B) {
	benchTarget(b, &iserclient.Command{CDB: iserclient.Write10(0, 8), Out: make([]byte, 4096)})
}

func BenchmarkTargetWrite64K(b *testing.B) {
	benchTarget(b, &iserclient.Command{CDB: iserclient.Write10(0, 128), Out: make([]byte, 65536)})
}
