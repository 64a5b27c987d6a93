package tcp_test

import (
	"fmt"
	"testing"

	"iserd/internal/tcpclient"
	"iserd/iscsi/login"
)

// TestMatrix writes and reads over every combination of what negotiation decides about data.
func TestMatrix(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) {
		l.MaxRecvDataSegmentLength = 8192
		l.FirstBurstLength = 32768
		l.MaxBurstLength = 65536
	}})
	sizes := []int{512, 4096, 8192, 8704, 32768, 33280, 131072, 200 * 512}
	for _, digests := range []string{"None", "CRC32C"} {
		for _, initialR2T := range []string{"Yes", "No"} {
			for _, immediate := range []string{"Yes", "No"} {
				for _, segment := range []string{"512", "4096", "262144"} {
					for _, r2t := range []string{"1", "8"} {
						name := fmt.Sprintf("digest=%s,initialR2T=%s,immediate=%s,segment=%s,r2t=%s", digests, initialR2T, immediate, segment, r2t)
						t.Run(name, func(t *testing.T) {
							r := *r
							r.t = t
							c := r.login(keys("HeaderDigest", digests, "DataDigest", digests, "InitialR2T", initialR2T, "ImmediateData", immediate,
								"MaxRecvDataSegmentLength", segment, "MaxOutstandingR2T", r2t, "FirstBurstLength", "16384", "MaxBurstLength", "40960")...)
							for i, n := range sizes {
								data := noise(n)
								w := r.write(c, lunRAM, 100, data)
								unasked := 0
								if initialR2T == "No" {
									unasked = min(n, 16384)
								} else if immediate == "Yes" {
									unasked = min(n, 8192)
								}
								asked := 0
								for _, l := range w.R2TLengths {
									asked += int(l)
								}
								if asked != n-unasked {
									t.Errorf("%d bytes: R2Ts asked for %d, %d had come", n, asked, unasked)
								}
								got := r.expect(c, lunRAM, 100, data)
								if !got.Collapsed {
									t.Errorf("%d bytes: a PDU for the status alone", n)
								}
								for k, s := range got.Sequences {
									if k < len(got.Sequences)-1 && s != 40960 {
										t.Errorf("%d bytes: sequences %v", n, got.Sequences)
									}
								}
								r.write(c, lunAsync, uint32(i), data)
								r.expect(c, lunAsync, uint32(i), data)
							}
							check(t, c.Logout())
						})
					}
				}
			}
		}
	}
}

// TestB99_B101_Segmentation sends and expects the same bytes, cut in every way.
func TestB99_B101_Segmentation(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 8192 }})
	for _, digest := range []string{"None", "CRC32C"} {
		for _, segment := range []int{1, 2, 3, 47, 48, 49, 51, 52, 53, 1000, 4096, 8192 + 48, 16384, 0} {
			t.Run(fmt.Sprintf("digest=%s,segment=%d", digest, segment), func(t *testing.T) {
				r := *r
				r.t = t
				c := r.login(keys("HeaderDigest", digest, "DataDigest", digest, "InitialR2T", "No", "FirstBurstLength", "16384", "MaxBurstLength", "16384")...)
				c.Segment = segment
				n := 65536 / 2
				if segment > 0 && segment < 47 {
					n = 10240 // every write is a system call here, and a wake-up there
				}
				for _, lun := range []uint64{lunRAM, lunAsync} {
					data := noise(n)
					w := r.do(c, &tcpclient.Command{LUN: lun, CDB: tcpclient.Write10(7, uint16(n/512)), Out: data, Segment: 3072})
					if w.DataOuts == 0 {
						t.Error("no Data-Out PDU was needed")
					}
					r.expect(c, lun, 7, data)
				}
				check(t, c.Logout())
			})
		}
	}
}

// TestOddLengths moves lengths that need padding, with digests over it.
func TestOddLengths(t *testing.T) {
	r := newRig(t, options{limits: func(l *login.Limits) { l.MaxRecvDataSegmentLength = 8192 }})
	c := r.login(keys("HeaderDigest", "CRC32C", "DataDigest", "CRC32C", "ImmediateData", "No", "InitialR2T", "Yes", "MaxRecvDataSegmentLength", "513")...)
	data := noise(4096)
	for _, piece := range []int{1, 2, 3, 5, 510, 511, 4095} {
		r.do(c, &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(3, 8), Out: data, Segment: piece})
		r.expect(c, lunRAM, 3, data)
	}
	// INQUIRY data of odd lengths.
	for n := 1; n < 40; n++ {
		res := r.do(c, &tcpclient.Command{LUN: lunRAM, CDB: []byte{0x12, 0, 0, 0, byte(n), 0}, In: n})
		if len(res.Data) != n {
			t.Errorf("%d bytes of INQUIRY data, want %d", len(res.Data), n)
		}
	}
	// NOP-Out with data that needs padding.
	for _, n := range []int{0, 1, 2, 3, 4, 100, 511} {
		ping := noise(n)
		got, err := c.Ping(ping)
		check(t, err)
		if string(got) != string(ping) {
			t.Errorf("a ping of %d bytes came back as %d", n, len(got))
		}
	}
}

// TestB52_C35_BufferOffset: the client checks DataSN, offsets and sequences of every read; here many PDUs and bursts.
func TestB52_C35_BufferOffset(t *testing.T) {
	r := newRig(t, options{})
	c := r.login(keys("MaxRecvDataSegmentLength", "1536", "MaxBurstLength", "5120")...)
	data := noise(1 << 20)
	r.write(c, lunRAM, 0, data)
	res := r.expect(c, lunRAM, 0, data)
	// 5120 = 1536 * 3 + 512: four PDUs in each sequence.
	if want := (1<<20)/5120*4 + 3; res.DataIns < want-1 || res.DataIns > want+1 {
		t.Errorf("%d Data-In PDUs, want about %d", res.DataIns, want)
	}
	for i, n := range res.Sequences[:len(res.Sequences)-1] {
		if n != 5120 {
			t.Fatalf("sequence %d has %d bytes", i, n)
		}
	}
	// Through buffers instead of the store's memory.
	r.write(c, lunAsync, 0, data)
	r.expect(c, lunAsync, 0, data)
}

// TestResiduals: the flags and counts are the same, whether the status travels in a Data-In or alone.
func TestResiduals(t *testing.T) {
	r := newRig(t, options{})
	c := r.login()
	under := r.do(c, &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0, 1), In: 2048})
	if !under.Underflow || under.Overflow || under.Residual != 1536 || len(under.Data) != 512 || !under.Collapsed {
		t.Errorf("underflow: %+v", under)
	}
	over := r.do(c, &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0, 4), In: 512})
	if over.Underflow || !over.Overflow || over.Residual != 1536 || len(over.Data) != 512 {
		t.Errorf("overflow: %v %v %d, %d bytes", over.Underflow, over.Overflow, over.Residual, len(over.Data))
	}
	// A write that offers more than the CDB takes: what was not asked for stays there, what came unasked is dropped.
	for _, immediate := range []bool{true, false} {
		data := noise(8192)
		w := r.do(c, &tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Write10(20, 2), Out: data, NoImmediateData: immediate})
		if !w.Underflow || w.Residual != 8192-1024 {
			t.Errorf("write underflow: %+v", w)
		}
		r.expect(c, lunRAM, 20, data[:1024])
	}
	bad, err := c.Do(&tcpclient.Command{LUN: lunRAM, CDB: tcpclient.Read10(0xfffffff0, 1), In: 512})
	check(t, err)
	if key, asc := bad.SenseKey(); bad.Status != 2 || key != 5 || asc != 0x2100 || !bad.Underflow || bad.Residual != 512 || bad.Collapsed {
		t.Errorf("read out of range: %+v", bad)
	}
}
