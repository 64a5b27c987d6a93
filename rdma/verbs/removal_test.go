//go:build linux && cgo && !nordma

package verbs_test

import (
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"iserd/rdma"
)

// B110: the device goes away under a connection, a listener on its address and a wildcard listener; then it comes back.
// Needs ISERD_RDMA_NETDEV, the interface that carries the soft-RoCE device of ISERD_RDMA_ADDR: the test deletes and
// adds the device.
func TestB110_DeviceRemoval(t *testing.T) {
	netdev := os.Getenv("ISERD_RDMA_NETDEV")
	if netdev == "" || !onRealDevice() {
		t.Skip("set ISERD_RDMA_ADDR and ISERD_RDMA_NETDEV: this test deletes the soft-RoCE device of that interface and makes it anew")
	}
	p := newProvider(t)
	tn, in := newNode(t, p), newNode(t, p)
	bound, err := tn.ch.Listen(netip.AddrPortFrom(labAddr(t), 0), 4)
	must(t, err)
	wild := listen(t, tn, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	pair := func() (tgt, ini *side) {
		ini = newSide(t, in, resolve(t, in, netip.AddrPortFrom(labAddr(t), wild.Addr().Port())), stdQP)
		must(t, ini.conn.Connect(stdParam))
		tgt = newSide(t, tn, tn.expect(rdma.EventConnectRequest).Conn, stdQP)
		tgt.post(recvs(tgt, 4), nil)
		must(t, tgt.conn.Accept(stdParam))
		in.expect(rdma.EventEstablished)
		tn.expect(rdma.EventEstablished)
		return tgt, ini
	}
	tgt, ini := pair()
	name := tgt.dev.Info().Name
	deleted := make(chan error, 1)
	go func() { deleted <- exec.Command("rdma", "link", "delete", name).Run() }()

	if ev := in.expect(rdma.EventDeviceRemoval); ev.Conn != ini.conn {
		t.Fatalf("%+v", ev)
	}
	if !ini.dev.Removed() {
		t.Fatal("device is not removed")
	}
	must(t, ini.conn.Disconnect())
	ini.close()
	// In any order, and besides: the disconnect of the other end.
	sawConn, sawBound := false, false
	for !sawConn || !sawBound {
		ev := tn.expectAny(rdma.EventDeviceRemoval, rdma.EventDisconnected)
		switch {
		case ev.Type == rdma.EventDeviceRemoval && ev.Listener == bound:
			sawBound = true
			must(t, bound.Close())
		case ev.Type == rdma.EventDeviceRemoval && ev.Conn == tgt.conn:
			sawConn = true
			tgt.close()
		}
	}
	select {
	case err := <-deleted:
		must(t, err)
	case <-time.After(5 * time.Second):
		t.Log("the kernel waits until the device is closed")
		if _, err := p.Devices(); err != nil {
			t.Log(err)
		}
		select {
		case err := <-deleted:
			must(t, err)
		case <-time.After(20 * time.Second):
			t.Fatal("the kernel waits for something that we hold")
		}
	}
	if devs, err := p.Devices(); err == nil {
		t.Fatalf("devices after the only one went: %v", devs)
	}
	out, err := exec.Command("rdma", "link", "add", name, "type", "rxe", "netdev", netdev).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var tgt2, ini2 *side
	tgt2, ini2 = pair()
	if tgt2.dev == tgt.dev || tgt2.dev.Removed() {
		t.Fatal("the new device is taken for the old one")
	}
	if devs, err := p.Devices(); err != nil || len(devs) != 1 || devs[0] != tgt2.dev {
		t.Fatal(devs, err)
	}
	tgt2.close()
	ini2.close()
}
