package scsi

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"iserd/backstore"
	"iserd/backstore/faultstore"
)

// turning looks like a disk that turns.
type turning struct{ backstore.Store }

func (s turning) Info() backstore.Info {
	info := s.Store.Info()
	info.Rotational = true
	return info
}

// Every byte of what a host reads when it meets the disk.
func TestPages(t *testing.T) {
	cfg := LogicalUnitConfig{Store: mustNull(t, 1<<30), Identity: NewIdentity("seed"), PhysicalExponent: 3}
	cfg.Identity.Revision, cfg.Identity.Serial = "0001", "SER1"
	copy(cfg.Identity.NAA[:], cdbOf("60200000 00000000 00000000 00000001"))
	i := withUnit(t, cfg)
	turn := withUnit(t, LogicalUnitConfig{Store: turning{faultstore.New(mustRAM(t, 1<<20))}})
	port := hex.EncodeToString([]byte(testPort))
	name := hex.EncodeToString([]byte("iqn.2026-12.lab.iserd:t"))
	for _, c := range []struct {
		what string
		i    *initiator
		cdb  string
		want string
	}{
		{"standard", i, "12 00 00 00 ff 00", "00 00 06 12 5b 00 00 02" + hexText("ISERD   VIRTUAL-DISK    0001") +
			strings.Repeat("00", 22) + "00a0 0460 04c0 0960" + strings.Repeat("00", 30)},
		{"supported pages, ascending (C26)", i, "12 01 00 00 ff 00", "00 00 00 06 00 80 83 b0 b1 b2"},
		{"serial", i, "12 01 80 00 ff 00", "00 80 00 04" + hexText("SER1")},
		{"identification", i, "12 01 83 00 ff 00", "00 83 00 70" +
			"01 03 00 10 60200000000000000000000000000001" + "02 01 00 0c" + hexText("ISERD   SER1") +
			"51 94 00 04 0000 0001" + "53 98 00 24" + port + strings.Repeat("00", 0x24-len(testPort)) + "53 a8 00 18" + name + "00"},
		{"block limits", i, "12 01 b0 00 ff 00", "00 b0 00 3c 00 00 0008 00000800 00000800" + strings.Repeat("00", 48)},
		{"characteristics", i, "12 01 b1 00 ff 00", "00 b1 00 3c 0001" + strings.Repeat("00", 58)},
		{"characteristics of one that turns", turn, "12 01 b1 00 ff 00", "00 b1 00 3c 0000" + strings.Repeat("00", 58)},
		{"provisioning", i, "12 01 b2 00 ff 00", "00 b2 00 04 00 00 00 00"},
		{"mode sense 6", i, "1a 00 3f 00 ff 00", "37 00 10 08 00200000 00000200" +
			"08 12" + strings.Repeat("00", 18) + "0a 0a 00 10 00 00 00 00 ffff 00 00" + "1c 0a" + strings.Repeat("00", 10)},
		{"mode sense 10, long descriptor", i, "5a 10 0a 00 00 00 00 00 ff 00", "0022 00 10 01 00 0010 0000000000200000 00000000 00000200" +
			"0a 0a 00 10 00 00 00 00 ffff 00 00"},
		{"caching with a cache", turn, "1a 08 08 00 ff 00", "17 00 10 00 08 12 04" + strings.Repeat("00", 17)},
		{"one command", i, "a3 0c 01 28 0000 000000ff 00 00", "00 03 00 0a 28 f8 ffffffff 00 ffff 00"},
		{"one command with timeouts", i, "a3 0c 82 9e 0010 000000ff 00 00", "00 83 00 10 9e 10 0000000000000000 ffffffff 00 00" + "000a 0000 00000001 0000000a"},
		{"no such command", i, "a3 0c 01 42 0000 000000ff 00 00", "00 01 00 00"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := c.i.mustGood(c.cdb, 255); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.what, got, want)
		}
	}
}

func hexText(s string) string { return hex.EncodeToString([]byte(s)) }

// The usage data of each command have its operation code in front, as many bytes as the CDB, and no NACA.
func TestCommandTable(t *testing.T) {
	lengths := map[byte]uint8{0: 6, 1: 10, 2: 10, 4: 16, 5: 12}
	last := -1
	for _, op := range commandTable() {
		if len(op.usage) != int(op.length) || op.usage[0] != byte(op.code) || op.usage[op.length-1] != 0 || op.length != lengths[byte(op.code)>>5] {
			t.Errorf("%s: %d bytes, usage %x", op.name, op.length, op.usage)
		}
		key := int(op.code)<<5 | max(op.serviceAction, 0)
		if key <= last {
			t.Errorf("%s is not in order", op.name)
		}
		last = key
		if op.serviceAction != noServiceAction && op.usage[1]&serviceActionMask != byte(op.serviceAction) {
			t.Errorf("%s: usage %x does not show the service action", op.name, op.usage)
		}
		// A command that goes to the store has both; PERSISTENT RESERVE OUT does not go there.
		if op.finish != nil && op.execute == nil || (op.execute == nil) != (op.finish == nil) && op.code != OpPersistentReserveOut || op.start == nil || op.timeout.nominal == 0 {
			t.Errorf("%s: the row is not complete", op.name)
		}
		if op.conflict == 0 || op.conflict&neverConflicts != 0 && op.conflict != neverConflicts {
			t.Errorf("%s: conflict rule %02x", op.name, op.conflict)
		}
		if op.serviceAction == noServiceAction && op.code.String() != op.name {
			t.Errorf("%s prints as %s", op.name, op.code)
		}
	}
	if n := len(appendAllOpcodes(nil, abortingCommands(), true)); n > InlineData {
		t.Errorf("the list of commands has %d bytes, more than fit inline", n)
	}
}

// NACA, and the fields that the usage data say are looked at.
func TestRefusedFields(t *testing.T) {
	i := withStore(t, mustRAM(t, 1<<20))
	for _, op := range standardCommands().rows {
		cdb := make([]byte, 16)
		cdb[0], cdb[op.length-1] = byte(op.code), 0x04
		if op.serviceAction != noServiceAction {
			cdb[1] = byte(op.serviceAction)
		}
		r := i.run(0, cdb, nil, 0)
		r.expect(t, op.name+" with NACA", IllegalRequest, InvalidFieldInCDB)
		// The sense data point at the byte: SKSV, C/D, field pointer.
		if len(r.sense) != 18 || r.sense[15] != 0xC0 || r.sense[16] != 0 || r.sense[17] != op.length-1 {
			t.Errorf("%s: sense data %x", op.name, r.sense)
		}
		if len(cdb) > 6 {
			i.run(0, cdb[:op.length-1], nil, 0).expect(t, op.name+" too short", IllegalRequest, InvalidFieldInCDB)
		}
	}
	i.cmd.Attr = ACA
	i.in("00", 0).expect(t, "attribute ACA", IllegalRequest, InvalidMessageError)
	i.cmd.Attr = Simple
	for _, cdb := range []string{"12 02 00 00 ff 00", "12 00 83 00 ff 00", "12 01 81 00 ff 00", "12 01 c0 00 ff 00", "1b 00 00 00 10 00", "1b 00 00 00 02 00", "1b 00 00 00 03 00"} {
		i.in(cdb, 255).expect(t, cdb, IllegalRequest, InvalidFieldInCDB)
	}
	r := i.in("28 00 00000800 00 0001 00", 512)
	if r.sense[0] != 0xF0 || !bytes.Equal(r.sense[3:7], []byte{0, 0, 8, 0}) {
		t.Errorf("the LBA is not in the sense data: %x", r.sense)
	}
	for _, c := range []struct {
		lun  uint64
		want int
	}{{0x0105 << 48, notFound}, {0x3F00 << 48, notFound}, {0x00FF << 48, 255}, {0x4100 << 48, 256}, {0x7FFF << 48, MaxLUN}, {0xD2003FFF << 32, MaxLUN},
		{0xE2000001 << 32, notFound}, {0xC200 << 48, notFound}, {0x0001_0001 << 32, notFound}, {0x4001_0001 << 32, notFound}, {0xD2000001<<32 | 1, notFound}} {
		if got := decodeLUN(c.lun); got != c.want {
			t.Errorf("LUN %016x: %d, want %d", c.lun, got, c.want)
		}
	}
}

// START STOP UNIT empties the cache before a stop, and SYNCHRONIZE CACHE and VERIFY go to the medium where there is one.
func TestWhatReachesTheStore(t *testing.T) {
	s := faultstore.New(mustRAM(t, 1<<20))
	i := withStore(t, s)
	for _, c := range []struct {
		cdb  string
		op   backstore.Op
		want int
	}{
		{"1b 00 00 00 01 00", backstore.OpFlush, 0}, {"1b 00 00 00 04 00", backstore.OpFlush, 0}, {"1b 00 00 00 00 00", backstore.OpFlush, 1}, {"1b 01 00 00 00 00", backstore.OpFlush, 1},
		{"35", backstore.OpFlush, 1}, {"35 02", backstore.OpFlush, 1}, {"91", backstore.OpFlush, 1},
		{"2f 00 00000000 00 0008 00", backstore.OpRead, 1}, {"2f 00 00000000 00 0800 00", backstore.OpRead, 4}, {"2f 00 00000000 00 0000 00", backstore.OpRead, 0},
		{"25", backstore.OpRead, 0},
	} {
		before := s.Seen(c.op)
		i.in(c.cdb, 0).expect(t, c.cdb, NoSense, 0)
		if n := s.Seen(c.op) - before; n != c.want {
			t.Errorf("%s: %d requests to %v, want %d", c.cdb, n, c.op, c.want)
		}
	}
	s.Fail(backstore.OpRead, 1, backstore.ErrIO)
	i.in("2f 00 00000000 00 0800 00", 0).expect(t, "VERIFY of a bad medium", MediumError, UnrecoveredReadError)
}

// An aborted command does not reach the store, and its slot works again.
func TestAbort(t *testing.T) {
	s := faultstore.New(mustRAM(t, 1<<20))
	i := withStore(t, s)
	for _, abort := range []func(){i.cmd.Abort, func() { i.cmd.Aborted.Store(true) }} {
		c := &i.cmd
		c.LUN, c.CDB, c.HasIn, c.HasOut, c.ExpectedOut = 0, cdbOf("2a 00 00000000 00 0001 00"), false, true, 512
		if next := i.nexus.Start(c); next != NextDataOut {
			t.Fatal(next)
		}
		abort()
		c.Data = [][]byte{bytes.Repeat([]byte{1}, 512)}
		if next := c.Execute(); next != NextDone || c.Status == StatusGood {
			t.Errorf("%v %v", next, c.Status)
		}
		c.Release()
		if b := i.mustGood("28 00 00000000 00 0001 00", 512); b[0] != 0 {
			t.Error("written")
		}
	}
	if s.Seen(backstore.OpWrite) != 0 {
		t.Error("the store saw it")
	}
	// A transport's own errors.
	c := &i.cmd
	i.nexus.Start(c)
	c.Fail(AbortedCommand, ProtocolServiceCRCError)
	if kind, n := c.Residual(); c.Status != StatusCheckCondition || !bytes.Equal(c.Sense[:18], append(cdbOf("70 00 0b 00000000 0a 00000000 47 05 00 00"), 0, 0)) || kind != ResidualUnderflow || n != 512 {
		t.Errorf("%v %x %v %d", c.Status, c.Sense[:18], kind, n)
	}
	c.FailStatus(StatusTaskSetFull)
	if c.Status != StatusTaskSetFull || c.SenseLength != 0 {
		t.Errorf("%v with %d bytes of sense data", c.Status, c.SenseLength)
	}
	c.Release()
}

// A store that keeps an error in the request from before must not fail the next one.
func TestRequestIsFresh(t *testing.T) {
	i := withStore(t, forgetful{mustRAM(t, 1<<20)})
	i.cmd.req.Err = backstore.ErrIO
	i.in("28 00 00000000 00 0001 00", 512).expect(t, "READ", NoSense, 0)
}

// forgetful sets Err only when there is one.
type forgetful struct{ backstore.Store }

func (forgetful) Submit(*backstore.Request) bool { return true }

func TestReadOnlyUnit(t *testing.T) {
	i := withUnit(t, LogicalUnitConfig{Store: mustRAM(t, 1<<20), ReadOnly: true})
	for _, cdb := range []string{"0a 00 00 00 01 00", "2a 00 00000000 00 0001 00", "aa 00 00000000 00000001 00 00", "8a 00 0000000000000000 00000001 00 00"} {
		r := i.run(0, cdbOf(cdb), make([]byte, 512), 512)
		if r.expect(t, cdb, DataProtect, WriteProtected); r.residual != 512 {
			t.Errorf("%s: data was asked for", cdb)
		}
	}
	i.mustGood("28 00 00000000 00 0001 00", 512)
	i.in("35", 0).expect(t, "SYNCHRONIZE CACHE", NoSense, 0)
	i.run(0, cdbOf("2f 02 00000000 00 0001 00"), make([]byte, 512), 512).expect(t, "VERIFY", NoSense, 0)
}

// A read that is more pieces of the store's memory than a command holds goes through buffers.
func TestManyPieces(t *testing.T) {
	i := withUnit(t, LogicalUnitConfig{Store: mustNull(t, 1<<30), MaxTransferBytes: 16 << 20})
	for _, c := range []struct {
		cdb  string
		size uint32
	}{{"88 00 0000000000000000 00002000 00 00", 4 << 20}, {"88 00 0000000000000000 00002001 00 00", 4<<20 + 512}, {"88 00 0000000000000000 00008000 00 00", 16 << 20}} {
		if b := i.mustGood(c.cdb, c.size); uint32(len(b)) != c.size || len(bytes.TrimLeft(b, "\x00")) != 0 {
			t.Errorf("%s: %d bytes", c.cdb, len(b))
		}
	}
}

// With both the R and the W bit set, the direction of the CDB counts.
func TestBothDirections(t *testing.T) {
	i := withStore(t, mustRAM(t, 1<<20))
	for _, c := range []struct {
		cdb      string
		in, out  uint32
		kind     ResidualKind
		residual uint32
	}{
		{"28 00 00000000 00 0001 00", 512, 4096, ResidualNone, 0},
		{"28 00 00000000 00 0001 00", 600, 4096, ResidualUnderflow, 88},
		{"2a 00 00000000 00 0001 00", 4096, 512, ResidualNone, 0},
		{"2a 00 00000000 00 0002 00", 4096, 512, ResidualOverflow, 512},
		{"00", 512, 4096, ResidualUnderflow, 4096},
	} {
		m := &i.cmd
		m.LUN, m.CDB, m.HasIn, m.HasOut, m.ExpectedIn, m.ExpectedOut = 0, cdbOf(c.cdb), true, true, c.in, c.out
		r := i.exec(make([]byte, c.out))
		if r.status != StatusGood || r.kind != c.kind || r.residual != c.residual {
			t.Errorf("%s, %d in and %d out: %v %v %d", c.cdb, c.in, c.out, r, r.kind, r.residual)
		}
	}
	// Neither bit.
	m := &i.cmd
	for _, cdb := range []string{"28 00 00000000 00 0001 00", "2a 00 00000000 00 0001 00"} {
		m.CDB, m.HasIn, m.HasOut, m.ExpectedIn, m.ExpectedOut = cdbOf(cdb), false, false, 0, 0
		if r := i.exec(nil); r.status != StatusGood || r.kind != ResidualOverflow || r.residual != 512 {
			t.Errorf("%s without bits: %v %v %d", cdb, r, r.kind, r.residual)
		}
	}
}

func TestStrings(t *testing.T) {
	for got, want := range map[string]string{
		StatusReservationConflict.String(): "RESERVATION CONFLICT", Status(0x77).String(): "status 77h", HeadOfQueue.String(): "head of queue", TaskAttribute(9).String(): "task attribute 9",
		MediumError.String(): "MEDIUM ERROR", SenseKey(0xF).String(): "sense key Fh", SpaceAllocationFailed.String(): "space allocation failed write protect",
		AdditionalSense(0x1234).String(): "additional sense 12h/34h", OpMaintenanceIn.String(): "MAINTENANCE IN", Opcode(0xFF).String(): "opcode FFh", OpServiceActionIn16.String(): "SERVICE ACTION IN(16)",
		FormatLUN(0x4100 << 48): "256", FormatLUN(wellKnownReportLUNs): "c101000000000000", NextPending.String(): "pending", ResidualOverflow.String(): "overflow",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for a := range additionalSenseNames {
		if strings.HasPrefix(a.String(), "additional") {
			t.Errorf("%04X has no name", uint16(a))
		}
	}
}
