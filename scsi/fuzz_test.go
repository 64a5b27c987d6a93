package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"iserd/backstore/faultstore"
)

// A CDB never crashes the device server, moves more than was expected, or allocates by what it claims; residuals add up.
func FuzzCDB(f *testing.F) {
	for _, op := range commandTable() {
		cdb := make([]byte, op.length)
		cdb[0] = byte(op.code)
		if op.serviceAction != noServiceAction {
			cdb[1] = byte(op.serviceAction)
		}
		cdb[op.length-2] = 8
		f.Add(uint64(0), cdb, uint32(4096), byte(1))
		f.Add(uint64(1)<<48, cdb, uint32(4096), byte(2))
	}
	f.Add(wellKnownReportLUNs, cdbOf("a0 00 02 00 00 00 00 00 00 ff"), uint32(255), byte(1))
	f.Add(uint64(9)<<48, cdbOf("88 00 ffffffffffffffff 00000002"), uint32(1024), byte(1))
	f.Add(uint64(0), []byte{}, uint32(0), byte(0))
	f.Fuzz(func(t *testing.T, lun uint64, cdb []byte, expect uint32, bits byte) {
		if len(cdb) > 260 {
			return
		}
		expect %= 3 << 20 // the transport holds this much
		d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
		if err := d.SetLUN(0, mustUnit(t, LogicalUnitConfig{Store: mustNull(t, 1<<40), OnPanic: reportPanic(t)})); err != nil {
			t.Fatal(err)
		}
		s := faultstore.New(mustRAM(t, 64<<10))
		s.Async(bits&4 != 0)
		if err := d.SetLUN(1, mustUnit(t, LogicalUnitConfig{Name: "ram", Store: s, BlockSize: 4096, ReadOnly: bits&8 != 0, OnPanic: reportPanic(t)})); err != nil {
			t.Fatal(err)
		}
		i := newInitiator(t, d, "i")
		if bits&16 == 0 {
			i.run(lun, cdbOf("03 00 00 00 12 00"), nil, 18) // no unit attention in the way
		}
		c := &i.cmd
		c.LUN, c.CDB = lun, cdb
		c.HasIn, c.HasOut, c.ExpectedIn, c.ExpectedOut = bits&1 != 0, bits&2 != 0, 0, 0
		if c.HasIn {
			c.ExpectedIn = expect
		}
		if c.HasOut {
			c.ExpectedOut = expect
		}
		var out []byte
		if c.HasOut {
			out = make([]byte, expect)
		}
		r := i.exec(out)
		if r.key == HardwareError {
			t.Fatalf("%x: %v", cdb, r)
		}
		if r.kind == ResidualUnderflow && r.residual > expect {
			t.Fatalf("%x: underflow of %d of %d", cdb, r.residual, expect)
		}
		if c.HasIn && !c.HasOut && r.kind == ResidualUnderflow && uint32(len(r.data))+r.residual != expect {
			t.Fatalf("%x: %d bytes and an underflow of %d are not %d", cdb, len(r.data), r.residual, expect)
		}
		if r.status != StatusGood && r.kind == ResidualOverflow {
			t.Fatalf("%x: %v with an overflow", cdb, r)
		}
		if lu := i.nexus.LookupLUN(lun); lu != nil && lu.running() != 0 {
			t.Fatalf("%x: %d commands are left", cdb, lu.running())
		}
	})
}

func reportPanic(t *testing.T) func(*LogicalUnit, []byte, any) {
	return func(_ *LogicalUnit, cdb []byte, reason any) { t.Errorf("%x: panic: %v", cdb, reason) }
}

// MODE SENSE(6) and (10) parse by their own length fields, and what is cut is a prefix.
func FuzzModeSense(f *testing.F) {
	f.Add(byte(0x00), byte(0x3F), byte(0), uint16(255), true)
	f.Add(byte(0x18), byte(0x48), byte(0xFF), uint16(8), false)
	f.Add(byte(0x10), byte(0xC0), byte(1), uint16(0), true)
	f.Fuzz(func(t *testing.T, second, page, subpage byte, allocation uint16, long bool) {
		i := withStore(t, mustNull(t, 1<<30))
		cdb := func(n uint16) []byte {
			if long {
				return binary.BigEndian.AppendUint16([]byte{0x5A, second, page, subpage, 0, 0, 0}, n)
			}
			return []byte{0x1A, second, page, subpage, byte(min(n, 255))}
		}
		full := i.run(0, append(cdb(0xFFFF), 0), nil, 1<<20)
		cut := i.run(0, append(cdb(allocation), 0), nil, 1<<20)
		if full.status != cut.status || full.code != cut.code {
			t.Fatalf("%v, and cut %v", full, cut)
		}
		if full.status != StatusGood {
			if page>>6 == 3 && full.code != SavingParametersNotSupported {
				t.Fatalf("page %02x: %v", page, full)
			}
			return
		}
		n := int(allocation)
		if !long {
			n = min(n, 255)
		}
		if !bytes.Equal(cut.data, full.data[:min(n, len(full.data))]) {
			t.Fatalf("%x is not a prefix of %x", cut.data, full.data)
		}
		b := full.data
		length, header, descriptors := int(b[0])+1, 4, int(b[3])
		if long {
			length, header, descriptors = int(binary.BigEndian.Uint16(b))+2, 8, int(binary.BigEndian.Uint16(b[6:]))
			if (b[4]&1 != 0) != (descriptors == 16) {
				t.Fatalf("LONGLBA and a descriptor of %d bytes", descriptors)
			}
		}
		if length != len(b) {
			t.Fatalf("says %d bytes, has %d", length, len(b))
		}
		if second&0x08 != 0 && descriptors != 0 {
			t.Fatal("a descriptor in spite of DBD")
		}
		last := byte(0)
		for p := b[header+descriptors:]; len(p) > 0; p = p[2+int(p[1]):] {
			if p[0] <= last || page&0x3F != 0x3F && p[0] != page&0x3F {
				t.Fatalf("page %02X after %02X", p[0], last)
			}
			last = p[0]
		}
	})
}

// A LUN field names at most one number, and the field that is made for that number names it.
func FuzzLUN(f *testing.F) {
	for _, lun := range []uint64{0, 1 << 48, 0x4005 << 48, 0xD2000005 << 32, 0xC101 << 48, 0x8000 << 48, ^uint64(0)} {
		f.Add(lun)
	}
	f.Fuzz(func(t *testing.T, lun uint64) {
		n := decodeLUN(lun)
		if n == notFound {
			return
		}
		if n < 0 || n > MaxLUN {
			t.Fatalf("%016x is LUN %d", lun, n)
		}
		if again := decodeLUN(EncodeLUN(uint16(n))); again != n {
			t.Fatalf("LUN %d becomes %d", n, again)
		}
	})
}

// No parameter list of PERSISTENT RESERVE OUT, whole or in pieces, at whatever state, crashes the device server or leaves
// reservations that contradict each other.
func FuzzPersistentOut(f *testing.F) {
	list := func(key, service uint64, flags byte) []byte {
		b := binary.BigEndian.AppendUint64(nil, key)
		b = binary.BigEndian.AppendUint64(b, service)
		return append(b, 0, 0, 0, 0, flags, 0, 0, 0)
	}
	f.Add(list(1, 2, 0), byte(saPreempt), byte(5), byte(7), uint16(24))
	f.Add(list(0, 9, 0), byte(saRegisterAndIgnore), byte(1), byte(24), uint16(24))
	f.Add(list(1, 0, aptpl), byte(saRegister), byte(8), byte(1), uint16(24))
	f.Add(list(1, 1, 0), byte(saRelease), byte(3), byte(3), uint16(24))
	f.Add(append(list(1, 3, specIPT), 0, 0, 0, 4, 1, 2, 3, 4), byte(saRegister), byte(0), byte(9), uint16(32))
	f.Add(list(1, 0, 0)[:23], byte(saClear), byte(7), byte(0), uint16(24))
	f.Fuzz(func(t *testing.T, out []byte, sa, kind, pieces byte, length uint16) {
		if len(out) > 4096 {
			return
		}
		h := hosts(t, "a", "b")
		h[0].mustOut(saRegister, 0, 0, 1)
		h[1].mustOut(saRegister, 0, 0, 2)
		held := allReservationTypes[int(kind>>4)%len(allReservationTypes)]
		h[1].mustOut(saReserve, held, 2, 0)
		lu := h[0].nexus.LookupLUN(0)
		lu.cfg.OnPanic = reportPanic(t)
		h[0].seg = int(pieces)
		before, _ := h[1].persistentIn(saReadKeys)
		r := h[0].run(0, []byte{0x5F, sa & serviceActionMask, kind & 0x0F, 0, 0, 0, 0, byte(length >> 8), byte(length), 0}, out, uint32(len(out)))
		h[1].attentions()
		after, _ := h[1].persistentIn(saReadKeys)
		if r.status != StatusGood && before != after || length != persistentListLength && r.status == StatusGood {
			t.Fatalf("%v, generation %d, then %d", r, before, after)
		}
		s := &lu.persistent
		reservation := s.reservation.Load()
		if reservation == nil {
			return
		}
		for _, m := range s.registrants {
			if _, ok := reservation.members[m.nexusName]; ok != (reservation.kind.shared() || m.nexusName == reservation.holder) || m.key == 0 {
				t.Fatalf("%v, key %x: member %v", reservation.kind, m.key, ok)
			}
		}
		if len(s.registrants) == 0 || !reservation.kind.allHold() && s.findLocked(reservation.holder) < 0 || len(reservation.members) > len(s.registrants) {
			t.Fatalf("%v without a holder", reservation.kind)
		}
	})
}
