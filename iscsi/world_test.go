package iscsi

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"iserd/backstore"
	"iserd/backstore/faultstore"
	"iserd/backstore/ram"
	"iserd/scsi"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	iqn      = "iqn.2026-01.test:disk"
	iqnOther = "iqn.2026-01.test:other"
	hostA    = "iqn.2026-01.host:a"
	hostB    = "iqn.2026-01.host:b"
	luBytes  = 1 << 20
)

type world struct {
	tb    testing.TB
	node  *Node
	store *faultstore.Store
	lu    *scsi.LogicalUnit
	dev   *scsi.Device
	peers []*peer
	quick bool // the ticker may outlive the world for a tick

	mu     sync.Mutex
	events []string
}

func (w *world) event(format string, args ...any) {
	w.mu.Lock()
	w.events = append(w.events, fmt.Sprintf(format, args...))
	w.mu.Unlock()
}

func (w *world) eventList() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

// newWorld makes a node with one target of one logical unit over a RAM store that can be made to fail.
func newWorld(tb testing.TB, change func(*Config)) *world {
	w := &world{tb: tb}
	inner, err := ram.New(luBytes)
	if err != nil {
		tb.Fatal(err)
	}
	w.store = faultstore.New(inner)
	w.lu, w.dev = newUnit(tb, w.store, iqn)
	cfg := Config{QueueDepth: 8, NopInterval: -1, TMFWait: 100 * time.Millisecond, ReinstatementWait: 100 * time.Millisecond}
	cfg.Events = Events{
		Login:      func(e SessionEvent) { w.event("login %s", e.Name) },
		Logout:     func(e SessionEvent) { w.event("logout %s", e.Name) },
		Reinstated: func(e SessionEvent) { w.event("reinstated %s", e.Name) },
		Removed:    func(e SessionEvent) { w.event("removed %s: %s", e.Name, e.Cause) },
		Lost:       func(e SessionEvent) { w.event("lost %s: %s", e.Name, e.Cause) },
		Refused:    func(e RefusedEvent) { w.event("refused %s %v: %s", e.Name, e.Status, e.Cause) },
		Probe:      func(e ProbeEvent) { w.event("probe") },
		TaskManagement: func(e TaskManagementEvent) {
			w.event("tmf %v %v tasks=%d late=%d", e.Function, e.Response, e.Tasks, e.Late)
		},
	}
	if change != nil {
		change(&cfg)
	}
	w.node = NewNode(cfg)
	w.addTarget(iqn, w.dev, nil)
	tb.Cleanup(w.close)
	return w
}

func newUnit(tb testing.TB, store backstore.Store, target string) (*scsi.LogicalUnit, *scsi.Device) {
	lu, err := scsi.NewLogicalUnit(scsi.LogicalUnitConfig{Name: target, Store: store, Identity: scsi.NewIdentity(target)})
	if err != nil {
		tb.Fatal(err)
	}
	dev := scsi.NewDevice(scsi.DeviceConfig{PortName: target + ",t,0x0001", RelativePortID: 1})
	if err := dev.SetLUN(0, lu); err != nil {
		tb.Fatal(err)
	}
	return lu, dev
}

func (w *world) addTarget(name string, dev *scsi.Device, change func(*TargetConfig)) *Target {
	cfg := TargetConfig{Name: name, Alias: "alias", PortalGroupTag: 1, Device: dev}
	if change != nil {
		change(&cfg)
	}
	t, err := w.node.AddTarget(cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	return t
}

func (w *world) close() {
	w.store.Release()
	for _, p := range w.peers {
		p.mu.Lock()
		p.holdEnd = false
		p.mu.Unlock()
		p.lose(nil)
	}
	for _, p := range w.peers {
		select {
		case <-p.stopped:
		case <-time.After(5 * time.Second):
			p.mu.Lock()
			w.tb.Errorf("a connection did not end: phase %v, %d tasks busy, %d in stores", p.c.phase, p.c.busy, p.c.inStore)
			p.mu.Unlock()
			close(p.wake)
		}
	}
	// The ticker ends at its next tick.
	for end := time.Now().Add(5 * time.Second); !w.quick && time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.node.mu.Lock()
		ticking := w.node.ticking
		w.node.mu.Unlock()
		if !ticking {
			break
		}
	}
	_ = w.store.Close()
}
