package tcp_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"time"

	"iserd/internal/tcpclient"
	"iserd/iscsi/pdu"
	"iserd/iscsi/tcp"
)

// load is a client that sends batches of equal commands in one write and reads the answers in as few reads as possible,
// without allocating. It checks what is cheap to check.
type load struct {
	c      *tcpclient.Conn
	out    []byte
	in     []byte
	stride int // of a command in out
	reply  int // length of one reply in in
	op     pdu.Opcode
}

func newLoad(c *tcpclient.Conn, lun uint64, depth, size int, write bool) *load {
	l := &load{c: c, op: pdu.OpDataIn}
	blocks := uint16(size / 512)
	cmd := &tcpclient.Command{LUN: lun, CDB: tcpclient.Read10(0, blocks), In: size}
	var data []byte
	l.reply = pdu.BHSLength + size
	if write {
		l.op = pdu.OpSCSIResponse
		data = noise(size)
		cmd = &tcpclient.Command{LUN: lun, CDB: tcpclient.Write10(0, blocks), Out: data}
		l.reply = pdu.BHSLength
	}
	for i := range depth {
		cmd.CDB[5] = byte(i * int(blocks))
		h := c.Header(cmd, len(data), true)
		l.out = c.Append(l.out, &h, nil, data)
	}
	l.stride = len(l.out) / depth
	l.in = make([]byte, depth*l.reply)
	return l
}

// batch does all commands once. The first batch must follow newLoad at once, which numbered it.
func (l *load) batch() error {
	if _, err := l.c.Write(l.out); err != nil {
		return err
	}
	if _, err := io.ReadFull(l.c.Conn, l.in); err != nil {
		return err
	}
	for i := 0; i < len(l.in); i += l.reply {
		h := (*pdu.BHS)(l.in[i:])
		if h.Opcode() != l.op || h[3] != 0 {
			return fmt.Errorf("%s with status %d", h.Opcode(), h[3])
		}
	}
	depth := uint32(len(l.out) / l.stride)
	for i := 0; i < len(l.out); i += l.stride {
		sn := l.out[i+24:]
		binary.BigEndian.PutUint32(sn, binary.BigEndian.Uint32(sn)+depth)
	}
	return nil
}

// TestNoAllocations: READ and WRITE allocate nothing in steady state, alone and in batches, whatever the store.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, options{})
	for _, lun := range []struct {
		name string
		lun  uint64
	}{{"ram", lunRAM}, {"null", lunNull}} {
		for _, depth := range []int{1, 32} {
			for _, write := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,depth=%d,write=%v", lun.name, depth, write), func(t *testing.T) {
					r := *r
					r.t = t
					l := newLoad(r.login(), lun.lun, depth, 4096, write)
					check(t, l.c.SetDeadline(time.Now().Add(time.Minute)))
					run := func() {
						for range 10 {
							check(t, l.batch())
						}
					}
					run()
					if n := testing.AllocsPerRun(50, run); n > 0 {
						t.Errorf("%v allocations in %d commands", n, 10*depth)
					}
				})
			}
		}
	}
}

// TestNoAllocationsR2T: neither do writes that are asked for.
func TestNoAllocationsR2T(t *testing.T) {
	r := newRig(t, options{})
	c := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
	cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 8), Out: noise(4096)}
	h := c.Header(cmd, 0, true)
	out := c.Append(nil, &h, nil, nil)
	d := tcpclient.DataOut(h.InitiatorTaskTag(), 0, 0, 0, true)
	data := c.Append(nil, &d, nil, cmd.Out)
	in := make([]byte, pdu.BHSLength)
	check(t, c.SetDeadline(time.Now().Add(time.Minute)))
	receive := func(op pdu.Opcode) *pdu.BHS {
		_, err := io.ReadFull(c.Conn, in)
		check(t, err)
		p := (*pdu.BHS)(in)
		if p.Opcode() != op || p[3] != 0 {
			t.Fatalf("%s with status %d", p.Opcode(), p[3])
		}
		return p
	}
	run := func() {
		_, err := c.Write(out)
		check(t, err)
		binary.BigEndian.PutUint32(data[20:], receive(pdu.OpR2T).R2T().TargetTransferTag())
		_, err = c.Write(data)
		check(t, err)
		receive(pdu.OpSCSIResponse)
		sn := out[24:]
		binary.BigEndian.PutUint32(sn, binary.BigEndian.Uint32(sn)+1)
	}
	for range 10 {
		run()
	}
	if n := testing.AllocsPerRun(200, run); n > 0 {
		t.Errorf("%v allocations per WRITE", n)
	}
}

// TestTurnIsOneWrite: a batch of commands costs one read and one write, not one each.
func TestTurnIsOneWrite(t *testing.T) {
	r := newRig(t, options{})
	l := newLoad(r.login(), lunNull, 32, 512, false)
	check(t, l.c.SetDeadline(time.Now().Add(time.Minute)))
	const rounds = 100
	for range rounds {
		check(t, l.batch())
	}
	// A turn's counts show once it has ended, which is after its last response left: the login's too. Nothing here asks
	// for more than one response.
	var st tcp.Stats
	eventually(t, "a response counted for each request", func() bool {
		st = r.srv.Stats()
		return st.PDUsIn >= 32*rounds && st.PDUsOut == st.PDUsIn
	})
	if st.Writes > 4*rounds {
		t.Errorf("%d writes for %d batches of 32", st.Writes, rounds)
	}
	if st.Reads > 4*rounds {
		t.Errorf("%d reads for %d batches of 32", st.Reads, rounds)
	}
	if n := st.PDUsIn - 32*rounds; n > 8 {
		t.Errorf("%d PDUs beside %d reads", n, 32*rounds)
	}
}

func BenchmarkCommands(b *testing.B) {
	for _, size := range []int{4096, 128 << 10} {
		for _, depth := range []int{1, 8, 32} {
			for _, write := range []bool{false, true} {
				if size > 65536 && (write || depth > 8) {
					continue
				}
				name := fmt.Sprintf("size=%d/depth=%d/read", size, depth)
				if write {
					name = fmt.Sprintf("size=%d/depth=%d/write", size, depth)
				}
				b.Run(name, func(b *testing.B) {
					r := newRig(b, options{})
					l := newLoad(r.login(), lunNull, depth, size, write)
					check(b, l.c.SetDeadline(time.Now().Add(10*time.Minute)))
					b.ReportAllocs()
					b.SetBytes(int64(size))
					before := r.srv.Stats()
					b.ResetTimer()
					done := 0
					for ; done < b.N; done += depth {
						if err := l.batch(); err != nil {
							b.Fatal(err)
						}
					}
					b.StopTimer()
					s := r.srv.Stats()
					calls := s.Reads + s.EmptyReads + s.Writes - before.Reads - before.EmptyReads - before.Writes
					b.ReportMetric(float64(calls)/float64(done), "syscalls/op")
					b.ReportMetric(float64(s.Turns-before.Turns)/float64(done), "turns/op")
				})
			}
		}
	}
}
