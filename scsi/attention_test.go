package scsi

import (
	"testing"
)

func TestUnitAttention(t *testing.T) {
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
	lu0, lu1 := mustUnit(t, LogicalUnitConfig{Name: "0", Store: mustNull(t, 1<<20)}), mustUnit(t, LogicalUnitConfig{Name: "1", Store: mustNull(t, 1<<20)})
	for n, lu := range []*LogicalUnit{lu0, lu1} {
		if err := d.SetLUN(uint16(n), lu); err != nil {
			t.Fatal(err)
		}
	}
	a, b := newInitiator(t, d, "a"), newInitiator(t, d, "b")
	tur := func(i *initiator, lun uint16, what string, want AdditionalSense) {
		t.Helper()
		r := i.run(EncodeLUN(lun), cdbOf("00"), nil, 0)
		if want == 0 {
			r.expect(t, what, NoSense, 0)
		} else {
			r.expect(t, what, UnitAttention, want)
		}
	}
	// INQUIRY and REPORT LUNS do not take it away; an unknown command does report it.
	a.mustGood("12 00 00 00 ff 00", 255)
	a.mustGood("a0 00 00 00 00 00 00 00 00 ff", 255)
	a.in("ff", 0).expect(t, "unknown command", UnitAttention, PowerOnResetOrBusDeviceReset)
	tur(a, 0, "second", 0)
	tur(a, 1, "the other unit has its own", PowerOnResetOrBusDeviceReset)
	tur(a, 1, "second", 0)
	// REQUEST SENSE reports it.
	if s := b.mustGood("03 00 00 00 12 00", 18); s[2] != 6 || s[12] != 0x29 {
		t.Errorf("REQUEST SENSE: %x", s)
	}
	tur(b, 0, "after REQUEST SENSE", 0)
	if s := b.mustGood("03 01 00 00 12 00", 18); len(s) != 8 || s[0] != 0x72 || s[1] != 0 {
		t.Errorf("REQUEST SENSE, descriptors: %x", s)
	}
	tur(b, 1, "power on", PowerOnResetOrBusDeviceReset)

	lu0.Reset()
	lu0.Reset()
	tur(a, 0, "who resets", BusDeviceResetFunctionOccurred)
	tur(a, 0, "who resets, once", 0)
	tur(b, 0, "reset", BusDeviceResetFunctionOccurred)
	tur(b, 0, "reset, once", 0)
	tur(b, 1, "the other unit", 0)

	d.Reset(false)
	tur(a, 0, "target reset", SCSIBusResetOccurred)
	tur(a, 1, "target reset", SCSIBusResetOccurred)
	tur(b, 0, "who resets", SCSIBusResetOccurred)
	tur(b, 1, "who resets", SCSIBusResetOccurred)
	d.Reset(true)
	tur(a, 0, "cold reset", PowerOnOccurred)
	tur(b, 0, "cold reset", PowerOnOccurred)
	tur(a, 1, "cold reset", PowerOnOccurred)
	tur(b, 1, "cold reset", PowerOnOccurred)

	// CLEAR TASK SET concerns those who have commands.
	lu0.ClearTaskSet(a.nexus)
	tur(b, 0, "no commands", 0)
	c := Command{LUN: EncodeLUN(0), CDB: cdbOf("2a 00 00000000 00 0001 00"), HasOut: true, ExpectedOut: 512}
	if next := b.nexus.Start(&c); next != NextDataOut {
		t.Fatal(next)
	}
	lu0.ClearTaskSet(a.nexus)
	c.Release()
	tur(b, 0, "cleared", CommandsClearedByAnotherPort)
	tur(a, 0, "who clears", 0)

	// In order, no two alike, and bounded: too many become a reset.
	for range 3 {
		a.nexus.AddUnitAttention(lu0, CapacityDataHasChanged)
		a.nexus.AddUnitAttention(lu0, InquiryDataHasChanged)
	}
	tur(a, 0, "first", CapacityDataHasChanged)
	tur(a, 0, "second", InquiryDataHasChanged)
	tur(a, 0, "no third", 0)
	for i := range maxAttentions + 1 {
		a.nexus.AddUnitAttention(lu0, AdditionalSense(0x2A00+i))
	}
	tur(a, 0, "too many", PowerOnResetOrBusDeviceReset)
	tur(a, 0, "one is left", 0)
	a.nexus.AddUnitAttention(mustUnit(t, LogicalUnitConfig{Store: mustNull(t, 1<<20)}), CapacityDataHasChanged)
	tur(a, 0, "for a unit that it does not see", 0)
}

// known-faults B154, F6, C30: LUNs come and go under running sessions.
func TestB154_LiveLUNs(t *testing.T) {
	a := withStore(t, mustNull(t, 1<<20))
	d := a.nexus.device
	b := newInitiator(t, d, "b").ready()
	second := mustUnit(t, LogicalUnitConfig{Name: "second", Store: mustNull(t, 2<<20)})
	if err := d.SetLUN(1, second); err != nil {
		t.Fatal(err)
	}
	a.in("00", 0).expect(t, "added", UnitAttention, ReportedLUNsDataHasChanged)
	a.in("00", 0).expect(t, "once", NoSense, 0)
	a.run(EncodeLUN(1), cdbOf("00"), nil, 0).expect(t, "the new unit", NoSense, 0)
	// REPORT LUNS tells it too.
	b.mustGood("a0 00 00 00 00 00 00 00 00 ff", 255)
	b.in("00", 0).expect(t, "after REPORT LUNS", NoSense, 0)
	// Setting the same again is no change; setting another one is.
	if err := d.SetLUN(1, second); err != nil {
		t.Fatal(err)
	}
	a.in("00", 0).expect(t, "the same again", NoSense, 0)
	if err := d.SetLUN(1, mustUnit(t, LogicalUnitConfig{Name: "third", Store: mustNull(t, 2<<20)})); err != nil {
		t.Fatal(err)
	}
	a.run(EncodeLUN(1), cdbOf("00"), nil, 0).expect(t, "replaced", UnitAttention, InquiryDataHasChanged)
	a.run(EncodeLUN(1), cdbOf("00"), nil, 0).expect(t, "replaced", UnitAttention, ReportedLUNsDataHasChanged)
	if n := len(second.paths); n != 0 {
		t.Errorf("%d paths are left at the unit that went", n)
	}
	d.RemoveLUN(1)
	d.RemoveLUN(1)
	d.RemoveLUN(9)
	a.run(EncodeLUN(1), cdbOf("00"), nil, 0).expect(t, "removed", IllegalRequest, LogicalUnitNotSupported)
	if got := d.LUNs(); len(got) != 1 || got[0] != 0 {
		t.Errorf("LUNs %v", got)
	}
	// A unit with a running command is forgotten when that was released.
	lu := a.nexus.LookupLUN(0)
	c := Command{CDB: cdbOf("28 00 00000000 00 0001 00"), HasIn: true, ExpectedIn: 512}
	a.in("00", 0)
	if next := a.nexus.Start(&c); next != NextDone || c.Status != StatusGood {
		t.Fatal(next, c.Status)
	}
	d.RemoveLUN(0)
	if lu.running() != 1 {
		t.Errorf("%d commands", lu.running())
	}
	c.Release()
	if err := lu.Close(); err != nil || len(lu.paths) != 0 {
		t.Errorf("%v, %d paths", err, len(lu.paths))
	}
}

func TestNexusClose(t *testing.T) {
	a := withStore(t, mustNull(t, 1<<20))
	lu := a.nexus.LookupLUN(0)
	if info := lu.Info(); info.Nexuses != 1 || info.Name != "test" || info.Blocks != 2048 {
		t.Errorf("%+v", info)
	}
	a.nexus.Close()
	a.nexus.Close()
	if info := lu.Info(); info.Nexuses != 0 {
		t.Errorf("%d nexuses", info.Nexuses)
	}
	if a.nexus.LookupLUN(0) != nil || len(a.nexus.device.nexuses) != 0 {
		t.Error("the nexus still sees LUNs")
	}
}

func TestPanicIsHardwareError(t *testing.T) {
	var seen []byte
	i := withUnit(t, LogicalUnitConfig{Store: panicStore{mustNull(t, 1<<20)}, OnPanic: func(_ *LogicalUnit, cdb []byte, _ any) { seen = cdb }})
	i.in("28 00 00000000 00 0001 00", 512).expect(t, "READ", HardwareError, InternalTargetFailure)
	i.in("00", 0).expect(t, "the next command", NoSense, 0)
	if lu := i.nexus.LookupLUN(0); lu.Info().Panics != 1 || lu.running() != 0 || len(seen) == 0 || seen[0] != 0x28 {
		t.Errorf("panics %d, running %d, CDB %x", lu.Info().Panics, lu.running(), seen)
	}
}
