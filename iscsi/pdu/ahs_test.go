package pdu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestExtendedCDB(t *testing.T) {
	for _, n := range []int{17, 18, 19, 20, 21, 32, 260} {
		cdb := make([]byte, n)
		for i := range cdb {
			cdb[i] = byte(i + 1)
		}
		var b BHS
		c := b.SCSICommand()
		c.Init()
		copy(c.CDB()[:], cdb)
		ahs := AppendExtendedCDB(nil, cdb)
		if len(ahs)%4 != 0 || int(binary.BigEndian.Uint16(ahs)) != n-15 {
			t.Fatalf("%d bytes: segment % x", n, ahs)
		}
		// The other segment kind may stand before and after.
		for _, all := range [][]byte{ahs, AppendBidiReadDataLength(bytes.Clone(ahs), 7), append(AppendBidiReadDataLength(nil, 7), ahs...)} {
			got, err := AppendCDB(nil, c, all)
			if err != nil || !bytes.Equal(got, cdb) {
				t.Errorf("%d bytes: % x, %v", n, got, err)
			}
			if v, ok, err := BidiReadDataLength(all); err != nil || ok != (len(all) > len(ahs)) || ok && v != 7 {
				t.Errorf("%d bytes: bidirectional length %d %v %v", n, v, ok, err)
			}
		}
	}
	if AppendExtendedCDB(nil, make([]byte, 16)) != nil {
		t.Error("a segment for a short CDB")
	}
}

func TestAHSMalformed(t *testing.T) {
	var b BHS
	for _, tt := range []struct {
		name string
		ahs  []byte
		cdb  bool // only AppendCDB sees it
		bidi bool // only BidiReadDataLength sees it
	}{
		{"one byte", []byte{0}, true, true},
		{"three bytes", []byte{0, 1, 1}, true, true},
		{"length zero", []byte{0, 0, 1, 0}, true, true},
		{"length past the end", []byte{0, 2, 1, 0}, true, true},
		{"length 65535", []byte{0xff, 0xff, 1, 0}, true, true},
		{"second one cut", []byte{0, 5, 2, 0, 0, 0, 0, 7, 0, 9, 1, 0}, true, true},
		{"rest too short for a header", []byte{0, 1, 9, 0, 0, 0}, true, true},
		{"extended CDB without a byte", []byte{0, 1, 1, 0}, true, false},
		{"two extended CDBs", append(AppendExtendedCDB(nil, make([]byte, 17)), AppendExtendedCDB(nil, make([]byte, 17))...), true, false},
		{"extended CDB too long", AppendExtendedCDB(nil, make([]byte, MaxCDB+1)), true, false},
		{"bidirectional length of 3", []byte{0, 4, 2, 0, 0, 0, 7, 0}, false, true},
		{"bidirectional length of 5", []byte{0, 6, 2, 0, 0, 0, 0, 7, 0, 0, 0, 0}, false, true},
		{"two bidirectional lengths", AppendBidiReadDataLength(AppendBidiReadDataLength(nil, 1), 2), false, true},
	} {
		if _, err := AppendCDB(nil, b.SCSICommand(), tt.ahs); errors.Is(err, ErrAHS) != tt.cdb {
			t.Errorf("%s: AppendCDB: %v", tt.name, err)
		}
		if _, ok, err := BidiReadDataLength(tt.ahs); errors.Is(err, ErrAHS) != tt.bidi || ok && err != nil {
			t.Errorf("%s: BidiReadDataLength: %v", tt.name, err)
		}
	}
	// Other types are skipped.
	if got, err := AppendCDB(nil, b.SCSICommand(), []byte{0, 1, 0x3f, 0}); err != nil || len(got) != 16 {
		t.Errorf("unknown type: % x, %v", got, err)
	}
}

func TestParseAHSStops(t *testing.T) {
	it := ParseAHS([]byte{0, 1, 9, 1, 0, 0, 9, 0})
	if !it.Next() || it.Type() != 9 || len(it.Body()) != 1 || it.Next() || it.Next() || !errors.Is(it.Err(), ErrAHS) {
		t.Errorf("%+v", it)
	}
}
