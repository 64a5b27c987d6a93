package tcp_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/tcpclient"
	"iserd/iscsi/tcp"
)

// TestListen: IPv4 and IPv6 wildcards share a port, a port that is taken is an error, a closed listener is closed.
func TestListen(t *testing.T) {
	r := newRig(t, options{})
	srv := tcp.New(r.node, tcp.Config{})
	v4, err := srv.Listen(netip.MustParseAddrPort("0.0.0.0:0"))
	check(t, err)
	port := v4.Addr().Port()
	if _, err := srv.Listen(v4.Addr()); err == nil {
		t.Error("the same port twice")
	}
	addrs := []string{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String()}
	if v6, err := srv.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port)); err != nil {
		t.Logf("no IPv6 here: %v", err)
	} else {
		addrs = append(addrs, netip.AddrPortFrom(netip.IPv6Loopback(), v6.Addr().Port()).String())
	}
	for _, a := range addrs {
		c, err := tcpclient.Open(a, tcpclient.Login{Target: targetName})
		check(t, err)
		check(t, c.Logout())
	}
	check(t, v4.Close())
	check(t, v4.Close())
	if c, err := tcpclient.Dial(addrs[0]); err == nil {
		_ = c.Close()
		t.Error("a closed listener takes connections")
	}
	check(t, srv.Close())
	if _, err := srv.Listen(netip.MustParseAddrPort("127.0.0.1:0")); !errors.Is(err, tcp.ErrClosed) {
		t.Errorf("listen after the end: %v", err)
	}
	check(t, srv.Close())
}

// TestShutdown: the peer sees the end at once; what a store holds is waited for, as long as the context allows.
func TestShutdown(t *testing.T) {
	r := newRig(t, options{})
	idle, busy := r.login(), r.login()
	r.fault.Hang(backstore.OpRead)
	_, err := busy.Start(&tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(0, 8), In: 4096}, &tcpclient.Result{})
	check(t, err)
	eventually(t, "a read in the store", func() bool { return r.fault.Held() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := r.srv.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a read in the store: %v", err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("it took %v", d)
	}
	for _, c := range []*tcpclient.Conn{idle, busy} {
		if _, err := c.Receive(); err == nil {
			t.Error("a PDU after the end")
		}
	}
	r.fault.Release()
	check(t, r.srv.Shutdown(context.Background()))
}
