package tcp_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/tcpclient"
	"iserd/iscsi"
	"iserd/iscsi/pdu"
	"iserd/iscsi/tcp"
)

// TestB103_PeerGoesUnderIO: the peer vanishes with reads and writes in the store, and with data half here.
func TestB103_PeerGoesUnderIO(t *testing.T) {
	r := newRig(t, options{})
	for round := range 20 {
		c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
		r.fault.Hang(backstore.OpRead)
		for k := range 64 {
			cmd := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(uint32(k), 8), In: 4096}
			if k%2 == 1 {
				cmd = &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(uint32(k), 8), Out: noise(4096)}
			}
			_, err := c.Start(cmd, &tcpclient.Result{})
			check(t, err)
		}
		eventually(t, "reads in the store", func() bool { return r.fault.Held() == 32 })
		if round%2 == 0 {
			check(t, c.Conn.(*net.TCPConn).SetLinger(0)) // a reset instead of an end
		}
		check(t, c.Close())
		r.fault.Release()
		r.noConnections()
	}
	if n := r.srv.Stats().BufferBytes; n != 0 {
		t.Errorf("%d bytes of buffers are missing", n)
	}
}

// TestProbes: port scans and other protocols end quietly and leave nothing.
func TestProbes(t *testing.T) {
	var probes atomic.Int32
	var o options
	o.node.LoginTimeout = 300 * time.Millisecond
	o.node.Events.Probe = func(iscsi.ProbeEvent) { probes.Add(1) }
	r := newRig(t, o)
	other := r.login()
	tls := append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise(506)...)
	rnd := rand.New(rand.NewPCG(7, 7))
	random := make([]byte, 48)
	for i := range random {
		random[i] = byte(rnd.Uint32())
	}
	random[0] = 0x1f // never a request
	for _, b := range [][]byte{nil, {1}, random, tls, []byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n\r\n"), make([]byte, 47), bytes.Repeat([]byte{0xff}, 4096)} {
		c := r.dial()
		check(t, c.SendBytes(b))
		if len(b) == 0 {
			check(t, c.Close())
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := c.Read(make([]byte, 100)); err == nil {
			t.Errorf("%d bytes of answer to %x", n, b[:1])
		}
	}
	eventually(t, "probes gone", func() bool { return r.srv.Stats().Connections == 1 })
	if probes.Load() != 7 {
		t.Errorf("%d probes told, want 7", probes.Load())
	}
	r.alive(other)
}

// TestB138_AcceptFails: an accept that fails again and again pauses, and goes on when it can.
func TestB138_AcceptFails(t *testing.T) {
	r := newRig(t, options{})
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	check(t, err)
	l := &failingListener{Listener: inner}
	l.failing.Store(true)
	srv := tcp.New(r.node, tcp.Config{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	time.Sleep(300 * time.Millisecond)
	if n := l.calls.Load(); n < 3 || n > 20 {
		t.Errorf("%d accepts in 300 ms", n)
	}
	l.failing.Store(false)
	c, err := tcpclient.Open(inner.Addr().String(), tcpclient.Login{Target: targetName})
	check(t, err)
	check(t, c.Logout())
	check(t, srv.Close())
	check(t, <-done)
}

type failingListener struct {
	net.Listener
	failing atomic.Bool
	calls   atomic.Int32
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.calls.Add(1)
	if l.failing.Load() {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// TestRefusalArrives: the response that refuses a login is not destroyed by what the initiator sent after its request.
func TestRefusalArrives(t *testing.T) {
	r := newRig(t, options{})
	for range 20 {
		c := r.dial()
		var h pdu.BHS
		l := h.LoginRequest()
		l.Init()
		l.SetTransit(true)
		l.SetCSG(pdu.StageOperational)
		l.SetNSG(pdu.StageFullFeature)
		text := pdu.AppendKey(pdu.AppendKey(nil, "InitiatorName", "iqn.2026-01.test:i"), "TargetName", "iqn.2026-01.test:nothing")
		raw := c.Append(nil, &h, nil, text)
		check(t, c.SendBytes(append(raw, make([]byte, 100_000)...)))
		p, err := c.Receive()
		check(t, err)
		if r := p.BHS.LoginResponse(); r.StatusClass() != 2 || r.StatusDetail() != 3 {
			t.Errorf("status %d/%d", r.StatusClass(), r.StatusDetail())
		}
		check(t, c.AwaitClose())
		check(t, c.Close())
	}
	r.noConnections()
}

// TestSilentPeer: a peer that asks and does not read costs bounded memory, and is given up when it takes nothing for too
// long; one that reads late gets everything.
func TestSilentPeer(t *testing.T) {
	for _, reads := range []bool{true, false} {
		stall := 400 * time.Millisecond
		if reads {
			stall = 20 * time.Second
		}
		r := newRig(t, options{tcp: tcp.Config{StallTimeout: stall}})
		other := r.login()
		c := r.login(keys("MaxRecvDataSegmentLength", "262144")...)
		c.Timeout = 20 * time.Second
		ping := noise(8192)
		var sent atomic.Int32
		var wg sync.WaitGroup
		wg.Go(func() {
			var h pdu.BHS
			n := h.NOPOut()
			n.Init()
			h.SetImmediate(true)
			n.SetTargetTransferTag(pdu.ReservedTag)
			for k := range 4000 { // 32 MiB, more than the sockets hold
				n.SetInitiatorTaskTag(uint32(k))
				if c.Send(&h, nil, ping) != nil {
					return
				}
				sent.Add(1)
			}
		})
		if reads {
			time.Sleep(100 * time.Millisecond)
			for k := range 4000 {
				p, err := c.Receive()
				check(t, err)
				if p.BHS.InitiatorTaskTag() != uint32(k) || !bytes.Equal(p.Data, ping) {
					t.Fatalf("answer %d is another one", k)
				}
			}
			wg.Wait()
			if r.srv.Stats().Blocked == 0 {
				t.Error("the socket was never full: the test tests nothing")
			}
		} else {
			eventually(t, "the silent one given up", func() bool { return r.srv.Stats().Connections == 1 })
			wg.Wait()
			if sent.Load() == 4000 {
				t.Error("everything was taken")
			}
		}
		r.alive(other)
	}
}

// TestReadsUnread: data-in that does not leave is no reason to stall others, and comes whole in the end.
func TestReadsUnread(t *testing.T) {
	r := newRig(t, options{})
	other, c := r.login(), r.login()
	data := noise(1 << 20)
	r.write(c, lunRAM, 0, data)
	var itts []uint32
	cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0, 2048), In: 1 << 20}
	for range 32 {
		itt, err := c.Start(cmd, &tcpclient.Result{})
		check(t, err)
		itts = append(itts, itt)
	}
	eventually(t, "a full socket", func() bool { return r.srv.Stats().Blocked > 0 })
	r.alive(other)
	for _, itt := range itts {
		res := &tcpclient.Result{}
		check(t, c.Finish(cmd, res, itt))
		if !bytes.Equal(res.Data, data) {
			t.Fatal("other data")
		}
	}
}

// TestB115_ManyLogins: 200 at once.
func TestB115_ManyLogins(t *testing.T) {
	r := newRig(t, options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			c, err := tcpclient.Open(r.addr, tcpclient.Login{Target: targetName, ISID: [6]byte{0x80, 1, byte(i)}})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Ping(nil); err != nil {
				t.Error(err)
			}
			if err := c.Logout(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.noConnections()
}

// TestReinstatement: the old connection ends when its initiator comes back, with a command in the store.
func TestReinstatement(t *testing.T) {
	r := newRig(t, options{})
	old := r.login()
	r.fault.Hang(backstore.OpRead)
	_, err := old.Start(&tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Read10(0, 8), In: 4096}, &tcpclient.Result{})
	check(t, err)
	eventually(t, "a read in the store", func() bool { return r.fault.Held() == 1 })
	time.AfterFunc(50*time.Millisecond, r.fault.Release)
	r.isid--
	c := r.login()
	r.alive(c)
	_ = old.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, old.Conn); errors.Is(err, syscall.ETIMEDOUT) {
		t.Error(err)
	}
	eventually(t, "one connection", func() bool { return r.srv.Stats().Connections == 1 })
}

// TestDiscovery: SendTargets over a discovery session, with a long answer in pieces and an end without logout.
func TestDiscovery(t *testing.T) {
	r := newRig(t, options{})
	for _, logout := range []bool{true, false} {
		c, err := tcpclient.Open(r.addr, tcpclient.Login{Discovery: true, Keys: keys("HeaderDigest", "CRC32C,None", "MaxRecvDataSegmentLength", "512")})
		check(t, err)
		text, err := c.Text(pdu.AppendKey(nil, "SendTargets", "All"))
		check(t, err)
		want := "TargetName=" + targetName + "\x00TargetAddress=" + r.addr + ",1\x00"
		if string(text) != want {
			t.Errorf("%q, want %q", text, want)
		}
		if logout {
			check(t, c.Logout())
		} else {
			check(t, c.Close())
		}
		r.noConnections()
	}
}
