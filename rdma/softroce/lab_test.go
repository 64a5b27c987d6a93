package softroce_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/softroce"
)

// These tests speak with a peer that is not ours, and are run by the laboratory: SOFTROCE_LAB says what to do, as
// "ROLE ADDRESS[:PORT] [COUNT SIZE]".

func labArgs(t *testing.T, role string) (addr string, count, size int) {
	f := strings.Fields(os.Getenv("SOFTROCE_LAB"))
	if len(f) < 2 || f[0] != role {
		t.Skip("no laboratory: SOFTROCE_LAB=\"" + role + " ADDRESS ...\" is not set")
	}
	if len(f) > 3 {
		_, _ = fmt.Sscan(f[2]+" "+f[3], &count, &size)
	}
	return f[1], count, size
}

// TestLabServe is an iSER target at ADDRESS, port 3260, until the file /tmp/softroce-stop is there.
func TestLabServe(t *testing.T) {
	at, _, _ := labArgs(t, "serve")
	p := newProvider(t, softroce.Options{})
	newStack(t, p, netip.MustParseAddr(at))
	fmt.Println("serving", at)
	for i := 0; ; i++ {
		if _, err := os.Stat("/tmp/softroce-stop"); err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
		if i%25 == 24 {
			fmt.Println(softroce.Counters(p))
		}
	}
	fmt.Println(softroce.Counters(p))
}

// ringer is one end of rping's protocol: messages name a buffer (address, key, size), which the server reads, then
// writes.
type ringer struct {
	t     testing.TB
	conn  rdma.Conn
	qp    rdma.QP
	cq    rdma.CQ
	dev   rdma.Device
	mr    rdma.MR
	arena *rdma.Arena
	wcs   [8]rdma.WC
	seen  [4]int // completions by kind that nobody awaited yet
}

const ringMessage = 16

func newRinger(t testing.TB, c rdma.Conn) *ringer {
	r := &ringer{t: t, conn: c, dev: c.Device()}
	pd, err := r.dev.AllocPD()
	check(t, err)
	cc, err := r.dev.NewCompletionChannel()
	check(t, err)
	r.cq, err = cc.CreateCQ(64, 0)
	check(t, err)
	r.arena, err = rdma.MapArena(4<<20, false)
	check(t, err)
	r.mr, err = pd.RegMR(r.arena.Bytes(), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	check(t, err)
	r.qp, err = c.CreateQP(pd, rdma.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1})
	check(t, err)
	r.recv()
	return r
}

func (r *ringer) sge(off, n int) []rdma.SGE {
	return []rdma.SGE{{Addr: r.mr.Addr() + uint64(off), Length: uint32(n), LKey: r.mr.LKey()}}
}

func (r *ringer) post(recvs []rdma.RecvWR, sends []rdma.SendWR) {
	r.t.Helper()
	posts := []rdma.QPPost{{QP: r.qp, Recvs: recvs, Sends: sends}}
	r.dev.Post(posts)
	check(r.t, posts[0].Err)
}

// The receive buffer lies at 0, the message to send at 64, data from 4096 on.
func (r *ringer) recv() { r.post([]rdma.RecvWR{{ID: 1, SGE: r.sge(0, 64)}}, nil) }

func (r *ringer) say(off, n int) {
	b := r.arena.Bytes()[64:]
	binary.BigEndian.PutUint64(b, r.mr.Addr()+uint64(off))
	binary.BigEndian.PutUint32(b[8:], r.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	r.post(nil, []rdma.SendWR{{ID: 2, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: r.sge(64, ringMessage)}})
}

// await waits for a completion of each kind of op; it is false when the peer went away.
func (r *ringer) await(ops ...rdma.WCOp) bool {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for _, op := range ops {
		for r.seen[op] == 0 {
			n, err := r.cq.Poll(r.wcs[:])
			check(r.t, err)
			for _, wc := range r.wcs[:n] {
				if wc.Status == rdma.StatusFlushed {
					return false
				}
				check(r.t, wc.Err())
				r.seen[wc.Op]++
			}
			if n == 0 {
				if time.Now().After(deadline) {
					r.t.Fatalf("nothing comes; awaited %v", ops)
				}
				time.Sleep(100 * time.Microsecond)
			}
		}
		r.seen[op]--
	}
	return true
}

func (r *ringer) advert() (addr uint64, rkey, n uint32) {
	b := r.arena.Bytes()
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
}

// serve answers pings until the peer disconnects.
func (r *ringer) serve() int {
	for pings := 0; ; pings++ {
		for _, op := range []rdma.SendOp{rdma.OpRDMARead, rdma.OpRDMAWrite} {
			if !r.await(rdma.WCRecv) {
				return pings
			}
			addr, rkey, n := r.advert()
			r.recv()
			r.post(nil, []rdma.SendWR{{ID: 3, Op: op, Flags: rdma.SendSignaled, SGE: r.sge(4096, int(n)), RemoteAddr: addr, RKey: rkey}})
			want := rdma.WCRDMARead
			if op == rdma.OpRDMAWrite {
				want = rdma.WCRDMAWrite
			}
			if !r.await(want) {
				return pings
			}
			r.say(0, ringMessage)
			if !r.await(rdma.WCSend) {
				return pings
			}
		}
	}
}

// TestLabRingServer is `rping -s`.
func TestLabRingServer(t *testing.T) {
	at, _, _ := labArgs(t, "rping-server")
	p := newProvider(t, softroce.Options{})
	ch, err := p.NewEventChannel()
	check(t, err)
	_, err = ch.Listen(netip.MustParseAddrPort(at), 8)
	check(t, err)
	fmt.Println("serving", at)
	ev, err := ch.Next()
	check(t, err)
	r := newRinger(t, ev.Conn)
	check(t, r.conn.Accept(rdma.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
	check(t, r.qp.SetMinRNRTimer(12))
	go func() {
		for {
			ev, err := ch.Next()
			if err != nil {
				return
			}
			fmt.Println("event", ev.Type, ev.Status)
			if ev.Type == rdma.EventDisconnected {
				_ = r.conn.Disconnect()
			}
		}
	}()
	n := r.serve()
	fmt.Println(n, "pings;", softroce.Counters(p))
	if n == 0 {
		t.Error("no ping came through")
	}
	time.Sleep(time.Second)
}

// TestLabRingClient is `rping -c -V`.
func TestLabRingClient(t *testing.T) {
	at, count, size := labArgs(t, "rping-client")
	p := newProvider(t, softroce.Options{})
	ch, err := p.NewEventChannel()
	check(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := ch.Resolve(ctx, netip.AddrPort{}, netip.MustParseAddrPort(at))
	check(t, err)
	r := newRinger(t, c)
	check(t, c.Connect(rdma.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
	ev, err := ch.Next()
	check(t, err)
	if ev.Type != rdma.EventEstablished {
		t.Fatalf("%s, status %d", ev.Type, ev.Status)
	}
	check(t, r.qp.SetMinRNRTimer(12))
	start, sink := r.arena.Bytes()[4096:4096+size], r.arena.Bytes()[2<<20:2<<20+size]
	began := time.Now()
	for i := range count {
		for k := range start {
			start[k] = byte(1 + (i+k*7)%255) // rping sends strings
		}
		start[size-1] = 0
		for _, off := range []int{4096, 2 << 20} {
			r.say(off, size)
			if !r.await(rdma.WCSend, rdma.WCRecv) {
				t.Fatalf("the peer is gone after %d pings; %s", i, softroce.Counters(p))
			}
			r.recv()
		}
		if !bytes.Equal(start, sink) {
			t.Fatalf("ping %d: other data came back", i)
		}
	}
	fmt.Println(count, "pings of", size, "bytes in", time.Since(began), softroce.Counters(p))
	check(t, c.Disconnect())
	for {
		if ev, err = ch.Next(); err != nil || ev.Type == rdma.EventDisconnected {
			break
		}
	}
	fmt.Println("disconnected")
}
