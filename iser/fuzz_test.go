package iser_test

import (
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"iserd/backstore/ram"
	"iserd/internal/iserclient"
	"iserd/iscsi"
	"iserd/iser"
	"iserd/rdma/rdmatest"
	"iserd/scsi"
)

const fuzzTarget = "iqn.2026-01.test:fuzz"

// FuzzReceive sends whatever bytes to a whole target, in login and in full feature phase: the session ends or the
// message is refused; nothing panics, and another session does not notice.
func FuzzReceive(f *testing.F) {
	for _, name := range []string{"read10.hex", "write10_immediate.hex", "hello.hex"} {
		raw, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		var text strings.Builder
		for line := range strings.Lines(string(raw)) {
			line, _, _ = strings.Cut(line, "#")
			text.WriteString(strings.Join(strings.Fields(line), ""))
		}
		msg, err := hex.DecodeString(text.String())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(false, msg)
		f.Add(true, msg)
	}
	f.Add(true, []byte{})
	f.Add(false, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")) // TLS

	_, target, peer := rdmatest.Pair(rdmatest.Config{})
	node := iscsi.NewNode(iscsi.Config{})
	store, err := ram.New(1 << 20)
	if err != nil {
		f.Fatal(err)
	}
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: "0", Store: store, Identity: scsi.NewIdentity("fuzz")})
	if err != nil {
		f.Fatal(err)
	}
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: fuzzTarget + ",t,0x0001", RelativePortID: 1})
	if err := dev.SetLUN(0, lu); err != nil {
		f.Fatal(err)
	}
	if _, err := node.AddTarget(iscsi.TargetConfig{Name: fuzzTarget, PortalGroupTag: 1, Device: dev}); err != nil {
		f.Fatal(err)
	}
	srv, err := iser.New(target, node, iser.Config{Shards: 1, PoolBytes: 16 << 20})
	if err != nil {
		f.Fatal(err)
	}
	l, err := srv.Listen(netip.MustParseAddrPort("192.0.2.1:3260"))
	if err != nil {
		f.Fatal(err)
	}
	open := func(isid byte) (*iserclient.Conn, error) {
		return iserclient.Open(peer, l.Addr(), iserclient.Options{}, iserclient.Login{Target: fuzzTarget, ISID: [6]byte{0x80, 0, 0, 0, 0, isid}})
	}
	witness, err := open(1)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = witness.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = node.Shutdown(ctx)
		if err := srv.Close(ctx); err != nil {
			f.Error(err)
		}
		lu.Close()
		_ = store.Close()
	})

	f.Fuzz(func(t *testing.T, fullFeature bool, msg []byte) {
		if len(msg) > 8192 {
			return
		}
		var c *iserclient.Conn
		var err error
		if fullFeature {
			c, err = open(2)
		} else {
			c, err = iserclient.Dial(peer, l.Addr(), iserclient.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SendRaw(msg)
		if pong, err := witness.Ping([]byte("still there?")); err != nil || string(pong) != "still there?" {
			t.Errorf("another session suffers: %q, %v", pong, err)
		}
		_ = c.Close()
		deadline := time.Now().Add(5 * time.Second)
		for {
			st := srv.Stats()
			if st.Total().Connections == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d connections are left", st.Total().Connections)
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
}
