package pdu

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
)

// seedGolden makes seeds of the golden headers.
func seedGolden(f *testing.F) {
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(files) == 0 {
		f.Fatal(len(files), err)
	}
	for _, name := range files {
		f.Add(readHex(f, name))
	}
}

// FuzzBHS: reading every field of a header and writing it back changes nothing.
func FuzzBHS(f *testing.F) {
	seedGolden(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < BHSLength {
			return
		}
		b := BHS(data[:BHSLength])
		was := b
		reason, ok := b.Check()
		if ok != (reason == 0) {
			t.Fatalf("Check: %v %v", reason, ok)
		}
		if ok && !b.Opcode().FromInitiator() {
			t.Fatalf("%v passes", b.Opcode())
		}
		_ = b.Opcode().String()
		rewrite(&b)
		if b != was {
			t.Fatalf("% x\nbecame\n% x", was[:], b[:])
		}
	})
}

// rewrite sets each field that has one value on the wire to what it reads.
func rewrite(b *BHS) {
	b.SetOpcode(b.Opcode())
	b.SetImmediate(b.Immediate())
	b.SetFinal(b.Final())
	b.SetTotalAHSLength(b.TotalAHSLength())
	b.SetDataSegmentLength(b.DataSegmentLength())
	b.SetLUN(b.LUN())
	b.SetInitiatorTaskTag(b.InitiatorTaskTag())
	c := b.SCSICommand()
	c.SetAttr(c.Attr())
	c.SetRead(c.Read())
	c.SetWrite(c.Write())
	c.SetExpectedDataTransferLength(c.ExpectedDataTransferLength())
	c.SetCmdSN(c.CmdSN())
	c.SetExpStatSN(c.ExpStatSN())
	r := b.SCSIResponse()
	r.SetResponse(r.Response())
	r.SetStatus(r.Status())
	r.SetOverflow(r.Overflow())
	r.SetUnderflow(r.Underflow())
	r.SetBidiReadOverflow(r.BidiReadOverflow())
	r.SetBidiReadUnderflow(r.BidiReadUnderflow())
	r.SetMaxCmdSN(r.MaxCmdSN())
	r.SetExpDataSN(r.ExpDataSN())
	r.SetBidiReadResidualCount(r.BidiReadResidualCount())
	r.SetResidualCount(r.ResidualCount())
	l := b.LoginRequest()
	l.SetTransit(l.Transit())
	l.SetContinue(l.Continue())
	l.SetCSG(l.CSG())
	l.SetNSG(l.NSG())
	l.SetISID(l.ISID())
	l.SetTSIH(l.TSIH())
	l.SetCID(l.CID())
	a := b.AsyncMessage()
	a.SetAsyncEvent(a.AsyncEvent())
	a.SetAsyncVCode(a.AsyncVCode())
	a.SetParameter1(a.Parameter1())
	a.SetParameter2(a.Parameter2())
	a.SetParameter3(a.Parameter3())
	tm := b.TaskManagementRequest()
	tm.SetFunction(tm.Function())
	tm.SetRefCmdSN(tm.RefCmdSN())
	sn := b.SNACK()
	sn.SetType(sn.Type())
	sn.SetBegRun(sn.BegRun())
	sn.SetRunLength(sn.RunLength())
}

// FuzzAHS: segments cover the input, and what AppendCDB assembles goes out and comes in the same.
func FuzzAHS(f *testing.F) {
	f.Add(AppendExtendedCDB(nil, make([]byte, 32)))
	f.Add(AppendBidiReadDataLength(AppendExtendedCDB(nil, make([]byte, 17)), 512))
	f.Add([]byte{0, 0, 1, 0})
	f.Add([]byte{0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		it := ParseAHS(data)
		n := 0
		for it.Next() {
			n += 3 + len(it.Body())
		}
		if n > len(data) {
			t.Fatalf("%d bytes of %d", n, len(data))
		}
		if it.Err() != nil && !errors.Is(it.Err(), ErrAHS) {
			t.Fatal(it.Err())
		}
		var b BHS
		cdb, err := AppendCDB(nil, b.SCSICommand(), data)
		if err == nil {
			if len(cdb) > MaxCDB {
				t.Fatalf("a CDB of %d bytes", len(cdb))
			}
			again, err := AppendCDB(nil, b.SCSICommand(), AppendExtendedCDB(nil, cdb))
			if err != nil || !bytes.Equal(again, cdb) {
				t.Fatalf("% x\nbecame\n% x, %v", cdb, again, err)
			}
		}
		if v, ok, err := BidiReadDataLength(data); err == nil && ok {
			if w, ok, err := BidiReadDataLength(AppendBidiReadDataLength(nil, v)); w != v || !ok || err != nil {
				t.Fatal(v, w, ok, err)
			}
		}
	})
}

// FuzzTextKeys: what parses, written again, parses the same.
func FuzzTextKeys(f *testing.F) {
	f.Add([]byte("InitiatorName=iqn.2001-04.com.example:a\x00SessionType=Normal\x00AuthMethod=CHAP,None\x00"))
	f.Add([]byte("MaxRecvDataSegmentLength=0x40000\x00CHAP_C=0bAQID\x00CHAP_R=0x0102\x00"))
	f.Add([]byte("X-a=NotUnderstood\x00\x00\x00"))
	f.Add([]byte("A"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out []byte
		err := ParseKeys(data, func(k, v []byte) error {
			if len(k) == 0 || len(k) > MaxKeyLength || len(v) > MaxBigValue || bytes.IndexByte(v, 0) >= 0 {
				t.Fatalf("%q=%q", k, v)
			}
			out = AppendKey(out, string(k), string(v))
			n, err := ParseNumber(v)
			if err == nil && n == 0 && bytes.ContainsAny(v, "123456789") {
				t.Fatalf("%q is 0", v)
			}
			if bin, err := ParseBinary(v, 1024); err == nil {
				again, err := ParseBinary([]byte(FormatBinary(bin)), 1024)
				if err != nil || !bytes.Equal(bin, again) {
					t.Fatalf("%q: % x, % x, %v", v, bin, again, err)
				}
			}
			total := 0
			EachValue(v, func(m []byte) bool { total += len(m) + 1; return true })
			if total != len(v)+1 {
				t.Fatalf("members of %q", v)
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrText) {
			t.Fatal(err)
		}
		var again []byte
		if err := ParseKeys(out, func(k, v []byte) error {
			again = AppendKey(again, string(k), string(v))
			return nil
		}); err != nil || !bytes.Equal(out, again) {
			t.Fatalf("%q\nbecame\n%q, %v", out, again, err)
		}
	})
}

// FuzzName: a valid name is in its normal form and within its length.
func FuzzName(f *testing.F) {
	for _, s := range []string{"iqn.2001-04.com.example:disk", "IQN.2001-04.com.Example", "eui.02004567a425678d", "naa.52004567ba64678d", "iqn.2001-04.\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n := NormalizeName(s)
		if NormalizeName(n) != n && len(s) < 64 {
			t.Fatalf("%q becomes %q becomes %q", s, n, NormalizeName(n))
		}
		if ValidName(s) && (n != s || len(s) > MaxNameLength) {
			t.Fatalf("%q", s)
		}
	})
}
