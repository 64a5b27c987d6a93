package tcp_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/internal/tcpclient"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// TestDigestOfChangingData reads with data digests what others write at the same time. What is read is anybody's guess,
// but each digest must be that of the data beside it: the client checks.
func TestDigestOfChangingData(t *testing.T) {
	r := newRig(t, options{})
	reader := r.login(keys("DataDigest", "CRC32C")...)
	writer := r.login()
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := byte(0); !stop.Load(); i++ {
			if _, err := writer.Do(&tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(0, 128), Out: bytes.Repeat([]byte{i}, 65536)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer wg.Wait()
	defer stop.Store(true)
	cmd := &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0, 2048), In: 1 << 20}
	for range 60 {
		var itts []uint32
		for range 4 {
			itt, err := reader.Start(cmd, &tcpclient.Result{})
			check(t, err)
			itts = append(itts, itt)
		}
		for _, itt := range itts {
			check(t, reader.Finish(cmd, &tcpclient.Result{}, itt))
		}
	}
}

// TestRetainedImmediateData fills many receive chunks with immediate data that a slow store holds on to.
func TestRetainedImmediateData(t *testing.T) {
	r := newRig(t, options{})
	for _, size := range []int{512, 4096, 65536} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r := *r
			r.t = t
			c := r.login(keys("InitialR2T", "No", "ImmediateData", "Yes", "DataDigest", "CRC32C")...)
			r.fault.Hang(backstore.OpWrite)
			const depth = 120
			data := make([][]byte, depth)
			cmds := map[uint32]*tcpclient.Command{}
			for k := range depth {
				data[k] = noise(size)
				cmd := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(uint32(k*size/512), uint16(size/512)), Out: data[k]}
				itt, err := c.Start(cmd, &tcpclient.Result{})
				check(t, err)
				cmds[itt] = cmd
			}
			eventually(t, "all in the store", func() bool { return r.fault.Held() == depth })
			if n := r.srv.Stats().BufferBytes; n != 0 {
				t.Errorf("%d bytes were copied to buffers", n)
			}
			r.fault.Release()
			for len(cmds) > 0 {
				p, err := c.Receive()
				check(t, err)
				res := &tcpclient.Result{}
				done, err := c.Step(cmds[p.BHS.InitiatorTaskTag()], res, p)
				check(t, err)
				if !done || res.Status != 0 {
					t.Fatalf("status %d", res.Status)
				}
				delete(cmds, p.BHS.InitiatorTaskTag())
			}
			for k := range depth {
				r.expect(c, lunAsync, uint32(k*size/512), data[k])
			}
		})
	}
}

// TestUnsolicitedBeforeItsTurn: a command comes before the one that precedes it, with all of its unsolicited data. The
// data waits with it.
func TestUnsolicitedBeforeItsTurn(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 4096 }})
	c := r.login(keys("InitialR2T", "No", "ImmediateData", "Yes", "FirstBurstLength", "16384")...)
	first := c.CmdSN
	c.CmdSN = c.CmdSN.Next()
	late := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(64, 64), Out: noise(32768)}
	var res tcpclient.Result
	itt, err := c.Start(late, &res)
	check(t, err)
	time.Sleep(20 * time.Millisecond)
	next := c.CmdSN
	c.CmdSN = first
	h := c.Header(&tcpclient.Command{LUN: lunAsync, CDB: make([]byte, 6)}, 0, true)
	check(t, c.Send(&h, nil, nil))
	c.CmdSN = next
	_, err = c.ReceiveReply(h.InitiatorTaskTag())
	check(t, err)
	check(t, c.Finish(late, &res, itt))
	if res.Status != 0 {
		t.Fatalf("status %d", res.Status)
	}
	r.expect(c, lunAsync, 64, late.Out)
}

// TestBuffersComeInsidePDU: a write without memory gets it while its unsolicited Data-Out PDU is half here.
func TestBuffersComeInsidePDU(t *testing.T) {
	for _, digest := range []string{"None", "CRC32C"} {
		r := newRig(t, options{})
		r.srv.SetBufferLimit(64 << 10)
		a := r.login(keys("InitialR2T", "Yes", "ImmediateData", "No")...)
		b := r.login(keys("InitialR2T", "No", "ImmediateData", "No", "FirstBurstLength", "32768", "DataDigest", digest)...)
		hog := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(0, 128), Out: noise(65536)}
		var hogged tcpclient.Result
		hogTag, err := a.Start(hog, &hogged)
		check(t, err)
		eventually(t, "the memory gone", func() bool { return r.srv.Stats().BufferBytes == 65536 })

		cmd := &tcpclient.Command{LUN: lunAsync, CDB: tcpclient.Write10(1024, 96), Out: noise(49152), NoUnsolicited: true}
		h := b.Header(cmd, 0, false)
		check(t, b.Send(&h, nil, nil))
		itt := h.InitiatorTaskTag()
		d := tcpclient.DataOut(itt, pdu.ReservedTag, 0, 0, false)
		check(t, b.Send(&d, nil, cmd.Out[:1024]))
		d = tcpclient.DataOut(itt, pdu.ReservedTag, 1, 1024, true)
		raw := b.Append(nil, &d, nil, cmd.Out[1024:32768])
		check(t, b.SendBytes(raw[:10_000]))
		eventually(t, "it waits", func() bool { return r.srv.Stats().BufferWaits > 0 })
		time.Sleep(20 * time.Millisecond)
		check(t, a.Finish(hog, &hogged, hogTag))
		eventually(t, "it has memory", func() bool { return r.srv.Stats().BufferBytes != 0 })
		time.Sleep(20 * time.Millisecond)
		check(t, b.SendBytes(raw[10_000:]))
		var res tcpclient.Result
		check(t, b.Finish(cmd, &res, itt))
		if res.Status != 0 || res.R2Ts != 1 || res.R2TLengths[0] != 16384 {
			t.Errorf("status %d, R2Ts %v", res.Status, res.R2TLengths)
		}
		r.expect(b, lunAsync, 1024, cmd.Out)
		r.expect(a, lunAsync, 0, hog.Out)
	}
}
