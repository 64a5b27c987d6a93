package scsi

import "testing"

// One 4 KiB command over a store in memory allocates nothing.
func TestReadWriteAllocs(t *testing.T) {
	for name, i := range map[string]*initiator{
		"null":       withStore(t, mustNull(t, 1<<30)),
		"ram":        withStore(t, mustRAM(t, 1<<20)),
		"ram copied": withStore(t, unmapped{mustRAM(t, 1<<20)}),
	} {
		c := &i.cmd
		c.LUN = 0
		buffers := [][]byte{make([]byte, 4096)}
		read := cdbOf("28 00 00 00 00 08 00 00 08 00")
		write := cdbOf("2a 08 00 00 00 08 00 00 08 00")
		one := func(cdb []byte, out bool) {
			c.CDB, c.HasIn, c.HasOut, c.ExpectedIn, c.ExpectedOut = cdb, !out, out, 4096, 4096
			next := i.nexus.Start(c)
			if next == NextDataOut || next == NextDataIn {
				c.Data = buffers
				next = c.Execute()
			}
			if kind, _ := c.Residual(); next != NextDone || c.Status != StatusGood || kind != ResidualNone {
				t.Fatalf("%s: %v %v %v", name, next, c.Status, kind)
			}
			if !out && (c.DataInLength != 4096 || len(c.Data) != 1) {
				t.Fatalf("%s: %d bytes in %d pieces", name, c.DataInLength, len(c.Data))
			}
			c.Release()
		}
		if n := testing.AllocsPerRun(1000, func() { one(read, false) }); n != 0 {
			t.Errorf("%s: READ allocates %v times", name, n)
		}
		if n := testing.AllocsPerRun(1000, func() { one(write, true) }); n != 0 {
			t.Errorf("%s: WRITE allocates %v times", name, n)
		}
	}
}

func BenchmarkCommand(b *testing.B) {
	for _, bench := range []struct {
		name, cdb string
		out       bool
		i         *initiator
	}{
		{"read/null", "28 00 00 00 00 08 00 00 08 00", false, withStore(b, mustNull(b, 1<<30))},
		{"read/ram", "28 00 00 00 00 08 00 00 08 00", false, withStore(b, mustRAM(b, 1<<20))},
		{"write/null", "2a 00 00 00 00 08 00 00 08 00", true, withStore(b, mustNull(b, 1<<30))},
		{"write/ram", "2a 00 00 00 00 08 00 00 08 00", true, withStore(b, mustRAM(b, 1<<20))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c := &bench.i.cmd
			buffers := [][]byte{make([]byte, 4096)}
			c.CDB, c.HasIn, c.HasOut, c.ExpectedIn, c.ExpectedOut = cdbOf(bench.cdb), !bench.out, bench.out, 4096, 4096
			b.ReportAllocs()
			for b.Loop() {
				if bench.i.nexus.Start(c) == NextDataOut {
					c.Data = buffers
					c.Execute()
				}
				c.Release()
			}
		})
	}
}

// Sessions on different cores do not slow each other down, also at one logical unit.
func BenchmarkParallel(b *testing.B) {
	d := withStore(b, mustRAM(b, 1<<20)).nexus.device
	cdb := cdbOf("28 00 00 00 00 08 00 00 08 00")
	b.RunParallel(func(pb *testing.PB) {
		n := d.NewNexus("i")
		defer n.Close()
		c := &Command{CDB: cdb, HasIn: true, ExpectedIn: 4096}
		for pb.Next() {
			n.Start(c)
			c.Release()
		}
	})
}
