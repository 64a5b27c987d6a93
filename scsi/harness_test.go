package scsi

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"iserd/backstore"
	"iserd/backstore/null"
	"iserd/backstore/ram"
)

// initiator drives a nexus as a transport does.
type initiator struct {
	t     testing.TB
	nexus *ITNexus
	cmd   Command
	done  chan struct{}
	seg   int // size of the buffers that it gives; 0 is one buffer
}

func newInitiator(t testing.TB, d *Device, name string) *initiator {
	i := &initiator{t: t, nexus: d.NewNexus(name), done: make(chan struct{}, 1)}
	i.cmd.Done = func(*Command) { i.done <- struct{}{} }
	t.Cleanup(i.nexus.Close)
	return i
}

// result is what an initiator sees of a finished command.
type result struct {
	status   Status
	key      SenseKey
	code     AdditionalSense
	sense    []byte
	data     []byte
	kind     ResidualKind
	residual uint32
}

func (r result) String() string {
	s := r.status.String()
	if r.status == StatusCheckCondition {
		s += fmt.Sprintf(" %X/%02X/%02X (%v, %v)", uint8(r.key), r.code.ASC(), r.code.ASCQ(), r.key, r.code)
	}
	return s
}

func cdbOf(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	for len(b) < 16 { // as the BHS carries it
		b = append(b, 0)
	}
	return b
}

func (i *initiator) buffers(n uint32) [][]byte {
	if i.seg == 0 {
		return [][]byte{make([]byte, n)}
	}
	var list [][]byte
	for n > 0 {
		m := min(n, uint32(i.seg))
		list = append(list, make([]byte, m))
		n -= m
	}
	return list
}

// run runs one command. expect is the EDTL; out, if not nil, is the data to write and sets W; otherwise R is set if
// expect is not zero.
func (i *initiator) run(lun uint64, cdb []byte, out []byte, expect uint32) result {
	c := &i.cmd
	c.LUN, c.CDB = lun, cdb
	c.HasIn, c.HasOut, c.ExpectedIn, c.ExpectedOut = out == nil && expect > 0, out != nil, 0, 0
	if c.HasIn {
		c.ExpectedIn = expect
	} else {
		c.ExpectedOut = expect
	}
	return i.exec(out)
}

func (i *initiator) exec(out []byte) result {
	i.t.Helper()
	c := &i.cmd
	for next := i.nexus.Start(c); next != NextDone; {
		switch next {
		case NextDataOut:
			if c.DataOutLength == 0 || c.DataOutLength > c.ExpectedOut {
				i.t.Fatalf("asks for %d bytes of data-out, expected %d", c.DataOutLength, c.ExpectedOut)
			}
			c.Data = i.buffers(c.DataOutLength)
			rest := out
			for _, b := range c.Data {
				rest = rest[copy(b, rest):]
			}
			next = c.Execute()
		case NextDataIn:
			if c.DataInLength == 0 || c.DataInLength > c.ExpectedIn {
				i.t.Fatalf("wants room for %d bytes of data-in, expected %d", c.DataInLength, c.ExpectedIn)
			}
			c.Data = i.buffers(c.DataInLength)
			next = c.Execute()
		case NextExecute:
			next = c.Execute()
		case NextPending:
			<-i.done
			next = NextDone
		default:
			i.t.Fatalf("Next is %v", next)
		}
	}
	r := result{status: c.Status, data: bytes.Join(c.Data, nil)}
	if uint32(len(r.data)) != c.DataInLength && !(c.HasOut && c.DataInLength == 0) {
		i.t.Fatalf("%d bytes of data-in, DataInLength %d", len(r.data), c.DataInLength)
	}
	if c.DataInLength > c.ExpectedIn {
		i.t.Fatalf("%d bytes of data-in for %d expected", c.DataInLength, c.ExpectedIn)
	}
	r.kind, r.residual = c.Residual()
	r.sense = append(r.sense, c.Sense[:c.SenseLength]...)
	if c.Status == StatusCheckCondition {
		if c.SenseLength < 14 || c.Sense[0]&0x7F != 0x70 {
			i.t.Fatalf("sense data %x", r.sense)
		}
		r.key, r.code = SenseKey(c.Sense[2]&0xF), AdditionalSense(binary.BigEndian.Uint16(c.Sense[12:]))
	} else if c.SenseLength != 0 {
		i.t.Fatalf("%v with %d bytes of sense data", c.Status, c.SenseLength)
	}
	c.Release()
	return r
}

// in runs a command without data-out.
func (i *initiator) in(cdb string, expect uint32) result { return i.run(0, cdbOf(cdb), nil, expect) }

// mustGood fails the test if the command did not end well.
func (i *initiator) mustGood(cdb string, expect uint32) []byte {
	i.t.Helper()
	r := i.in(cdb, expect)
	if r.status != StatusGood {
		i.t.Fatalf("%s: %v", cdb, r)
	}
	return r.data
}

// ready takes the unit attentions of a new nexus away.
func (i *initiator) ready() *initiator {
	i.t.Helper()
	for range 10 {
		if i.in("00", 0).status == StatusGood {
			return i
		}
	}
	i.t.Fatal("never ready")
	return i
}

const testPort = "iqn.2026-12.lab.iserd:t,t,0x0001"

func mustUnit(t testing.TB, cfg LogicalUnitConfig) *LogicalUnit {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	if cfg.Identity == (Identity{}) {
		cfg.Identity = NewIdentity(cfg.Name)
		cfg.Identity.Revision = "0001"
	}
	lu, err := NewLogicalUnit(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return lu
}

func mustRAM(t testing.TB, size uint64) *ram.Store {
	t.Helper()
	s, err := ram.New(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustNull(t testing.TB, size uint64) *null.Store {
	t.Helper()
	s, err := null.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// withStore is an initiator at LUN 0 of a device over a store.
func withStore(t testing.TB, s backstore.Store) *initiator {
	t.Helper()
	return withUnit(t, LogicalUnitConfig{Store: s})
}

func withUnit(t testing.TB, cfg LogicalUnitConfig) *initiator {
	t.Helper()
	d := NewDevice(DeviceConfig{PortName: testPort, RelativePortID: 1})
	if err := d.SetLUN(0, mustUnit(t, cfg)); err != nil {
		t.Fatal(err)
	}
	return newInitiator(t, d, "iqn.2026-12.lab:i,i,0x800000000001").ready()
}

// unmapped hides the Mapper of a store, so that reads take the path through buffers.
type unmapped struct{ backstore.Store }

// panicStore is a defect.
type panicStore struct{ backstore.Store }

func (panicStore) Submit(*backstore.Request) bool { panic("a defect") }
