package verbs

import (
	"errors"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// B105, B106: people do not connect ENOMEM with the limit; so the error names limit, need and remedy, before the start.
func TestB106_Memlock(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		s    memlockState
		need uint64
		want string // "" = enough
	}{
		"unlimited":                     {memlockState{soft: unix.RLIM_INFINITY, firstUserNS: true}, gib, ""},
		"privileged":                    {memlockState{soft: 65536, ipcLock: true, firstUserNS: true}, gib, ""},
		"exactly":                       {memlockState{soft: gib, pinned: gib / 2}, gib / 2, ""},
		"nothing needed":                {memlockState{}, 0, ""},
		"one byte short":                {memlockState{soft: gib, pinned: gib / 2}, gib/2 + 1, "beside 512 MiB"},
		"limit of old distributions":    {memlockState{soft: 65536, firstUserNS: true}, gib, "64 KiB, needed are 1.0 GiB"},
		"pinned beyond":                 {memlockState{soft: 10, pinned: 20}, 0, "RLIMIT_MEMLOCK is 10 B"},
		"no overflow":                   {memlockState{soft: gib, pinned: gib - 1}, math.MaxUint64, "RLIMIT_MEMLOCK"},
		"root of a container":           {memlockState{soft: 65536, ipcLock: true}, gib, "user namespace does not lift it"},
		"first namespace is not enough": {memlockState{soft: 65536, firstUserNS: true}, gib, "LimitMEMLOCK=infinity"},
	} {
		err := c.s.check(c.need)
		var m *MemlockError
		switch {
		case c.want == "" && err == nil:
		case c.want == "" || !errors.As(err, &m) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "ulimit -l unlimited"):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := CheckMemlock(0); err != nil {
		t.Error(err)
	}
	if h := memlockHint(4096); !strings.Contains(h, "RLIMIT_MEMLOCK") {
		t.Error(h)
	}
}

func TestStatusField(t *testing.T) {
	status := []byte("Name:\tx\nCapInh:\t00\nCapEff:\t000001ffffffffff\nVmPin:\t     128 kB\nBad:\nVmPinned:\t5 kB\n")
	for _, c := range []struct {
		name string
		base int
		want uint64
	}{{"CapEff", 16, 0x1ffffffffff}, {"VmPin", 10, 128}, {"Bad", 10, 0}, {"None", 10, 0}, {"Name", 10, 0}, {"Vm", 10, 0}} {
		if got := statusField(status, c.name, c.base); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
