//go:build linux

package verbs

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"iserd/rdma"
)

// A device that sysfs does not know, as in a container, still has a name, an address and a word for its driver.
func TestDescribeWithoutSysfs(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	info := describe(deviceFacts{
		name: "nosuch_0", guid: "0011:2233:4455:6677", transport: rdma.TransportIB, ports: 1,
		port: []portFacts{{number: 1, state: "ACTIVE", link: rdma.LinkEthernet, mtu: 4096, speed: "25 Gb/sec (1X)", gids: []gidFact{
			{raw: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}, ifIndex: lo.Index},
			{raw: [16]byte{0: 0xfe, 1: 0x80, 15: 9}}, // of an unknown interface
			{},                                       // an unused entry
		}}},
	})
	if info.Driver != "RoCE" || info.NUMANode != -1 || len(info.Ports) != 1 {
		t.Fatalf("%+v", info)
	}
	p := info.Ports[0]
	if !slices.Equal(p.GIDs, []string{"0000:0000:0000:0000:0000:ffff:7f00:0001", "fe80:0000:0000:0000:0000:0000:0000:0009"}) ||
		!slices.Equal(p.NetDevs, []string{"lo"}) || len(p.Addrs) == 0 || p.Speed != "25 Gb/sec (1X)" || p.MTU != 4096 {
		t.Fatalf("%+v", p)
	}
}

func TestDriverWord(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "parent"), []byte("eth0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eth, ib := []rdma.PortInfo{{LinkLayer: rdma.LinkEthernet}}, []rdma.PortInfo{{LinkLayer: rdma.LinkUnknown}, {LinkLayer: rdma.LinkInfiniBand}}
	for _, c := range []struct {
		info rdma.DeviceInfo
		dir  string
		want string
	}{
		{rdma.DeviceInfo{Transport: rdma.TransportIB, VendorID: 0x2c9, Ports: eth}, "", "RoCE"},
		{rdma.DeviceInfo{Transport: rdma.TransportIB, VendorID: 0x2c9, Ports: ib}, "", "InfiniBand"},
		{rdma.DeviceInfo{Transport: rdma.TransportIB, VendorID: vendorRXE, Ports: eth}, "", "soft-RoCE"},
		{rdma.DeviceInfo{Transport: rdma.TransportIB, Ports: eth}, dir, "soft-RoCE"},
		{rdma.DeviceInfo{Transport: rdma.TransportIB, Ports: eth}, "", "RoCE"},
		{rdma.DeviceInfo{Transport: rdma.TransportIWARP, Ports: eth}, "", "iWARP"},
		{rdma.DeviceInfo{Transport: rdma.TransportIWARP, VendorID: vendorSIW, Ports: eth}, "", "soft-iWARP"},
		{rdma.DeviceInfo{Transport: rdma.TransportIB}, "", "unknown"},
		{rdma.DeviceInfo{}, "", "unknown"},
	} {
		if c.dir == "" {
			c.dir = filepath.Join(dir, "absent")
		}
		if got := driverWord(c.dir, &c.info); got != c.want {
			t.Errorf("%+v: %s, want %s", c.info, got, c.want)
		}
	}
}

// "Could not look" and "nothing there" are errors, never an empty name.
func TestRDMADeviceOf(t *testing.T) {
	for _, name := range []string{"", "nosuch0", "lo"} {
		if dev, err := RDMADeviceOf(name); err == nil {
			t.Errorf("%q: %s", name, dev)
		}
	}
	if _, err := os.Stat(classDir); err != nil {
		if _, err := RDMADeviceOf("lo"); !errors.Is(err, rdma.ErrNoDevice) {
			t.Error(err)
		}
	}
	if _, err := netdevAddrs("nosuch0"); err == nil {
		t.Error("addresses of an interface that is not there")
	}
}

func TestSpeed(t *testing.T) {
	for in, want := range map[[2]int]string{
		{2, 32}: "100 Gb/sec (4X)", {1, 1}: "2.5 Gb/sec (1X)", {2, 128}: "400 Gb/sec (4X)",
		{0, 32}: "", {2, 0}: "", {3, 3}: "", {2, 512}: "",
	} {
		if got := speed(in[0], in[1]); got != want {
			t.Errorf("%v: %q, want %q", in, got, want)
		}
	}
	if got := guidString([8]byte{1, 2, 3, 4, 5, 6, 7, 0xff}); got != "0102:0304:0506:07ff" {
		t.Error(got)
	}
}
