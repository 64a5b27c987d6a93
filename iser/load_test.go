package iser

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// load keeps depth commands of one kind going, posting in batches and allocating nothing.
type load struct {
	i     *initiator
	depth int
	cmdSN uint32
	sends []rdma.SendWR
	recvs []rdma.RecvWR
	sges  []rdma.SGE
	rsges []rdma.SGE
	post  [1]rdma.QPPost
	idle  []uint32 // tags that may go again
}

func (i *initiator) newLoad(depth int, write bool, size int, cmdSN uint32) *load {
	l := &load{i: i, depth: depth, cmdSN: cmdSN}
	for tag := range depth {
		_, addr := i.data(tag*size, size)
		h, b := Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: addr}, command(uint32(tag), 0, cdb(0x28, uint32(tag*size)), uint32(size), 0, 0)
		if write {
			d, addr := i.data(tag*size, size)
			pattern(d, uint32(tag*size))
			h, b = Header{WSV: true, WriteSTag: i.mr.RKey(), WriteBaseOffset: addr}, command(uint32(tag), 0, cdb(0x2a, uint32(tag*size)), 0, uint32(size), 0)
		}
		m := i.mem(iRecvs*iRecvSize+tag*iSendSize, iSendSize)
		h.Put(m)
		copy(m[HeaderLength:], b[:])
		l.sges = append(l.sges, rdma.SGE{Addr: rdma.AddrOf(m), Length: headersLength, LKey: i.mr.LKey()})
		l.sends = append(l.sends, rdma.SendWR{})
	}
	for k := range iRecvs {
		l.rsges = append(l.rsges, rdma.SGE{Addr: rdma.AddrOf(i.mem(k*iRecvSize, iRecvSize)), Length: iRecvSize, LKey: i.mr.LKey()})
		l.recvs = append(l.recvs, rdma.RecvWR{})
	}
	l.idle = make([]uint32, 0, depth)
	return l
}

// run has n commands done.
func (l *load) run(n int) error {
	i := l.i
	left, out := n, 0
	l.idle = l.idle[:0]
	for tag := range l.depth {
		l.idle = append(l.idle, uint32(tag))
	}
	l.recvs = l.recvs[:0]
	for out > 0 || left > 0 {
		l.sends = l.sends[:0]
		for left > 0 && len(l.idle) > 0 {
			tag := l.idle[len(l.idle)-1]
			l.idle = l.idle[:len(l.idle)-1]
			m := i.mem(iRecvs*iRecvSize+int(tag)*iSendSize, iSendSize)
			binary.BigEndian.PutUint32(m[HeaderLength+24:], l.cmdSN)
			l.cmdSN++
			wr := rdma.SendWR{ID: 1 << 32, Op: rdma.OpSend, SGE: l.sges[tag : tag+1]}
			l.sends = append(l.sends, wr)
			left--
			out++
		}
		if k := len(l.sends); k > 0 {
			l.sends[k-1].Flags = rdma.SendSignaled
		}
		if len(l.sends) > 0 || len(l.recvs) > 0 {
			l.post[0] = rdma.QPPost{QP: i.qp, Sends: l.sends, Recvs: l.recvs}
			i.dev.Post(l.post[:])
			if l.post[0].Err != nil {
				return l.post[0].Err
			}
			l.recvs = l.recvs[:0]
		}
		got, err := i.cq.Poll(i.wcs[:])
		if err != nil {
			return err
		}
		if got == 0 {
			runtime.Gosched()
			continue
		}
		for k := range i.wcs[:got] {
			wc := &i.wcs[k]
			if wc.Status != rdma.StatusSuccess {
				return wc.Err()
			}
			if wc.ID>>32 != 0 {
				continue
			}
			m := i.mem(int(wc.ID)*iRecvSize, headersLength)
			if pdu.Opcode(m[HeaderLength]&0x3f) != pdu.OpSCSIResponse || m[HeaderLength+3] != 0 {
				return fmt.Errorf("answer % x", m[HeaderLength:])
			}
			l.idle = append(l.idle, binary.BigEndian.Uint32(m[HeaderLength+16:]))
			l.recvs = append(l.recvs, rdma.RecvWR{ID: wc.ID, SGE: l.rsges[wc.ID : wc.ID+1]})
			out--
		}
	}
	return nil
}

// flushRecvs posts the receives that the last run left over.
func (l *load) flushRecvs() error {
	l.post[0] = rdma.QPPost{QP: l.i.qp, Recvs: l.recvs}
	l.i.dev.Post(l.post[:])
	l.recvs = l.recvs[:0]
	return l.post[0].Err
}

// TestNoAllocations runs commands in steady state and counts what the whole process, the initiator included, allocated.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFabric(t)
	n := newStubNode()
	_, addr := stubServer(t, f, n, Config{})
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		l := i.newLoad(32, write, 4096, 1)
		run := func(n int) {
			if err := l.run(n); err != nil {
				t.Fatal(err)
			}
			if err := l.flushRecvs(); err != nil {
				t.Fatal(err)
			}
		}
		run(2000)
		// The least of a few rounds: now and then the runtime itself allocates.
		const commands = 20000
		per := 1.0
		for range 3 {
			var a, b runtime.MemStats
			runtime.ReadMemStats(&a)
			run(commands)
			runtime.ReadMemStats(&b)
			per = min(per, float64(b.Mallocs-a.Mallocs)/commands)
		}
		t.Logf("write %v: %.4f allocations per command", write, per)
		if per > 0.001 {
			t.Errorf("write %v: %.4f allocations per command", write, per)
		}
	}
}

func benchCommands(b *testing.B, write bool, size, depth int, inPlace bool) {
	f := newFabric(b)
	n := newStubNode()
	s, addr := stubServer(b, f, n, Config{})
	if inPlace {
		a, err := rdma.MapArena(64<<20, false)
		if err != nil {
			b.Fatal(err)
		}
		un, err := s.RegisterMemory([][]byte{a.Bytes()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { un(); _ = a.Close() })
		n.inPlace = a.Bytes()
	}
	o := dialOptions{responder: 16}
	if f.mem != nil {
		o.responder = 64 // soft-RoCE does 128
	}
	i := mustDial(b, f.peer, addr, o)
	defer i.close()
	if err := i.logIn(); err != nil {
		b.Fatal(err)
	}
	l := i.newLoad(depth, write, size, 1)
	if err := l.run(1000); err != nil {
		b.Fatal(err)
	}
	st := s.Stats()
	before := st.Total()
	b.ResetTimer()
	start := time.Now()
	if err := l.run(b.N); err != nil {
		b.Fatal(err)
	}
	took := time.Since(start)
	b.StopTimer()
	st = s.Stats()
	now := st.Total()
	per := func(x uint64) float64 { return float64(x) / float64(b.N) }
	b.ReportMetric(float64(b.N)/took.Seconds(), "IOPS")
	b.ReportMetric(per(now.Crossings()-before.Crossings()), "crossings/cmd")
	b.ReportMetric(per(now.Doorbells-before.Doorbells), "doorbells/cmd")
	b.ReportMetric(per(now.Completions-before.Completions), "completions/cmd")
}

func BenchmarkRead4K(b *testing.B)         { benchCommands(b, false, 4096, 32, true) }
func BenchmarkReadBuffered4K(b *testing.B) { benchCommands(b, false, 4096, 32, false) }
func BenchmarkWrite4K(b *testing.B)        { benchCommands(b, true, 4096, 32, false) }
func BenchmarkRead4KDepth1(b *testing.B)   { benchCommands(b, false, 4096, 1, true) }
func BenchmarkRead128K(b *testing.B)       { benchCommands(b, false, 128<<10, 8, true) }
