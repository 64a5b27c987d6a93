//go:build linux && cgo && !nordma

package verbs

/*
#cgo LDFLAGS: -lrdmacm -libverbs
#include <stdlib.h>
#include "shim_linux.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"iserd/rdma"
)

type provider struct {
	opts     Options
	channels atomic.Int32 // event channels that still hold something of librdmacm
	tokens   atomic.Uint64
	cm       cmStats

	mu      sync.Mutex
	closed  bool
	devices []*device              // in the order of discovery; the removed ones too, until they are released
	retired Stats                  // of devices that were released
	orphans []chan rdma.AsyncEvent // of devices that were released; closed with the provider
}

type cmStats struct{ events, dropped atomic.Uint64 }

// New makes the provider. It touches no device: [rdma.Provider.Devices] does.
func New(opts Options) (rdma.Provider, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.AsyncQueue == 0 {
		opts.AsyncQueue = 64
	}
	return &provider{opts: opts}, nil
}

func (p *provider) Name() string { return "verbs" }

func (p *provider) Devices() ([]rdma.Device, error) {
	if err := p.scan(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []rdma.Device
	for _, d := range p.devices {
		if !d.removed.Load() {
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil, noDevice()
	}
	return out, nil
}

// scan brings the table up to date. The contexts are librdmacm's own, so that the context of an identifier always is
// the context of a device here.
func (p *provider) scan() error {
	var added, gone []string
	err := func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.closed {
			return rdma.ErrClosed
		}
		gone = p.releaseLocked()
		var list **C.struct_ibv_context
		var n C.int
		if rc := C.iserd_devices(&list, &n); rc != 0 {
			return scanError(syscall.Errno(-rc))
		}
		if list == nil {
			return nil // none left; Devices says so if that is the end of it
		}
		contexts := unsafe.Slice(list, int(n))
		for _, ctx := range contexts {
			if known := p.findLocked(ctx); known != nil {
				C.iserd_put_device(ctx) // this scan's reference; the first scan's is kept
				continue
			}
			d, err := openDevice(p, ctx)
			if err != nil {
				C.iserd_put_device(ctx)
				p.opts.Trace.warn("verbs: device left out: %w", err)
				continue
			}
			p.devices = append(p.devices, d)
			added = append(added, d.name)
		}
		C.free(unsafe.Pointer(list))
		return nil
	}()
	if t := &p.opts.Trace; t.DeviceRemoved != nil {
		for _, name := range gone {
			t.DeviceRemoved(name)
		}
	}
	if t := &p.opts.Trace; t.DeviceAdded != nil {
		for _, name := range added {
			t.DeviceAdded(name)
		}
	}
	return err
}

func (p *provider) findLocked(ctx *C.struct_ibv_context) *device {
	for _, d := range p.devices {
		if d.ctx == ctx {
			return d
		}
	}
	return nil
}

// releaseLocked lets go of devices that are gone and that nothing uses any more.
func (p *provider) releaseLocked() (names []string) {
	p.devices = slices.DeleteFunc(p.devices, func(d *device) bool {
		if !d.removed.Load() || !d.release() {
			return false
		}
		names = append(names, d.name)
		p.retireLocked(d)
		return true
	})
	return names
}

// retireLocked needs a device on which release was true.
func (p *provider) retireLocked(d *device) {
	d.async.stop()
	d.addStats(&p.retired)
	d.freeBatches()
	p.orphans = append(p.orphans, d.events)
	C.iserd_put_device(d.ctx)
}

// deviceOf is the device that an identifier runs on; nil when the identifier has none yet, or when the device cannot be
// opened. A device that was added after the last scan is found by another scan.
func (p *provider) deviceOf(ctx *C.struct_ibv_context) *device {
	if ctx == nil {
		return nil
	}
	p.mu.Lock()
	d := p.findLocked(ctx)
	p.mu.Unlock()
	if d != nil {
		return d
	}
	if err := p.scan(); err != nil {
		p.opts.Trace.warn("verbs: look for the device of a connection: %w", err)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.findLocked(ctx)
}

// Stats sums the counters of everything that was or is open.
func (p *provider) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.retired
	for _, d := range p.devices {
		d.addStats(&s)
	}
	s.CMEvents += p.cm.events.Load()
	s.CMDropped += p.cm.dropped.Load()
	return s
}

// Close refuses while anything is open, because librdmacm would free a device under it.
func (p *provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := p.channels.Load(); n != 0 {
		return busy("close the verbs provider", "%d event channel(s), or identifiers on them, are still open", n)
	}
	for len(p.devices) > 0 {
		d := p.devices[0]
		if !d.release() {
			return busy("close the verbs provider", "%d protection domain(s) and completion channel(s) of %s are still open",
				d.children.Load(), d.name)
		}
		p.retireLocked(d)
		p.devices = p.devices[1:]
	}
	p.closed = true
	for _, ch := range p.orphans {
		close(ch)
	}
	p.orphans = nil
	return nil
}

func (t *Trace) warn(format string, args ...any) {
	if t.Warning != nil {
		t.Warning(fmt.Errorf(format, args...))
	}
}

// opError is nil for rc 0; C gives a negative errno.
func opError(op string, rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return &rdma.OpError{Op: op, Errno: syscall.Errno(-rc)}
}

func busy(op, format string, args ...any) error {
	return &rdma.OpError{Op: op, Errno: syscall.EBUSY, Hint: fmt.Sprintf(format, args...)}
}

func tooBig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rdma.ErrTooBig, fmt.Sprintf(format, args...))
}

func noDevice() error {
	if _, err := os.Stat(classDir); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: the kernel has none, nor the ib_core module loaded (an adapter's driver loads it; "+
			"for soft-RoCE: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NETDEV)", rdma.ErrNoDevice)
	}
	return fmt.Errorf("%w: the kernel's RDMA core is loaded and has no device (see `rdma link`)", rdma.ErrNoDevice)
}

func scanError(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOSYS:
		// libibverbs says so when ib_uverbs is not there; the more so when the whole of RDMA is not.
		if _, err := os.Stat(classDir); err == nil {
			return fmt.Errorf("%w: the kernel lacks ib_uverbs: modprobe ib_uverbs", rdma.ErrNoDevice)
		}
		return noDevice()
	case syscall.ENOENT, syscall.ENODEV, syscall.EPERM:
		return &rdma.OpError{Op: "rdma_get_devices", Errno: errno, Hint: "modprobe rdma_ucm, and read access to /dev/infiniband"}
	}
	return &rdma.OpError{Op: "rdma_get_devices", Errno: errno}
}
