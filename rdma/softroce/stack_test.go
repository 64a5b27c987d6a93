package softroce_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"iserd/backstore/ram"
	"iserd/internal/iserclient"
	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iser"
	"iserd/rdma/softroce"
	"iserd/scsi"
)

const (
	targetName = "iqn.2026-01.test:disk"
	storeSize  = 16 << 20
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stack is a whole iSER target on one provider.
type stack struct {
	t    testing.TB
	addr netip.AddrPort
	isid byte
}

func newStack(t testing.TB, p *softroce.Provider, addr netip.Addr) *stack {
	t.Helper()
	node := iscsi.NewNode(iscsi.Config{})
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: targetName + ",t,0x0001", RelativePortID: 1})
	mem, err := ram.New(storeSize)
	check(t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: "0", Store: mem, Identity: scsi.NewIdentity("softroce test")})
	check(t, err)
	check(t, dev.SetLUN(0, lu))
	_, err = node.AddTarget(iscsi.TargetConfig{Name: targetName, PortalGroupTag: 1, Device: dev})
	check(t, err)
	srv, err := iser.New(p, node, iser.Config{Shards: 1, PoolBytes: 16 << 20, NoHugePages: true})
	check(t, err)
	unregister, err := srv.RegisterMemory(mem.Regions())
	check(t, err)
	l, err := srv.Listen(netip.AddrPortFrom(addr, 3260))
	check(t, err)
	node.SetPortals([]iscsi.Portal{{Addr: l.Addr(), Tag: 1, ISER: true}})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := node.Shutdown(ctx); err != nil {
			t.Errorf("node: %v", err)
		}
		unregister()
		if err := srv.Close(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
		lu.Close()
		check(t, mem.Close())
		if l := softroce.Leaks(p); len(l) > 0 {
			t.Errorf("left open: %q", l)
		}
	})
	return &stack{t: t, addr: l.Addr()}
}

// open logs in and clears the unit attentions.
func (s *stack) open(p *softroce.Provider, o iserclient.Options, keys ...login.KeyValue) *iserclient.Conn {
	s.t.Helper()
	s.isid++
	c, err := iserclient.Open(p, s.addr, o, iserclient.Login{Target: targetName, ISID: [6]byte{0x80, 0, 0, 0, 0, s.isid}, Keys: keys})
	check(s.t, err)
	s.t.Cleanup(func() { check(s.t, c.Close()) })
	for range 3 {
		res, err := c.Do(&iserclient.Command{CDB: make([]byte, 6)})
		check(s.t, err)
		if res.Status == 0 {
			break
		}
	}
	return c
}

func good(t testing.TB, c *iserclient.Conn, cmd *iserclient.Command) *iserclient.Result {
	t.Helper()
	res, err := c.Do(cmd)
	check(t, err)
	if res.Status != 0 || res.Residual != 0 {
		key, asc := res.SenseKey()
		t.Fatalf("CDB %x: status %#x, sense %x/%04x, residual %d", cmd.CDB, res.Status, key, asc, res.Residual)
	}
	return res
}

// pair is a target's provider and an initiator's.
func pair(t testing.TB, mtu int) (tgt, ini *softroce.Provider, addr netip.Addr) {
	a, b := loopback(), loopback()
	return newProvider(t, softroce.Options{Addrs: []netip.Addr{a}, MTU: mtu}), newProvider(t, softroce.Options{Addrs: []netip.Addr{b}, MTU: mtu}), a
}

// verify writes, reads back and compares, in every size and with every kind of data-out.
func verify(t testing.TB, c *iserclient.Conn) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{512, 4096, 8704, 65536, 131072, 1 << 20} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		lba, blocks := uint32(n/512), uint16(n/512)
		for _, imm := range []int{0, -1, 512} {
			data[0]++
			good(t, c, &iserclient.Command{CDB: iserclient.Write10(lba, blocks), Out: data, ImmediateData: imm})
			res := good(t, c, &iserclient.Command{CDB: iserclient.Read10(lba, blocks), In: n})
			if !bytes.Equal(res.Data, data) {
				t.Fatalf("%d bytes, immediate %d: other data came back", n, imm)
			}
		}
	}
}

// TestISER: the whole target, and initiators of each kind, over softroce.
func TestISER(t *testing.T) {
	for name, c := range map[string]struct {
		mtu int
		o   iserclient.Options
	}{
		"kernel":      {4096, iserclient.Options{}},
		"MTU 1024":    {1024, iserclient.Options{}},
		"libiscsi":    {4096, iserclient.Options{PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv, 0, 0, 0}, LateReceives: true}},
		"one read":    {4096, iserclient.Options{ResponderResources: 1}},
		"sleeping":    {4096, iserclient.Options{Sleep: true}},
		"registered":  {4096, iserclient.Options{KeepRegistered: true}},
		"large reads": {4096, iserclient.Options{ResponderResources: 16, Receives: 160}},
	} {
		t.Run(name, func(t *testing.T) {
			tgt, ini, addr := pair(t, c.mtu)
			s := newStack(t, tgt, addr)
			conn := s.open(ini, c.o)
			verify(t, conn)
			many(t, conn)
			check(t, conn.Logout())
			t.Log(softroce.Counters(tgt))
		})
	}
}

// many keeps the window full.
func many(t testing.TB, c *iserclient.Conn) {
	t.Helper()
	const blocks, depth = 16, 48
	data := make([]byte, blocks*512)
	for round := range 6 {
		var tasks []*iserclient.Task
		for i := range depth {
			cmd := &iserclient.Command{CDB: iserclient.Read10(uint32(i*blocks), blocks), In: len(data)}
			if round%2 == 0 {
				for k := range data {
					data[k] = byte(i + round + k)
				}
				cmd = &iserclient.Command{CDB: iserclient.Write10(uint32(i*blocks), blocks), Out: data, ImmediateData: -1}
			}
			task, err := c.Start(cmd)
			check(t, err)
			tasks = append(tasks, task)
		}
		for i, task := range tasks {
			check(t, c.Wait(task))
			if task.Status != 0 {
				t.Fatalf("task %d: status %#x", i, task.Status)
			}
			for k, x := range task.Data {
				if x != byte(i+round-1+k) {
					t.Fatalf("round %d, task %d: byte %d is wrong", round, i, k)
				}
			}
			check(t, c.Release(task))
		}
	}
}
