package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// expect checks status and sense data.
func (r result) expect(t testing.TB, what string, key SenseKey, code AdditionalSense) {
	t.Helper()
	if key == NoSense {
		if r.status != StatusGood {
			t.Errorf("%s: %v, want GOOD", what, r)
		}
		return
	}
	if r.status != StatusCheckCondition || r.key != key || r.code != code {
		t.Errorf("%s: %v, want %X/%02X/%02X", what, r, uint8(key), code.ASC(), code.ASCQ())
	}
	if len(r.data) != 0 {
		t.Errorf("%s: %d bytes of data with CHECK CONDITION", what, len(r.data))
	}
}

// emptyLUN0 is a device with one logical unit, at 5.
func emptyLUN0(t *testing.T) *initiator {
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
	if err := d.SetLUN(5, mustUnit(t, LogicalUnitConfig{Store: mustNull(t, 1<<20)})); err != nil {
		t.Fatal(err)
	}
	return newInitiator(t, d, "i")
}

func TestB46_NoLUN0(t *testing.T) {
	i := emptyLUN0(t)
	r := i.in("12 00 00 00 60 00", 96)
	r.expect(t, "INQUIRY", NoSense, 0)
	if r.data[0] != 0x7F || strings.TrimSpace(string(r.data[8:16])) != "ISERD" || strings.TrimSpace(string(r.data[16:32])) == "" {
		t.Errorf("INQUIRY at LUN 0: %q", r.data)
	}
	r = i.in("a0 00 00 00 00 00 00 00 00 40 00 00", 64)
	r.expect(t, "REPORT LUNS", NoSense, 0)
	if want := cdbOf("00000008 00000000 0005000000000000"); !bytes.Equal(r.data, want) {
		t.Errorf("REPORT LUNS at LUN 0: %x", r.data)
	}
	i.in("00", 0).expect(t, "TEST UNIT READY", IllegalRequest, LogicalUnitNotSupported)
	r = i.in("03 00 00 00 12 00", 18)
	r.expect(t, "REQUEST SENSE", NoSense, 0)
	if r.data[2] != 5 || r.data[12] != 0x25 {
		t.Errorf("REQUEST SENSE at LUN 0: %x", r.data)
	}
}

func TestB46_ReportLUNsWellKnown(t *testing.T) {
	i := emptyLUN0(t)
	const w = uint64(0xC101) << 48
	r := i.run(w, cdbOf("a0 00 02 00 00 00 00 00 00 40 00 00"), nil, 64)
	r.expect(t, "REPORT LUNS", NoSense, 0)
	if want := cdbOf("00000010 00000000 0005000000000000 c101000000000000"); !bytes.Equal(r.data, want) {
		t.Errorf("REPORT LUNS: %x", r.data)
	}
	if r = i.run(w, cdbOf("12 00 00 00 60 00"), nil, 96); r.data[0] != 0x1E {
		t.Errorf("INQUIRY: %x", r.data)
	}
	if r = i.run(w, cdbOf("12 01 00 00 60 00"), nil, 96); !bytes.Equal(r.data, []byte{0x1E, 0, 0, 2, 0x00, 0x83}) {
		t.Errorf("pages: %x", r.data)
	}
	i.run(w, cdbOf("12 01 83 00 ff 00"), nil, 255).expect(t, "VPD 83", NoSense, 0)
	i.run(w, cdbOf("12 01 80 00 ff 00"), nil, 255).expect(t, "VPD 80", IllegalRequest, InvalidFieldInCDB)
	i.run(w, cdbOf("00"), nil, 0).expect(t, "TEST UNIT READY", NoSense, 0)
	i.run(w, cdbOf("03 00 00 00 12 00"), nil, 18).expect(t, "REQUEST SENSE", NoSense, 0)
	i.run(w, cdbOf("28 00 00 00 00 00 00 00 01 00"), nil, 512).expect(t, "READ", IllegalRequest, InvalidCommandOperationCode)
}

func TestB47_VPDOfMissingLUN(t *testing.T) {
	i := emptyLUN0(t)
	for _, page := range []string{"00", "80", "83", "b0", "b1", "b2", "ff"} {
		i.in("12 01 "+page+" 00 ff 00", 255).expect(t, "VPD "+page, IllegalRequest, LogicalUnitNotSupported)
	}
}

func TestB48_AllocationLengthZero(t *testing.T) {
	i := withStore(t, mustNull(t, 1<<20))
	for _, cdb := range []string{"12 00 00 00 00 00", "12 01 83 00 00 00", "03 00 00 00 00 00", "1a 00 3f 00 00 00",
		"5a 00 3f 00 00 00 00 00 00 00", "9e 10", "a3 0c", "a0"} {
		r := i.in(cdb, 0)
		r.expect(t, cdb, NoSense, 0)
		if len(r.data) != 0 || r.kind != ResidualNone {
			t.Errorf("%s: %d bytes, residual %v", cdb, len(r.data), r.kind)
		}
	}
}

func TestB50_B51_ReserveRelease(t *testing.T) {
	a := withStore(t, mustRAM(t, 1<<20))
	b := newInitiator(t, a.nexus.device, "b").ready()
	conflict := func(i *initiator, cdb string, want bool) {
		t.Helper()
		if r := i.in(cdb, 512); (r.status == StatusReservationConflict) != want {
			t.Errorf("%s: %v", cdb, r)
		}
	}
	a.in("17", 0).expect(t, "RELEASE without a reservation", NoSense, 0)
	a.in("16", 0).expect(t, "RESERVE(6)", NoSense, 0)
	a.in("56", 0).expect(t, "RESERVE(10) again by the holder", NoSense, 0)
	a.in("16 10", 0).expect(t, "third party", IllegalRequest, InvalidFieldInCDB)
	conflict(a, "28 00 00 00 00 00 00 00 01 00", false)
	for _, cdb := range []string{"28 00 00 00 00 00 00 00 01 00", "2a 00 00 00 00 00 00 00 01 00", "00", "16", "56", "25", "1a 00 3f 00 ff"} {
		conflict(b, cdb, true)
	}
	for _, cdb := range []string{"12 00 00 00 ff 00", "a0 00 00 00 00 00 00 00 00 ff", "03 00 00 00 ff 00", "17", "57", "a3 0c 00 00 00 00 00 00 01 00"} {
		conflict(b, cdb, false) // RELEASE by another is GOOD and changes nothing
	}
	conflict(b, "00", true)
	a.in("57", 0).expect(t, "RELEASE(10)", NoSense, 0)
	conflict(b, "00", false)
	// The reservation ends with its nexus, and with a reset.
	a.in("16", 0)
	a.nexus.Close()
	conflict(b, "00", false)
	b.in("16", 0)
	c := newInitiator(t, a.nexus.device, "c").ready2(t)
	conflict(c, "00", true)
	c.nexus.LookupLUN(0).Reset()
	conflict(c, "00", false)
	b.in("00", 0).expect(t, "after the reset", UnitAttention, BusDeviceResetFunctionOccurred)
}

// ready2 takes the unit attention away where TEST UNIT READY conflicts.
func (i *initiator) ready2(t *testing.T) *initiator {
	i.in("03 00 00 00 12 00", 18)
	return i
}

func TestB53_Residuals(t *testing.T) {
	i := withStore(t, mustRAM(t, 1<<20))
	for _, c := range []struct {
		name, cdb string
		out       []byte
		expect    uint32
		status    Status
		data      int
		kind      ResidualKind
		residual  uint32
	}{
		{"exact", "28 00 00000000 00 0001 00", nil, 512, StatusGood, 512, ResidualNone, 0},
		{"nothing expected", "28 00 00000000 00 0001 00", nil, 0, StatusGood, 0, ResidualOverflow, 512},
		{"too much room", "28 00 00000000 00 0001 00", nil, 10000, StatusGood, 512, ResidualUnderflow, 9488},
		{"part of a block", "28 00 00000000 00 0001 00", nil, 200, StatusGood, 200, ResidualOverflow, 312},
		{"one of two blocks", "28 00 00000000 00 0002 00", nil, 512, StatusGood, 512, ResidualOverflow, 512},
		{"zero blocks", "28 00 00000000 00 0000 00", nil, 512, StatusGood, 0, ResidualUnderflow, 512},
		{"failed read", "28 00 ffffffff 00 0001 00", nil, 4096, StatusCheckCondition, 0, ResidualUnderflow, 4096},
		{"failed read, too short", "28 00 ffffffff 00 0008 00", nil, 512, StatusCheckCondition, 0, ResidualUnderflow, 512},
		{"inquiry", "12 00 00 1000 00", nil, 4096, StatusGood, 96, ResidualUnderflow, 4000},
		{"inquiry, cut by allocation", "12 00 00 0024 00", nil, 36, StatusGood, 36, ResidualNone, 0},
		{"inquiry, cut by expectation", "12 00 00 00ff 00", nil, 36, StatusGood, 36, ResidualOverflow, 60},
		{"no data", "00", nil, 512, StatusGood, 0, ResidualUnderflow, 512},
		{"no data at all", "00", nil, 0, StatusGood, 0, ResidualNone, 0},
		{"write", "2a 00 00000000 00 0001 00", make([]byte, 512), 512, StatusGood, 0, ResidualNone, 0},
		{"write, nothing offered", "2a 00 00000000 00 0001 00", []byte{}, 0, StatusGood, 0, ResidualOverflow, 512},
		{"write, too much offered", "2a 00 00000000 00 0001 00", make([]byte, 1024), 1024, StatusGood, 0, ResidualUnderflow, 512},
		{"write, too little offered", "2a 00 00000000 00 0002 00", make([]byte, 512), 512, StatusGood, 0, ResidualOverflow, 512},
		{"write, part of a block", "2a 00 00000000 00 0001 00", make([]byte, 200), 200, StatusGood, 0, ResidualOverflow, 312},
		{"failed write", "2a 00 ffffffff 00 0001 00", make([]byte, 512), 512, StatusCheckCondition, 0, ResidualUnderflow, 512},
		{"read with W", "28 00 00000000 00 0001 00", make([]byte, 512), 512, StatusGood, 0, ResidualUnderflow, 512},
		{"write with R", "2a 00 00000000 00 0001 00", nil, 512, StatusCheckCondition, 0, ResidualUnderflow, 512},
		{"verify without compare", "2f 00 00000000 00 0001 00", make([]byte, 512), 512, StatusGood, 0, ResidualUnderflow, 512},
	} {
		r := i.run(0, cdbOf(c.cdb), c.out, c.expect)
		if r.status != c.status || len(r.data) != c.data || r.kind != c.kind || r.residual != c.residual {
			t.Errorf("%s: %v, %d bytes, %v %d; want %v, %d bytes, %v %d", c.name, r, len(r.data), r.kind, r.residual, c.status, c.data, c.kind, c.residual)
		}
	}
}

func TestB55_VerifyWithoutData(t *testing.T) {
	i := withStore(t, mustRAM(t, 1<<20))
	for _, cdb := range []string{"2f 00 00000000 00 0008 00", "2f 10 00000000 00 0008 00", "8f 00 0000000000000000 00000800 00 00", "af 00 00000000 00000008 00 00"} {
		r := i.in(cdb, 0)
		r.expect(t, cdb, NoSense, 0)
		if r.kind != ResidualNone {
			t.Errorf("%s: residual %v %d", cdb, r.kind, r.residual)
		}
	}
	i.in("2f 00 00000800 00 0001 00", 0).expect(t, "beyond the end", IllegalRequest, LBAOutOfRange)
	i.in("2f 04 00000000 00 0001 00", 0).expect(t, "BYTCHK 10b", IllegalRequest, InvalidFieldInCDB)
	i.in("2f 20 00000000 00 0001 00", 0).expect(t, "VRPROTECT", IllegalRequest, InvalidFieldInCDB)
}

func TestB56_B57_ReportSupportedOpcodes(t *testing.T) {
	i := withStore(t, mustRAM(t, 1<<20))
	for _, rctd := range []bool{false, true} {
		options, width := "00", 8
		if rctd {
			options, width = "80", 20
		}
		all := i.mustGood("a3 0c "+options+" 00 0000 0000ffff 00 00", 65535)
		if int(binary.BigEndian.Uint32(all)) != len(all)-4 || (len(all)-4)%width != 0 {
			t.Fatalf("RCTD %v: list of %d bytes says %x", rctd, len(all), all[:4])
		}
		if n := (len(all) - 4) / width; n != len(standardCommands().rows) {
			t.Errorf("%d commands listed, %d in the table", n, len(standardCommands().rows))
		}
		for d := all[4:]; len(d) > 0; d = d[width:] {
			code, sa, length := d[0], binary.BigEndian.Uint16(d[2:]), d[7]
			option := 1
			if d[5]&1 != 0 {
				option = 2
			}
			one := i.mustGood(fmt.Sprintf("a3 0c %02x %02x %04x 0000ffff 00 00", option, code, sa), 65535)
			if one[1]&7 != 3 || one[3] != length || len(one) != 4+int(length) || one[4] != code {
				t.Errorf("%02X/%02X: %x", code, sa, one)
			}
			// Everything that is listed is executed: never INVALID COMMAND OPERATION CODE.
			cdb := make([]byte, 16)
			cdb[0], cdb[1] = code, byte(sa)
			if r := i.run(0, cdb, nil, 0); r.status == StatusCheckCondition && r.code == InvalidCommandOperationCode {
				t.Errorf("%02X/%02X is listed: %v", code, sa, r)
			}
		}
	}
	// What is not listed is not executed.
	set := standardCommands()
	for code := range 256 {
		for sa := range 32 {
			cdb := make([]byte, 16)
			cdb[0], cdb[1] = byte(code), byte(sa)
			if set.find(cdb) == nil {
				want := InvalidCommandOperationCode
				if Opcode(code) == OpPersistentReserveIn || Opcode(code) == OpPersistentReserveOut {
					want = InvalidFieldInCDB
				}
				i.run(0, cdb, nil, 0).expect(t, fmt.Sprintf("%02X/%02X", code, sa), IllegalRequest, want)
			}
		}
	}
	for cdb, support := range map[string]byte{
		"a3 0c 01 12 0000 000000ff 00 00": 3, "a3 0c 01 42 0000 000000ff 00 00": 1, "a3 0c 02 9e 0010 000000ff 00 00": 3, "a3 0c 02 9e 0012 000000ff 00 00": 1,
		"a3 0c 03 12 0000 000000ff 00 00": 3, "a3 0c 03 12 0001 000000ff 00 00": 1, "a3 0c 03 9e 0010 000000ff 00 00": 3, "a3 0c 03 9e 0000 000000ff 00 00": 1,
		"a3 0c 81 28 0000 000000ff 00 00": 3,
	} {
		if b := i.mustGood(cdb, 255); b[1]&7 != support {
			t.Errorf("%s: %x", cdb, b)
		}
	}
	for _, cdb := range []string{"a3 0c 01 9e 0000 000000ff 00 00", "a3 0c 02 12 0000 000000ff 00 00", "a3 0c 04 12 0000 000000ff 00 00", "a3 0c 07 12 0000 000000ff 00 00"} {
		i.in(cdb, 255).expect(t, cdb, IllegalRequest, InvalidFieldInCDB)
	}
}

func TestB58_ReportLUNsSelect(t *testing.T) {
	i := withStore(t, mustNull(t, 1<<20))
	for sel := range 256 {
		r := i.in(fmt.Sprintf("a0 00 %02x 00 00 00 00 00 01 00 00 00", sel), 256)
		if sel <= 2 {
			r.expect(t, "known", NoSense, 0)
		} else {
			r.expect(t, fmt.Sprintf("select %02X", sel), IllegalRequest, InvalidFieldInCDB)
		}
	}
}

// Every data-in command, cut at every length: the same bytes, only fewer; length fields never change.
func TestB59_B60_AllocationLengths(t *testing.T) {
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
	for n := range 300 { // a LUN list that does not fit inline
		if err := d.SetLUN(uint16(n), mustUnit(t, LogicalUnitConfig{Name: fmt.Sprint(n), Store: mustNull(t, 1<<20)})); err != nil {
			t.Fatal(err)
		}
	}
	i := newInitiator(t, d, "i").ready()
	i.seg = 100
	for _, c := range []struct {
		cdb string // with a place for the allocation length
		max int
	}{
		{"12 00 00 %04x 00", 65535}, {"12 01 00 %04x 00", 65535}, {"12 01 80 %04x 00", 65535}, {"12 01 83 %04x 00", 65535}, {"12 01 b0 %04x 00", 65535},
		{"12 01 b1 %04x 00", 65535}, {"12 01 b2 %04x 00", 65535}, {"03 00 0000 %02x 00", 255}, {"03 01 0000 %02x 00", 255},
		{"1a 00 3f 00 %02x 00", 255}, {"1a 08 0a 00 %02x 00", 255}, {"5a 10 3f ff 000000 %04x 00", 65535}, {"5a 00 08 00 000000 %04x 00", 65535},
		{"9e 10 0000000000000000 %08x 00 00", 65535}, {"a0 00 00 000000 %08x 00 00", 65535}, {"a3 0c 80 00 0000 %08x 00 00", 65535}, {"a3 0c 01 28 0000 %08x 00 00", 65535},
	} {
		full := i.mustGood(fmt.Sprintf(c.cdb, c.max), 65535)
		n := len(full)
		if n >= c.max {
			t.Fatalf("%s: %d bytes", c.cdb, n)
		}
		for _, allocation := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 16, n / 2, n - 1, n, n + 1, c.max} {
			if allocation > c.max {
				continue
			}
			cdb := fmt.Sprintf(c.cdb, allocation)
			want := full[:min(n, allocation)]
			r := i.in(cdb, 65535)
			if r.status != StatusGood || !bytes.Equal(r.data, want) || r.kind != ResidualUnderflow || r.residual != 65535-uint32(len(want)) {
				t.Errorf("%s: %v, %d bytes, residual %v %d", cdb, r, len(r.data), r.kind, r.residual)
			}
			if allocation > 0 {
				r = i.in(cdb, uint32(allocation))
				if !bytes.Equal(r.data, want) || r.kind == ResidualOverflow {
					t.Errorf("%s with as much expected: %d bytes, residual %v", cdb, len(r.data), r.kind)
				}
			}
		}
	}
}

func TestB61_InquiryPadding(t *testing.T) {
	i := withUnit(t, LogicalUnitConfig{Store: mustNull(t, 1<<20), Identity: Identity{Vendor: "V", Product: "PRODUCT", Revision: "0.1.0-rc1", Serial: "S", NAA: [16]byte{0x60}}})
	b := i.mustGood("12 00 00 00 60 00", 96)
	if got := string(b[8:36]); got != "V       PRODUCT         0.1." {
		t.Errorf("%q", got)
	}
	if i.mustGood("12 01 80 00 60 00", 96); string(i.mustGood("12 01 80 00 60 00", 96)[4:]) != "S" {
		t.Error("serial number is padded")
	}
}

func TestB63_B64_Identity(t *testing.T) {
	seen := map[[16]byte]string{}
	for _, seed := range []string{"aaaaaa0", "aaaaaa1", "a", "b", "", ""} {
		id := NewIdentity(seed)
		if seed != "" && id != NewIdentity(seed) {
			t.Errorf("%q: not the same twice", seed)
		}
		if other, twice := seen[id.NAA]; twice {
			t.Errorf("%q and %q have the same name", seed, other)
		}
		seen[id.NAA] = seed
		// NAA 6; the OUI is locally administered and not a group address.
		if id.NAA[0]>>4 != 6 || id.NAA[1]&0x30 != 0x20 {
			t.Errorf("%q: NAA %x", seed, id.NAA)
		}
		if err := id.validate(); err != nil || len(id.Serial) != 20 {
			t.Errorf("%q: %v, serial %q", seed, err, id.Serial)
		}
	}
}
