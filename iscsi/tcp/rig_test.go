package tcp_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/null"
	"iserd/backstore/ram"
	"iserd/internal/tcpclient"
	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/tcp"
	"iserd/scsi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	targetName = "iqn.2026-01.test:disk"
	storeSize  = 16 << 20
)

// Logical units of a rig.
var (
	lunRAM   = tcpclient.LUN(0)
	lunNull  = tcpclient.LUN(1)
	lunAsync = tcpclient.LUN(2) // a RAM store that can be told to misbehave, and is never used in place
)

// rig is a node with one target, served over TCP on the loopback.
type rig struct {
	t     testing.TB
	node  *iscsi.Node
	srv   *tcp.Server
	addr  string
	fault *faultstore.Store
	isid  byte
}

type options struct {
	node   iscsi.Config
	limits func(*login.Limits)
	tcp    tcp.Config
}

func newRig(t testing.TB, o options) *rig {
	t.Helper()
	if o.limits != nil {
		l := login.DefaultLimits()
		o.limits(&l)
		o.node.Limits = l
	}
	r := &rig{t: t, node: iscsi.NewNode(o.node)}
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
		id := scsi.NewIdentity(fmt.Sprintf("tcp test %d", i))
		lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: fmt.Sprint(i), Store: s, Identity: id})
		check(t, err)
		check(t, dev.SetLUN(uint16(i), lu))
		lus = append(lus, lu)
	}
	_, err = r.node.AddTarget(iscsi.TargetConfig{Name: targetName, PortalGroupTag: 1, Device: dev})
	check(t, err)
	r.srv = tcp.New(r.node, o.tcp)
	l, err := r.srv.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	r.addr = l.Addr().String()
	r.node.SetPortals([]iscsi.Portal{{Addr: l.Addr(), Tag: 1, TCP: true}})
	t.Cleanup(func() {
		r.fault.Release()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.node.Shutdown(ctx); err != nil {
			t.Errorf("node: %v", err)
		}
		if err := r.srv.Shutdown(ctx); err != nil {
			t.Errorf("server: %v", err)
		}
		if st := r.srv.Stats(); st.Connections != 0 || st.BufferBytes != 0 {
			t.Errorf("left over: %d connections, %d bytes of buffers", st.Connections, st.BufferBytes)
		}
		for _, lu := range lus {
			lu.Close()
		}
		for _, s := range stores {
			check(t, s.Close())
		}
	})
	return r
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// login opens a session of its own and clears the unit attention of each logical unit.
func (r *rig) login(keys ...login.KeyValue) *tcpclient.Conn {
	r.t.Helper()
	c := r.open(keys...)
	for _, lun := range []uint64{lunRAM, lunNull, lunAsync} {
		if _, err := c.Do(&tcpclient.Command{LUN: lun, CDB: make([]byte, 6)}); err != nil {
			r.t.Fatal(err)
		}
	}
	return c
}

func (r *rig) open(keys ...login.KeyValue) *tcpclient.Conn {
	r.t.Helper()
	r.isid++
	if len(keys) == 0 {
		keys = nil
	}
	c, err := tcpclient.Open(r.addr, tcpclient.Login{Target: targetName, Keys: keys, ISID: [6]byte{0x80, 0, 0, 0, 0, r.isid}})
	check(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// do does a command that must end well.
func (r *rig) do(c *tcpclient.Conn, cmd *tcpclient.Command) *tcpclient.Result {
	r.t.Helper()
	res, err := c.Do(cmd)
	check(r.t, err)
	if res.Status != 0 || res.Response != 0 {
		key, asc := res.SenseKey()
		r.t.Fatalf("status %#x, sense %x/%04x", res.Status, key, asc)
	}
	return res
}

func (r *rig) write(c *tcpclient.Conn, lun uint64, lba uint32, data []byte) *tcpclient.Result {
	r.t.Helper()
	return r.do(c, &tcpclient.Command{LUN: lun, CDB: tcpclient.Write10(lba, uint16(len(data)/512)), Out: data})
}

func (r *rig) read(c *tcpclient.Conn, lun uint64, lba uint32, n int) *tcpclient.Result {
	r.t.Helper()
	return r.do(c, &tcpclient.Command{LUN: lun, CDB: tcpclient.Read10(lba, uint16(n/512)), In: n})
}

// expect reads and compares.
func (r *rig) expect(c *tcpclient.Conn, lun uint64, lba uint32, want []byte) *tcpclient.Result {
	r.t.Helper()
	res := r.read(c, lun, lba, len(want))
	if !bytes.Equal(res.Data, want) {
		for i := range want {
			if i >= len(res.Data) || res.Data[i] != want[i] {
				r.t.Fatalf("%d bytes read, %d wanted; the first wrong one is %d", len(res.Data), len(want), i)
			}
		}
		r.t.Fatalf("%d bytes read, %d wanted", len(res.Data), len(want))
	}
	return res
}

var seeds = rand.New(rand.NewPCG(1, 2))

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seeds.Uint32())
	}
	return b
}

func kv(k, v string) login.KeyValue { return login.KeyValue{Key: k, Value: v} }

// keys makes the offer of an initiator: pairs of key and value.
func keys(pairs ...string) []login.KeyValue {
	var list []login.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, kv(pairs[i], pairs[i+1]))
	}
	return list
}

// eventually waits for something that happens in another goroutine.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}
