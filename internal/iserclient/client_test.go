package iserclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/null"
	"iserd/backstore/ram"
	"iserd/internal/iserclient"
	"iserd/internal/serial"
	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
	"iserd/iser"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
	"iserd/scsi"
)

const (
	targetName = "iqn.2026-01.test:disk"
	storeSize  = 16 << 20
)

// rig is a whole target on the in-memory fabric.
type rig struct {
	t      testing.TB
	fabric *rdmatest.Fabric
	target *rdmatest.Provider
	peer   rdma.Provider
	fault  *faultstore.Store // LUN 2: answers later, and may be told to misbehave
	node   *iscsi.Node
	srv    *iser.Server
	addr   netip.AddrPort
	isid   byte
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRig makes one. The target must not overdo it with RDMA READs, find no receive at an initiator of usual habits, or
// overrun anything; except lists what a test provokes.
func newRig(t testing.TB, except ...rdmatest.Misuse) *rig {
	t.Helper()
	return newRigOf(t, iscsi.Config{}, except...)
}

func newRigOf(t testing.TB, cfg iscsi.Config, except ...rdmatest.Misuse) *rig {
	t.Helper()
	f, tgt, ini := rdmatest.Pair(rdmatest.Config{Misuse: rdmatest.FailOnMisuse(t, append(except, rdmatest.MisuseAfterError)...)})
	r := &rig{t: t, fabric: f, target: tgt, peer: ini, node: iscsi.NewNode(cfg)}
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: targetName + ",t,0x0001", RelativePortID: 1})
	mem, err := ram.New(storeSize)
	check(t, err)
	nul, err := null.New(1 << 40)
	check(t, err)
	inner, err := ram.New(storeSize)
	check(t, err)
	r.fault = faultstore.New(inner)
	r.fault.Async(true)
	stores := []backstore.Store{mem, nul, r.fault}
	var lus []*scsi.LogicalUnit
	for i, s := range stores {
		lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: fmt.Sprint(i), Store: s, Identity: scsi.NewIdentity(fmt.Sprintf("iser test %d", i))})
		check(t, err)
		check(t, dev.SetLUN(uint16(i), lu))
		lus = append(lus, lu)
	}
	_, err = r.node.AddTarget(iscsi.TargetConfig{Name: targetName, PortalGroupTag: 1, Device: dev})
	check(t, err)
	r.srv, err = iser.New(tgt, r.node, iser.Config{Shards: 1, PoolBytes: 16 << 20, NoHugePages: true})
	check(t, err)
	unregister, err := r.srv.RegisterMemory(mem.Regions())
	check(t, err)
	l, err := r.srv.Listen(netip.MustParseAddrPort("192.0.2.1:3260"))
	check(t, err)
	r.addr = l.Addr()
	r.node.SetPortals([]iscsi.Portal{{Addr: l.Addr(), Tag: 1, ISER: true}})
	t.Cleanup(func() {
		r.fault.Release()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.node.Shutdown(ctx); err != nil {
			t.Errorf("node: %v", err)
		}
		unregister()
		if err := r.srv.Close(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
		for _, lu := range lus {
			lu.Close()
		}
		for _, s := range stores {
			check(t, s.Close())
		}
		if l := f.Leaks(); len(l) > 0 {
			t.Errorf("left open: %q", l)
		}
	})
	return r
}

// open logs in and clears the unit attentions.
func (r *rig) open(o iserclient.Options, keys ...login.KeyValue) *iserclient.Conn {
	r.t.Helper()
	r.isid++
	c, err := iserclient.Open(r.peer, r.addr, o, iserclient.Login{Target: targetName, ISID: [6]byte{0x80, 0, 0, 0, 0, r.isid}, Keys: keys})
	check(r.t, err)
	r.t.Cleanup(func() { check(r.t, c.Close()) })
	for lun := range 3 {
		for range 3 {
			res, err := c.Do(&iserclient.Command{LUN: iserclient.LUN(lun), CDB: make([]byte, 6)})
			check(r.t, err)
			if res.Status == 0 {
				break
			}
		}
	}
	return c
}

func (r *rig) good(c *iserclient.Conn, cmd *iserclient.Command) *iserclient.Result {
	r.t.Helper()
	res, err := c.Do(cmd)
	check(r.t, err)
	if res.Status != 0 || res.Response != pdu.ResponseCompleted || res.Residual != 0 {
		key, asc := res.SenseKey()
		r.t.Fatalf("CDB %x: status %#x, %s, sense %x/%04x, residual %d", cmd.CDB, res.Status, res.Response, key, asc, res.Residual)
	}
	return res
}

// Each kind of initiator that a target meets.
var kinds = map[string]iserclient.Options{
	"kernel":           {},
	"kernel, old":      {PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv, 0, 0, 0}},
	"libiscsi":         {PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv, 0, 0, 0}, LateReceives: true},
	"no private data":  {PrivateData: []byte{}},
	"one read":         {ResponderResources: 1},
	"sleeping":         {Sleep: true},
	"registered once":  {KeepRegistered: true},
	"IRD 16, 32 recvs": {ResponderResources: 16, Receives: 160},
}

func TestReadWrite(t *testing.T) {
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.open(o)
			rnd := rand.New(rand.NewPCG(1, 2))
			for _, n := range []int{512, 1024, 4096, 8192, 8704, 65536, 131072, 1 << 20} {
				data := make([]byte, n)
				for i := range data {
					data[i] = byte(rnd.Uint32())
				}
				lba, blocks := uint32(n/512), uint16(n/512)
				for _, imm := range []int{0, -1, 512} {
					data[0]++
					r.good(c, &iserclient.Command{CDB: iserclient.Write10(lba, blocks), Out: data, ImmediateData: imm})
					res := r.good(c, &iserclient.Command{CDB: iserclient.Read10(lba, blocks), In: n})
					if !bytes.Equal(res.Data, data) {
						t.Fatalf("%d bytes, immediate %d: other data came back", n, imm)
					}
					if takes := o.PrivateData == nil; res.Invalidated != takes {
						t.Errorf("STag invalidated: %v, the initiator takes it: %v", res.Invalidated, takes)
					}
				}
			}
			check(t, c.Logout())
		})
	}
}

// TestManyAtOnce keeps the window full of reads and writes.
func TestManyAtOnce(t *testing.T) {
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c := r.open(o)
			const blocks, depth = 16, 48
			data := make([]byte, blocks*512)
			for round := range 4 {
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
			check(t, c.Logout())
		})
	}
}

// TestTargetCloses: an initiator that does not disconnect after logout is disconnected.
func TestTargetCloses(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{})
	check(t, c.LogoutOnly())
	check(t, c.AwaitClose())
}

func TestDiscovery(t *testing.T) {
	r := newRig(t)
	c, err := iserclient.Open(r.peer, r.addr, iserclient.Options{}, iserclient.Login{Discovery: true})
	check(t, err)
	got, err := c.SendTargets("All")
	check(t, err)
	if len(got) != 1 || got[0].Name != targetName || len(got[0].Addresses) != 1 || !strings.HasPrefix(got[0].Addresses[0], "192.0.2.1:3260,1") {
		t.Errorf("%+v", got)
	}
	check(t, c.Logout())
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	_, err := iserclient.Open(r.peer, r.addr, iserclient.Options{}, iserclient.Login{Target: "iqn.2026-01.test:nobody"})
	if !errors.Is(err, login.ErrRefused) {
		t.Errorf("%v", err)
	}
	if _, err := iserclient.Dial(r.peer, netip.MustParseAddrPort("192.0.2.1:9"), iserclient.Options{}); !errors.Is(err, iserclient.ErrRejected) {
		t.Errorf("%v", err)
	}
}

func TestRequests(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{})
	if data, err := c.Ping(nil); err != nil || len(data) != 0 {
		t.Errorf("%q, %v", data, err)
	}
	if data, err := c.Ping([]byte("hello")); err != nil || string(data) != "hello" {
		t.Errorf("%q, %v", data, err)
	}
	if got, err := c.TMF(pdu.TMAbortTask, 0, 0x123, serial.New(0)); err != nil || got != pdu.TMTaskDoesNotExist && got != pdu.TMFunctionComplete {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := c.TMF(pdu.TMLogicalUnitReset, 0, pdu.ReservedTag, serial.New(0)); err != nil || got != pdu.TMFunctionComplete {
		t.Errorf("%s, %v", got, err)
	}
	got, err := c.SendTargets("")
	if err != nil || len(got) != 1 || got[0].Name != targetName {
		t.Errorf("%+v, %v", got, err)
	}
	res, err := c.Do(&iserclient.Command{LUN: iserclient.LUN(7), CDB: make([]byte, 6)})
	check(t, err)
	if key, asc := res.SenseKey(); res.Status != 2 || key != 5 || asc != 0x2500 {
		t.Errorf("a logical unit that is not there: %#x %x/%04x", res.Status, key, asc)
	}
	// Less than there is, more than there is.
	res, err = c.Do(&iserclient.Command{CDB: []byte{0x12, 0, 0, 0, 255, 0}, In: 255})
	check(t, err)
	if res.Status != 0 || !res.Underflow || len(res.Data) < 36 {
		t.Errorf("INQUIRY: %+v", res)
	}
	check(t, c.Logout())
}

// TestMisbehaviour breaks the rules; the target must end this connection, or refuse, and go on with others.
func TestMisbehaviour(t *testing.T) {
	var bhs pdu.BHS
	bhs.SetOpcode(pdu.OpSCSICommand)
	whole := iserclient.Append(nil, &iserclient.Header{}, &bhs, nil, nil)
	for name, do := range map[string]func(t *testing.T, c *iserclient.Conn) error{
		"empty message":     func(_ *testing.T, c *iserclient.Conn) error { return c.SendRaw(nil) },
		"one byte":          func(_ *testing.T, c *iserclient.Conn) error { return c.SendRaw([]byte{0x10}) },
		"75 bytes":          func(_ *testing.T, c *iserclient.Conn) error { return c.SendRaw(whole[:75]) },
		"no such iSER":      func(_ *testing.T, c *iserclient.Conn) error { return c.SendRaw(append([]byte{0xF0}, whole[1:]...)) },
		"broken queue pair": func(_ *testing.T, c *iserclient.Conn) error { return c.Kill() },
		"disconnect":        func(_ *testing.T, c *iserclient.Conn) error { return c.Disconnect() },
		"close amid command": func(t *testing.T, c *iserclient.Conn) error {
			_, err := c.Start(&iserclient.Command{CDB: iserclient.Write10(0, 128), Out: make([]byte, 65536)})
			check(t, err)
			return nil
		},
		"length beyond the message": func(_ *testing.T, c *iserclient.Conn) error {
			var b pdu.BHS
			b.NOPOut().Init()
			b.SetDataSegmentLength(4000)
			return c.SendAsIs(&iserclient.Header{}, &b, nil, nil)
		},
		"foreign STag": func(t *testing.T, c *iserclient.Conn) error {
			_, err := c.Start(&iserclient.Command{CDB: iserclient.Write10(0, 128), Out: make([]byte, 65536),
				Mangle: func(h *iserclient.Header, _ *pdu.BHS) { h.WriteSTag ^= 0x1234500 }})
			return err
		},
		"base out of bounds": func(t *testing.T, c *iserclient.Conn) error {
			_, err := c.Start(&iserclient.Command{CDB: iserclient.Read10(0, 128), In: 65536,
				Mangle: func(h *iserclient.Header, _ *pdu.BHS) { h.ReadBase += 1 }})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			bad, good := r.open(iserclient.Options{}), r.open(iserclient.Options{})
			check(t, do(t, bad))
			_ = bad.Idle(2 * time.Millisecond)
			check(t, bad.Close())
			data := bytes.Repeat([]byte{7}, 4096)
			r.good(good, &iserclient.Command{CDB: iserclient.Write10(100, 8), Out: data})
			if res := r.good(good, &iserclient.Command{CDB: iserclient.Read10(100, 8), In: 4096}); !bytes.Equal(res.Data, data) {
				t.Error("other data")
			}
			check(t, good.Logout())
		})
	}
}

// TestZeroAlloc: client, fabric and target together allocate nothing for a command.
func TestZeroAlloc(t *testing.T) {
	r := newRig(t)
	c := r.open(iserclient.Options{KeepRegistered: true, PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv}})
	read := &iserclient.Command{CDB: iserclient.Read10(0, 8), In: 4096}
	write := &iserclient.Command{CDB: iserclient.Write10(8, 32), Out: make([]byte, 16384)}
	one := func(cmd *iserclient.Command) {
		task, err := c.Start(cmd)
		if err == nil {
			err = c.Wait(task)
		}
		if err != nil || task.Status != 0 {
			t.Fatal(err)
		}
		check(t, c.Release(task))
	}
	for range 100 {
		one(read)
		one(write)
	}
	if n := testing.AllocsPerRun(500, func() {
		one(read)
		one(write)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	check(t, c.Logout())
}

func BenchmarkRead4K(b *testing.B) {
	r := newRig(b)
	c := r.open(iserclient.Options{KeepRegistered: true, PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv}})
	cmd := &iserclient.Command{CDB: iserclient.Read10(0, 8), In: 4096}
	var window [32]*iserclient.Task
	for i := range window {
		task, err := c.Start(cmd)
		check(b, err)
		window[i] = task
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 1) % len(window) {
		check(b, c.Wait(window[i]))
		check(b, c.Release(window[i]))
		task, err := c.Start(cmd)
		check(b, err)
		window[i] = task
	}
	for _, task := range window {
		check(b, c.Wait(task))
		check(b, c.Release(task))
	}
}
