package scsi

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// DeviceConfig says what a device is.
type DeviceConfig struct {
	// PortName is the SCSI target port's name: the iSCSI name, ",t,0x" and four digits of the portal group tag.
	PortName string
	// RelativePortID is the port's number within the device, from 1; it must stay the same over restarts.
	RelativePortID uint16
	// PortGroup is the target port group of the port. It is kept for asymmetric access, which is not reported (TPGS is 0).
	PortGroup uint16
	// AbortTasks, if set, makes PREEMPT AND ABORT supported. It aborts the tasks that the nexus has at the logical unit, as
	// CLEAR TASK SET does, and has done called once, from any goroutine, when none of them can change the medium any more.
	// It must not block. Devices that share logical units set it all or none.
	AbortTasks func(n *ITNexus, lu *LogicalUnit, done func())
}

// Device is a SCSI target device with one port: a map of LUNs and the nexuses through it.
type Device struct {
	cfg      DeviceConfig
	commands *commandSet

	// luns is what commands see. A change puts a new map in its place.
	luns atomic.Pointer[lunMap]

	mu      sync.Mutex // changes of luns, and nexuses
	nexuses map[*ITNexus]struct{}
}

// lunMap is immutable.
type lunMap struct {
	units []*LogicalUnit // by number; nil where there is none
	// report is the LUN list as REPORT LUNS sends it, without the header.
	report []byte
}

// NewDevice makes a device without logical units.
func NewDevice(cfg DeviceConfig) *Device {
	d := &Device{cfg: cfg, commands: standardCommands(), nexuses: map[*ITNexus]struct{}{}}
	if cfg.AbortTasks != nil {
		d.commands = abortingCommands()
	}
	d.luns.Store(&lunMap{})
	return d
}

// PortName is the name of the target port.
func (d *Device) PortName() string { return d.cfg.PortName }

// deviceName is the iSCSI name: the port's name without the portal group.
func (d *Device) deviceName() string {
	name, _, _ := strings.Cut(d.cfg.PortName, ",t,")
	return name
}

// LUNs lists the numbers that are in use, in order.
func (d *Device) LUNs() []uint16 {
	var list []uint16
	for n, lu := range d.luns.Load().units {
		if lu != nil {
			list = append(list, uint16(n))
		}
	}
	return list
}

// SetLUN puts lu at a number, in place of what was there. Every nexus learns that the LUNs changed; a nexus that saw
// another logical unit there also learns that the INQUIRY data did.
func (d *Device) SetLUN(lun uint16, lu *LogicalUnit) error {
	if lun > MaxLUN {
		return fmt.Errorf("LUN %d: numbers end at %d", lun, MaxLUN)
	}
	if lu == nil {
		return fmt.Errorf("LUN %d: no logical unit; use RemoveLUN to take one away", lun)
	}
	d.change(lun, lu)
	return nil
}

// RemoveLUN takes away what is at a number; later commands to it get LOGICAL UNIT NOT SUPPORTED. Commands under way end
// by themselves. It does nothing if there is nothing.
func (d *Device) RemoveLUN(lun uint16) {
	if lun <= MaxLUN {
		d.change(lun, nil)
	}
}

func (d *Device) change(lun uint16, lu *LogicalUnit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.luns.Load()
	size := max(len(old.units), int(lun)+1)
	next := &lunMap{units: make([]*LogicalUnit, size)}
	copy(next.units, old.units)
	if next.units[lun] == lu {
		return
	}
	next.units[lun] = lu
	for n, u := range next.units {
		if u != nil {
			next.report = binary.BigEndian.AppendUint64(next.report, EncodeLUN(uint16(n)))
		}
	}
	d.luns.Store(next)
	for n := range d.nexuses {
		n.setPath(lun, lu)
	}
}

// Reset is the target reset: every logical unit is reset, and every nexus learns of it. cold says that it is like a
// power cycle; ending the sessions is then the transport's part.
func (d *Device) Reset(cold bool) {
	code := SCSIBusResetOccurred
	if cold {
		code = PowerOnOccurred
	}
	for _, lu := range d.luns.Load().units {
		if lu != nil {
			lu.reset(code)
		}
	}
}

// NewNexus makes the I_T nexus of a session. initiatorPortName is the initiator's iSCSI name, ",i,0x" and the ISID. The
// first command to each logical unit gets the unit attention POWER ON, RESET, OR BUS DEVICE RESET OCCURRED (SAM-5).
func (d *Device) NewNexus(initiatorPortName string) *ITNexus {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &ITNexus{device: d, name: nexusName{initiatorPortName, d.cfg.PortName}}
	units := d.luns.Load().units
	paths := make([]*path, len(units))
	for i, lu := range units {
		if lu != nil {
			paths[i] = newPath(n, lu)
			paths[i].attention.add(PowerOnResetOrBusDeviceReset)
		}
	}
	n.paths.Store(&paths)
	d.nexuses[n] = struct{}{}
	return n
}
