package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/faultstore"
)

func TestB73_ModeSensePageControl(t *testing.T) {
	i := withStore(t, faultstore.New(mustRAM(t, 1<<20)))
	current := i.mustGood("1a 08 3f 00 ff 00", 255)
	defaults := i.mustGood("1a 08 bf 00 ff 00", 255)
	if !bytes.Equal(current, defaults) {
		t.Errorf("current %x, default %x", current, defaults)
	}
	mask := i.mustGood("1a 08 7f 00 ff 00", 255)
	if len(mask) != len(current) {
		t.Fatalf("mask %x", mask)
	}
	for p, c := mask[4:], current[4:]; len(p) > 0; p, c = p[2+int(p[1]):], c[2+int(c[1]):] {
		if p[0] != c[0] || p[1] != c[1] || !bytes.Equal(p[2:2+int(p[1])], make([]byte, p[1])) {
			t.Errorf("page %02X: mask %x", c[0], p)
		}
	}
	for _, cdb := range []string{"1a 08 ff 00 ff 00", "1a 08 c8 00 ff 00", "5a 08 ff 00 00 00 00 00 ff 00"} {
		i.in(cdb, 255).expect(t, cdb, IllegalRequest, SavingParametersNotSupported)
	}
	for _, cdb := range []string{"1a 08 01 00 ff 00", "1a 08 3f 01 ff 00", "1a 08 0a 02 ff 00", "1a 08 00 00 ff 00"} {
		i.in(cdb, 255).expect(t, cdb, IllegalRequest, InvalidFieldInCDB)
	}
	if current[4] != 0x08 || current[6] != 0x04 {
		t.Errorf("caching page %x: WCE is not set over a store with a cache", current[4:])
	}
}

func TestB75_FUABit(t *testing.T) {
	store := faultstore.New(mustRAM(t, 1<<20))
	i := withStore(t, store)
	if b := i.mustGood("1a 08 3f 00 ff 00", 255); b[2] != 0x10 {
		t.Errorf("device-specific parameter %02x", b[2])
	}
	ro := withUnit(t, LogicalUnitConfig{Store: mustRAM(t, 1<<20), ReadOnly: true})
	if b := ro.mustGood("5a 08 3f 00 00 00 00 00 ff 00", 255); b[3] != 0x90 {
		t.Errorf("device-specific parameter of a read-only unit %02x", b[3])
	}
	for cdb, fua := range map[string]bool{
		"2a 08 00000000 00 0001 00": true, "2a 00 00000000 00 0001 00": false, "2a 10 00000000 00 0001 00": false, "aa 08 00000000 00000001 00 00": true,
		"8a 18 0000000000000000 00000001 00 00": true, "0a 08 00 00 01 00": false, // in WRITE(6) it is part of the LBA
	} {
		i.cmd.req.FUA = !fua
		r := i.run(0, cdbOf(cdb), make([]byte, 512), 512)
		if cdb == "0a 08 00 00 01 00" {
			r.expect(t, cdb, IllegalRequest, LBAOutOfRange)
			continue
		}
		if r.expect(t, cdb, NoSense, 0); i.cmd.req.FUA != fua {
			t.Errorf("%s: FUA %v", cdb, i.cmd.req.FUA)
		}
	}
}

func TestB76_B77_Ranges(t *testing.T) {
	const blocks = 1 << 20
	i := withUnit(t, LogicalUnitConfig{Store: mustNull(t, blocks*512), MaxTransferBytes: 1 << 20})
	for _, c := range []struct {
		cdb  string
		key  SenseKey
		code AdditionalSense
	}{
		{"88 00 ffffffffffffffff 00000002 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 fffffffffffffffe 00000002 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 8000000000000000 00000001 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 00000000000fffff 00000001 00 00", NoSense, 0},
		{"88 00 00000000000fffff 00000002 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 0000000000100000 00000001 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 0000000000100000 00000000 00 00", NoSense, 0},
		{"88 00 0000000000100001 00000000 00 00", IllegalRequest, LBAOutOfRange},
		{"88 00 0000000000000000 00000800 00 00", NoSense, 0},
		{"88 00 0000000000000000 00000801 00 00", IllegalRequest, InvalidFieldInCDB},
		{"88 00 0000000000000000 ffffffff 00 00", IllegalRequest, LBAOutOfRange},
		{"28 00 ffffffff 00 0000 00", IllegalRequest, LBAOutOfRange},
		{"28 00 00000000 00 ffff 00", IllegalRequest, InvalidFieldInCDB},
		{"a8 00 00000000 00000801 00 00", IllegalRequest, InvalidFieldInCDB},
		{"08 0f ff ff 01 00", NoSense, 0},
		{"08 0f ff ff 02 00", IllegalRequest, LBAOutOfRange},
		{"08 0f ff 01 00 00", IllegalRequest, LBAOutOfRange}, // 0 is 256 blocks
		{"08 1f ff ff 01 00", IllegalRequest, LBAOutOfRange},
		{"28 e0 00000000 00 0001 00", IllegalRequest, InvalidFieldInCDB},
		{"91 00 ffffffffffffffff 00000002 00 00", IllegalRequest, LBAOutOfRange},
		{"91 02 0000000000000000 00000000 00 00", NoSense, 0},
		{"35 00 00100001 00 0000 00", IllegalRequest, LBAOutOfRange},
		{"8f 02 ffffffffffffffff 00000002 00 00", IllegalRequest, LBAOutOfRange},
		{"8f 02 0000000000000000 00000801 00 00", IllegalRequest, InvalidFieldInCDB},
		{"8f 06 0000000000000000 00000801 00 00", IllegalRequest, InvalidFieldInCDB}, // one block, but compared with all
		{"8f 00 0000000000000000 00100000 00 00", NoSense, 0},
	} {
		i.in(c.cdb, 1<<20).expect(t, c.cdb, c.key, c.code)
		if out := strings.NewReplacer("88 0", "8a 0", "28 ", "2a ", "a8 ", "aa ", "08 0", "0a 0", "08 1", "0a 1").Replace(c.cdb); c.key != NoSense && out[:2] != c.cdb[:2] {
			i.run(0, cdbOf(out), make([]byte, 512), 512).expect(t, out, c.key, c.code)
		}
	}
	// A write of a gigabyte is refused before any buffer is asked for, and the page states the limit.
	next := i.nexus.Start(&Command{CDB: cdbOf("8a 00 0000000000000000 00200000 00 00"), HasOut: true, ExpectedOut: 1 << 30})
	if next != NextDone {
		t.Errorf("Next is %v", next)
	}
	if b := i.mustGood("12 01 b0 00 ff 00", 255); binary.BigEndian.Uint32(b[8:]) != 0x800 {
		t.Errorf("Block Limits %x", b)
	}
}

func TestB78_B83_B85_Capacity(t *testing.T) {
	for _, c := range []struct {
		cfg       LogicalUnitConfig
		ten, long string
	}{
		{LogicalUnitConfig{Store: mustNull(t, 1<<20)}, "000007ff00000200", "00000000000007ff 00000200 0000"},
		{LogicalUnitConfig{Store: mustNull(t, 1<<20), BlockSize: 4096}, "000000ff00001000", "00000000000000ff 00001000 0000"},
		{LogicalUnitConfig{Store: mustNull(t, 1<<20+1000), PhysicalExponent: 3}, "0000080000000200", "0000000000000800 00000200 0003"},
		{LogicalUnitConfig{Store: mustNull(t, 1<<41)}, "ffffffff00000200", "00000000ffffffff 00000200 0000"},
		{LogicalUnitConfig{Store: mustNull(t, 1<<50)}, "ffffffff00000200", "000001ffffffffff 00000200 0000"},
	} {
		i := withUnit(t, c.cfg)
		if b := i.mustGood("25", 8); !bytes.Equal(b, cdbOf(c.ten)[:8]) {
			t.Errorf("READ CAPACITY(10) %x, want %s", b, c.ten)
		}
		want := make([]byte, 32) // LBPME 0, as page B2 has no provisioning
		copy(want, cdbOf(c.long))
		if b := i.mustGood("9e 10 0000000000000000 00000020 00 00", 32); !bytes.Equal(b, want) {
			t.Errorf("READ CAPACITY(16) %x, want %x", b, want)
		}
		if b := i.mustGood("12 01 b2 00 ff 00", 255); !bytes.Equal(b, []byte{0, 0xB2, 0, 4, 0, 0, 0, 0}) {
			t.Errorf("page B2 %x", b)
		}
	}
}

func TestB84_Configuration(t *testing.T) {
	store := mustNull(t, 1<<20)
	good := LogicalUnitConfig{Name: "x", Store: store, Identity: NewIdentity("x")}
	for want, edit := range map[string]func(*LogicalUnitConfig){
		"block size 3":         func(c *LogicalUnitConfig) { c.BlockSize = 3 },
		"block size 1000":      func(c *LogicalUnitConfig) { c.BlockSize = 1000 },
		"block size 1024":      func(c *LogicalUnitConfig) { c.BlockSize = 1024 },
		"block size 42949":     func(c *LogicalUnitConfig) { c.BlockSize = 4294967295 },
		"exponent 16":          func(c *LogicalUnitConfig) { c.PhysicalExponent = 16 },
		"no store":             func(c *LogicalUnitConfig) { c.Store = nil },
		"less than one block":  func(c *LogicalUnitConfig) { c.Store = mustNull(t, 511) },
		"smaller than that of": func(c *LogicalUnitConfig) { c.Store = bigBlocks{store}; c.BlockSize = 512 },
		"transfer of 1000":     func(c *LogicalUnitConfig) { c.MaxTransferBytes = 1000 },
		"transfer of 70000":    func(c *LogicalUnitConfig) { c.MaxTransferBytes = 70000 },
		"transfer of 1342":     func(c *LogicalUnitConfig) { c.MaxTransferBytes = 128 << 20 },
		"no serial":            func(c *LogicalUnitConfig) { c.Identity.Serial = "" },
		"serial \"é":           func(c *LogicalUnitConfig) { c.Identity.Serial = "é" },
		"more than 36":         func(c *LogicalUnitConfig) { c.Identity.Serial = strings.Repeat("s", 37) },
		"more than 8":          func(c *LogicalUnitConfig) { c.Identity.Vendor = "VENDORTOO" },
		"more than 16":         func(c *LogicalUnitConfig) { c.Identity.Product = strings.Repeat("p", 17) },
		"no NAA":               func(c *LogicalUnitConfig) { c.Identity.NAA = [16]byte{} },
		"begin with 6":         func(c *LogicalUnitConfig) { c.Identity.NAA[0] = 0x30 },
	} {
		cfg := good
		edit(&cfg)
		if _, err := NewLogicalUnit(cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%v; want %q and the name in it", err, want)
		}
	}
	lu, err := NewLogicalUnit(LogicalUnitConfig{Name: "x", Store: bigBlocks{store}, Identity: NewIdentity("x")})
	if err != nil || lu.blockSize != 4096 {
		t.Errorf("a 4Kn medium: %v", err)
	}
	d := NewDevice(DeviceConfig{PortName: testPort})
	if d.SetLUN(16384, lu) == nil || d.SetLUN(0, nil) == nil {
		t.Error("SetLUN takes what it must not")
	}
}

// bigBlocks looks like a medium with blocks of 4096 bytes.
type bigBlocks struct{ backstore.Store }

func (b bigBlocks) Info() backstore.Info {
	info := b.Store.Info()
	info.LogicalBlockSize = 4096
	return info
}

func TestB88_LUNBounds(t *testing.T) {
	i := withStore(t, mustNull(t, 1<<20))
	for _, lun := range []uint64{1 << 48, 0xFF << 48, 0x4001 << 48, 0x7FFF << 48, 0x8000 << 48, 0xC101<<48 | 1, 0xD2004000 << 32, 0xD2FFFFFF << 32, ^uint64(0), 1} {
		if lun == 0xC101<<48|1 {
			i.run(lun, cdbOf("00"), nil, 0).expect(t, "not quite well known", IllegalRequest, LogicalUnitNotSupported)
			continue
		}
		i.run(lun, cdbOf("00"), nil, 0).expect(t, fmt.Sprintf("LUN %016x", lun), IllegalRequest, LogicalUnitNotSupported)
		if i.nexus.LookupLUN(lun) != nil {
			t.Errorf("LUN %016x is found", lun)
		}
	}
	for _, lun := range []uint64{0, 0x4000 << 48, 0xD200 << 48} {
		i.run(lun, cdbOf("00"), nil, 0).expect(t, fmt.Sprintf("LUN %016x", lun), NoSense, 0)
	}
}

func TestB139_StoreErrors(t *testing.T) {
	store := faultstore.New(mustRAM(t, 1<<20))
	i := withStore(t, store)
	write := func() result { return i.run(0, cdbOf("2a 00 00000000 00 0001 00"), make([]byte, 512), 512) }
	for _, async := range []bool{false, true} {
		store.Async(async)
		for _, c := range []struct {
			op   backstore.Op
			err  error
			key  SenseKey
			code AdditionalSense
		}{
			{backstore.OpWrite, backstore.ErrNoSpace, DataProtect, SpaceAllocationFailed},
			{backstore.OpWrite, fmt.Errorf("wrapped: %w", backstore.ErrNoSpace), DataProtect, SpaceAllocationFailed},
			{backstore.OpWrite, backstore.ErrIO, MediumError, WriteError},
			{backstore.OpWrite, fmt.Errorf("unknown"), MediumError, WriteError},
			{backstore.OpWrite, backstore.ErrReadOnly, DataProtect, WriteProtected},
			{backstore.OpWrite, backstore.ErrOutOfRange, IllegalRequest, LBAOutOfRange},
			{backstore.OpWrite, backstore.ErrCanceled, AbortedCommand, NoAdditionalSense},
			{backstore.OpWrite, backstore.ErrClosed, IllegalRequest, LogicalUnitNotSupported},
			{backstore.OpRead, backstore.ErrIO, MediumError, UnrecoveredReadError},
			{backstore.OpRead, fmt.Errorf("unknown"), MediumError, UnrecoveredReadError},
			{backstore.OpFlush, backstore.ErrIO, MediumError, WriteError},
			{backstore.OpFlush, backstore.ErrNoSpace, DataProtect, SpaceAllocationFailed},
		} {
			store.Fail(c.op, 1, c.err)
			var r result
			switch c.op {
			case backstore.OpRead:
				r = i.in("28 00 00000000 00 0001 00", 512)
				if r.kind != ResidualUnderflow || r.residual != 512 {
					t.Errorf("residual %v %d", r.kind, r.residual)
				}
			case backstore.OpWrite:
				r = write()
			case backstore.OpFlush:
				r = i.in("35", 0)
			}
			r.expect(t, fmt.Sprintf("%v: %v", c.op, c.err), c.key, c.code)
			write().expect(t, "the next write", NoSense, 0)
		}
	}
}

// An unfinished store holds up one command and the close of the unit, not more.
func TestB91_HungStore(t *testing.T) {
	store := faultstore.New(mustRAM(t, 1<<20))
	i := withStore(t, store)
	store.Hang(backstore.OpRead)
	c := &i.cmd
	c.CDB, c.HasIn, c.HasOut, c.ExpectedIn, c.LUN = cdbOf("28 00 00000000 00 0001 00"), true, false, 512, 0
	if next := i.nexus.Start(c); next != NextDataIn {
		t.Fatal(next)
	}
	c.Data = [][]byte{make([]byte, 512)}
	if next := c.Execute(); next != NextPending {
		t.Fatal(next)
	}
	lu := i.nexus.LookupLUN(0)
	i.nexus.Close()
	other := newInitiator(t, i.nexus.device, "other").ready()
	other.mustGood("12 00 00 00 ff 00", 255)
	closed := make(chan error)
	go func() { closed <- lu.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("closed with a command in the store: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := lu.closeWithin(0); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "test") {
		t.Errorf("close in vain: %v", err)
	}
	other.in("00", 0).expect(t, "at a closing unit", IllegalRequest, LogicalUnitNotSupported)
	c.Abort()
	store.Release()
	<-i.done
	if c.Status != StatusCheckCondition || c.Sense[2] != byte(AbortedCommand) {
		t.Errorf("%v %x", c.Status, c.Sense[:18])
	}
	c.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
