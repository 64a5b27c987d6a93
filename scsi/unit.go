package scsi

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"iserd/backstore"
)

// Limits of MaxTransferBytes. The default is what one 1 MiB read-ahead or write-back unit of an initiator needs; more
// costs buffer memory per command and measures no better.
const (
	DefaultMaxTransferBytes = 1 << 20
	LimitMaxTransferBytes   = 64 << 20
)

// LogicalUnitConfig says what a logical unit is.
type LogicalUnitConfig struct {
	// Name is for messages.
	Name  string
	Store backstore.Store
	// Identity is required; see [NewIdentity].
	Identity Identity
	// BlockSize is the logical block size in bytes, 512 (also when 0) or 4096.
	BlockSize uint32
	// PhysicalExponent: a physical block is 2^PhysicalExponent logical blocks. 0 takes it from the store.
	PhysicalExponent uint8
	ReadOnly         bool
	// MaxTransferBytes is the most that one command may transfer; it is reported in the Block Limits page and enforced.
	// 0 is DefaultMaxTransferBytes.
	MaxTransferBytes uint32
	// OnPanic, if set, is told of a panic in a command handler.
	OnPanic func(lu *LogicalUnit, cdb []byte, reason any)
}

// LogicalUnit is a disk: a store with blocks, an identity and the state that SCSI gives it. It may be in the LUN maps of
// several devices.
type LogicalUnit struct {
	cfg       LogicalUnitConfig
	store     backstore.Store
	mapper    backstore.Mapper // nil: reads need buffers
	info      backstore.Info
	id        Identity
	blockSize uint32
	shift     uint8  // log2(blockSize)
	blocks    uint64 // capacity
	maxBlocks uint64 // per command
	readOnly  bool

	closed atomic.Bool
	panics atomic.Uint64
	// reservedBy is the holder of an SPC-2 reservation.
	reservedBy atomic.Pointer[ITNexus]
	persistent persistent
	scratch    sync.Pool // *scratch, for VERIFY

	mu    sync.Mutex
	paths map[*path]struct{}
}

// NewLogicalUnit checks the configuration and makes a logical unit of it. The store stays the caller's to close, after
// [LogicalUnit.Close].
func NewLogicalUnit(cfg LogicalUnitConfig) (*LogicalUnit, error) {
	fail := func(format string, args ...any) (*LogicalUnit, error) {
		return nil, fmt.Errorf("logical unit %q: "+format, append([]any{cfg.Name}, args...)...)
	}
	if cfg.Store == nil {
		return fail("no store")
	}
	info := cfg.Store.Info()
	switch cfg.BlockSize {
	case 0:
		cfg.BlockSize = 512
		if info.LogicalBlockSize == 4096 {
			cfg.BlockSize = 4096
		}
	case 512, 4096:
	default:
		return fail("block size %d: use 512 or 4096, the sizes that all initiators take", cfg.BlockSize)
	}
	if info.LogicalBlockSize > cfg.BlockSize {
		return fail("block size %d is smaller than that of the medium, %d: use 4096", cfg.BlockSize, info.LogicalBlockSize)
	}
	if info.Size < uint64(cfg.BlockSize) {
		return fail("the store has %d bytes, less than one block of %d: make it larger", info.Size, cfg.BlockSize)
	}
	if cfg.PhysicalExponent == 0 {
		for info.PhysicalBlockSize > cfg.BlockSize<<cfg.PhysicalExponent && cfg.PhysicalExponent < 15 {
			cfg.PhysicalExponent++
		}
	}
	if cfg.PhysicalExponent > 15 {
		return fail("physical block exponent %d: it has four bits, 0 to 15", cfg.PhysicalExponent)
	}
	switch {
	case cfg.MaxTransferBytes == 0:
		cfg.MaxTransferBytes = DefaultMaxTransferBytes
	case cfg.MaxTransferBytes < 64<<10 || cfg.MaxTransferBytes > LimitMaxTransferBytes || cfg.MaxTransferBytes%cfg.BlockSize != 0:
		return fail("maximum transfer of %d bytes: use a multiple of the block size from 64 KiB to 64 MiB", cfg.MaxTransferBytes)
	}
	if err := cfg.Identity.validate(); err != nil {
		return fail("%w", err)
	}
	lu := &LogicalUnit{
		cfg:       cfg,
		store:     cfg.Store,
		info:      info,
		id:        cfg.Identity,
		blockSize: cfg.BlockSize,
		blocks:    info.Size / uint64(cfg.BlockSize),
		maxBlocks: uint64(cfg.MaxTransferBytes / cfg.BlockSize),
		readOnly:  cfg.ReadOnly || info.ReadOnly,
		paths:     map[*path]struct{}{},
	}
	for 1<<lu.shift < lu.blockSize {
		lu.shift++
	}
	lu.mapper, _ = cfg.Store.(backstore.Mapper)
	return lu, nil
}

// Name is the name from the configuration.
func (lu *LogicalUnit) Name() string { return lu.cfg.Name }

// Store is the store below.
func (lu *LogicalUnit) Store() backstore.Store { return lu.store }

// LogicalUnitInfo describes a logical unit.
type LogicalUnitInfo struct {
	Name             string
	Identity         Identity
	Blocks           uint64
	BlockSize        uint32
	PhysicalExponent uint8
	ReadOnly         bool
	MaxTransferBytes uint32
	Store            backstore.Info
	// Nexuses is the number of I_T nexuses that see it, Panics the number of commands whose handler panicked.
	Nexuses int
	Panics  uint64
	// ReservedBy is the initiator port that holds a reservation, of SPC-2 or persistent; empty if none does or all
	// registered ones do.
	ReservedBy string
	// Reservation is the type of the persistent reservation, 0 if there is none; Registrations are the registered nexuses.
	Reservation   ReservationType
	Registrations int
}

// Info describes the logical unit as it is now.
func (lu *LogicalUnit) Info() LogicalUnitInfo {
	lu.mu.Lock()
	nexuses := len(lu.paths)
	lu.mu.Unlock()
	info := LogicalUnitInfo{
		Name: lu.cfg.Name, Identity: lu.id, Blocks: lu.blocks, BlockSize: lu.blockSize, PhysicalExponent: lu.cfg.PhysicalExponent,
		ReadOnly: lu.readOnly, MaxTransferBytes: lu.cfg.MaxTransferBytes, Store: lu.info, Nexuses: nexuses, Panics: lu.panics.Load(),
	}
	if n := lu.reservedBy.Load(); n != nil {
		info.ReservedBy = n.name.initiator
	}
	s := &lu.persistent
	s.mu.Lock()
	info.Registrations = len(s.registrants)
	s.mu.Unlock()
	if r := s.reservation.Load(); r != nil {
		info.Reservation, info.ReservedBy = r.kind, r.holder.initiator
	}
	return info
}

// ErrBusy is what Close returns when commands did not end in time.
var ErrBusy = errors.New("scsi: commands are still running")

// closeWait is how long Close waits for commands: longer than a working disk takes, shorter than a service manager waits.
const closeWait = 5 * time.Second

// Close refuses new commands (LOGICAL UNIT NOT SUPPORTED) and waits until those under way were released. When it returns
// nil the store may be closed. A store that hangs makes it return ErrBusy after five seconds; the store and its memory
// are then still in use.
func (lu *LogicalUnit) Close() error { return lu.closeWithin(closeWait) }

func (lu *LogicalUnit) closeWithin(wait time.Duration) error {
	lu.closed.Store(true)
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		n := lu.running()
		if n == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("logical unit %q: %d: %w", lu.cfg.Name, n, ErrBusy)
		}
	}
}

// running counts the commands between Start and Release.
func (lu *LogicalUnit) running() int64 {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	var n int64
	for p := range lu.paths {
		n += p.running.Load()
	}
	return n
}

// Reset is the logical unit reset: an SPC-2 reservation is released, persistent ones stay, and every nexus learns of it,
// the one that asked too (SAM-5; libiscsi's suite and LIO agree). The transport aborts the commands itself.
func (lu *LogicalUnit) Reset() { lu.reset(BusDeviceResetFunctionOccurred) }

func (lu *LogicalUnit) reset(code AdditionalSense) {
	lu.reservedBy.Store(nil)
	lu.attention(code, func(*path) bool { return true })
}

// ClearTaskSet tells every nexus other than by that has commands at this logical unit that they were cleared (TAS is 0).
// The transport calls it for CLEAR TASK SET before it ends the commands.
func (lu *LogicalUnit) ClearTaskSet(by *ITNexus) {
	lu.attention(CommandsClearedByAnotherPort, func(p *path) bool { return p.nexus != by && p.running.Load() > 0 })
}

func (lu *LogicalUnit) attention(code AdditionalSense, which func(*path) bool) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for p := range lu.paths {
		if which(p) {
			p.attention.add(code)
		}
	}
}

// nexusesNamed are the nexuses with these names that have a session now, without one of them.
func (lu *LogicalUnit) nexusesNamed(names []nexusName, except *ITNexus) []*ITNexus {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	var list []*ITNexus
	for p := range lu.paths {
		if n := p.nexus; n != except && slices.Contains(names, n.name) && !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

func (lu *LogicalUnit) addPath(p *path) {
	lu.mu.Lock()
	lu.paths[p] = struct{}{}
	lu.mu.Unlock()
}

// dropPath forgets a path that no command uses any more.
func (lu *LogicalUnit) dropPath(p *path) {
	lu.mu.Lock()
	delete(lu.paths, p)
	lu.mu.Unlock()
}
