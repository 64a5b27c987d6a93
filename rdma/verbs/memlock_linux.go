package verbs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// MemlockError says that registering memory will fail, and how to change that.
type MemlockError struct {
	Need   uint64 // bytes wanted
	Pinned uint64 // bytes that this process has pinned already
	Limit  uint64 // RLIMIT_MEMLOCK
	Hard   uint64 // its hard limit: up to here the process could raise it itself
	// InContainer is true when root's CAP_IPC_LOCK does not count, because the user namespace is not the first one.
	InContainer bool
}

func (e *MemlockError) Error() string {
	s := fmt.Sprintf("RLIMIT_MEMLOCK is %s, needed are %s", size(e.Limit), humanize.IBytes(e.Need))
	if e.Pinned != 0 {
		s += fmt.Sprintf(" beside %s pinned already", humanize.IBytes(e.Pinned))
	}
	if e.InContainer {
		s += "; CAP_IPC_LOCK of a user namespace does not lift it"
	}
	return s + "; " + memlockRemedy
}

const memlockRemedy = "raise it: `ulimit -l unlimited` before the start, or LimitMEMLOCK=infinity in the systemd unit, or grant CAP_IPC_LOCK"

// memlockState is what decides whether memory may be pinned.
type memlockState struct {
	soft, hard  uint64
	pinned      uint64
	ipcLock     bool // CAP_IPC_LOCK is in the effective set
	firstUserNS bool
}

// CheckMemlock tells, before anything is registered, whether need more bytes may be pinned: nil, or a [*MemlockError]. The
// kernel counts pinned pages of a process against RLIMIT_MEMLOCK unless it has CAP_IPC_LOCK in the first user namespace.
func CheckMemlock(need uint64) error {
	s, err := readMemlock()
	if err != nil {
		return err
	}
	return s.check(need)
}

func (s memlockState) check(need uint64) error {
	if s.ipcLock && s.firstUserNS || s.soft == unix.RLIM_INFINITY {
		return nil
	}
	if s.pinned <= s.soft && need <= s.soft-s.pinned {
		return nil
	}
	return &MemlockError{Need: need, Pinned: s.pinned, Limit: s.soft, Hard: s.hard, InContainer: s.ipcLock && !s.firstUserNS}
}

func readMemlock() (memlockState, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return memlockState{}, fmt.Errorf("read RLIMIT_MEMLOCK: %w", err)
	}
	s := memlockState{soft: lim.Cur, hard: lim.Max}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return s, fmt.Errorf("read capabilities: %w", err)
	}
	s.ipcLock = statusField(status, "CapEff", 16)>>unix.CAP_IPC_LOCK&1 == 1
	s.pinned = statusField(status, "VmPin", 10) << 10
	// Absent (a kernel without user namespaces) means the first one.
	idMap, err := os.ReadFile("/proc/self/uid_map")
	s.firstUserNS = err != nil || bytes.Equal(bytes.Join(bytes.Fields(idMap), []byte(" ")), []byte("0 0 4294967295"))
	return s, nil
}

// statusField reads "Name:\t123 kB" of /proc/PID/status; 0 when it is not there.
func statusField(status []byte, name string, base int) uint64 {
	for line := range bytes.Lines(status) {
		key, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || string(key) != name {
			continue
		}
		if f := bytes.Fields(value); len(f) > 0 {
			n, _ := strconv.ParseUint(string(f[0]), base, 64)
			return n
		}
	}
	return 0
}

func size(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return humanize.IBytes(n)
}

// memlockHint is the advice for an ENOMEM of a registration.
func memlockHint(need uint64) string {
	s, err := readMemlock()
	if err != nil {
		return memlockRemedy
	}
	if err := s.check(need); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK (%s) is not the reason: the machine or its adapter is out of memory", size(s.soft))
}
