package tcp_test

import (
	"net"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/initiator"
	"iserd/internal/initiator/sessionconform"
	"iserd/internal/tcpclient"
	"iserd/iscsi"
	"iserd/iscsi/login"
)

// Sessions that differ in what was negotiated.
var sessions = map[string][]login.KeyValue{
	"defaults":         nil,
	"R2T":              {{Key: "InitialR2T", Value: "Yes"}, {Key: "ImmediateData", Value: "No"}},
	"several R2T":      {{Key: "InitialR2T", Value: "Yes"}, {Key: "MaxOutstandingR2T", Value: "8"}, {Key: "MaxBurstLength", Value: "16384"}, {Key: "FirstBurstLength", Value: "4096"}},
	"unsolicited data": {{Key: "InitialR2T", Value: "No"}, {Key: "ImmediateData", Value: "No"}},
	"digests":          {{Key: "HeaderDigest", Value: "CRC32C"}, {Key: "DataDigest", Value: "CRC32C"}},
	"short segments":   {{Key: "MaxRecvDataSegmentLength", Value: "512"}},
}

func (r *rig) world(keys []login.KeyValue) sessionconform.World {
	var last *tcpclient.Session
	return sessionconform.World{
		Size: storeSize,
		Open: func(t testing.TB, depth int) initiator.Session {
			t.Helper()
			r.isid++
			s, err := tcpclient.OpenSession(r.addr, tcpclient.Login{Target: targetName, Keys: keys, ISID: [6]byte{0x80, 0, 0, 0, 0, r.isid}}, depth)
			check(t, err)
			t.Cleanup(func() { _ = s.Close() })
			last = s
			return s
		},
		LUN:     lunRAM,
		HeldLUN: lunAsync,
		Hold:    func() { r.fault.Hang(backstore.OpWrite) },
		Resume:  func() { r.fault.Release() },
		Sever: func() {
			c := last.Conn().Conn.(*net.TCPConn)
			check(r.t, c.CloseWrite())
			_ = c.CloseRead() // unless the target was faster
		},
	}
}

func TestSession(t *testing.T) {
	for name, keys := range sessions {
		t.Run(name, func(t *testing.T) {
			sessionconform.Run(t, func(t testing.TB) sessionconform.World { return newRig(t, options{}).world(keys) })
		})
	}
}

// TestSessionPinged: the target's pings are answered while nothing else goes on, else it would end the session.
func TestSessionPinged(t *testing.T) {
	r := newRig(t, options{node: iscsi.Config{NopInterval: 10 * time.Millisecond, NopTimeout: 2 * time.Second}})
	s := sessionconform.Ready(t, r.world(nil), 4)
	done := make([]*initiator.Task, 1)
	for deadline := time.Now().Add(10 * time.Second); r.node.Stats().Pings < 5; {
		if n, err := s.Poll(20*time.Millisecond, done); n != 0 || err != nil {
			t.Fatalf("%d tasks, %v", n, err)
		}
		if time.Now().After(deadline) {
			t.Fatal("no pings")
		}
	}
	if r.node.Stats().DeadPeers != 0 {
		t.Error("the target took us for dead")
	}
	check(t, s.Logout())
}

// TestSessionNoAllocs: client and target together allocate nothing for a command.
func TestSessionNoAllocs(t *testing.T) {
	for _, n := range []int{4096, 16384} {
		sessionconform.NoAllocs(t, newRig(t, options{}).world(nil), n)
	}
}

func BenchmarkSession4K(b *testing.B) {
	sessionconform.Benchmark(b, newRig(b, options{}).world(nil), 4096, 32)
}
