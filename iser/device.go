package iser

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"iserd/rdma"
)

// device is an opened RDMA device with its shards.
type device struct {
	srv                         *Server
	dev                         rdma.Device
	name                        string
	attr                        rdma.DeviceAttr
	access                      rdma.Access // of buffers
	pd                          rdma.PD
	regions                     rdma.Regions          // memory of stores, used in place
	stores                      map[*memory][]rdma.MR // the same, by who registered it; guarded by the server's mu
	shards                      []*shard
	next                        atomic.Uint32 // breaks ties between equally loaded shards
	removed                     atomic.Bool
	quit                        chan struct{} // ends the reader of asynchronous events
	writeSGE                    int           // pieces in one SEND or RDMA WRITE, and in one RDMA READ
	readSGE                     int
	maxMessage                  uint32
	sendDepth                   atomic.Int32 // what a queue pair could be had with
	stopOnce, pdOnce, closeOnce sync.Once
}

// openDevice makes everything that connections on the device will need, so that a lack shows now and not at the first
// login.
func (s *Server) openDevice(dev rdma.Device) (*device, error) {
	d := &device{srv: s, dev: dev, name: dev.Info().Name, attr: dev.Attr(), quit: make(chan struct{}),
		stores: map[*memory][]rdma.MR{}}
	d.access = rdma.AccessLocalWrite
	if dev.Info().Transport == rdma.TransportIWARP {
		// An iWARP RDMA READ arrives as a remote write.
		d.access |= rdma.AccessRemoteWrite
	}
	atMost := func(n, limit int) int {
		if limit > 0 {
			n = min(n, limit)
		}
		return n
	}
	d.writeSGE = atMost(maxPieces, d.attr.MaxSGE)
	d.readSGE = atMost(d.writeSGE, d.attr.MaxSGERead)
	d.maxMessage = 1 << 30
	if d.attr.MaxMsgSize > 0 {
		d.maxMessage = min(d.maxMessage, d.attr.MaxMsgSize)
	}
	d.sendDepth.Store(int32(atMost(s.cfg.SendDepth, d.attr.MaxQPWR)))
	var err error
	if d.pd, err = dev.AllocPD(); err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	shards := s.cfg.Shards
	switch {
	case s.cfg.CQMode == CQOne:
		shards = 1
	case shards == 0:
		shards = len(s.cpus)
	}
	for i := range shards {
		sh, err := newShard(d, i)
		if err != nil {
			d.closeObjects()
			return nil, fmt.Errorf("shard %d of %d: %w", i, shards, err)
		}
		d.shards = append(d.shards, sh)
	}
	return d, nil
}

// run starts the shards' loops and the reader of asynchronous events.
func (d *device) run() {
	for _, sh := range d.shards {
		d.srv.wg.Add(1)
		go func() {
			defer d.srv.wg.Done()
			sh.loop()
		}()
	}
	d.srv.wg.Add(1)
	go func() {
		defer d.srv.wg.Done()
		d.readEvents()
	}()
}

// report describes the device for the log.
func (d *device) report(memory error) DeviceReport {
	r := DeviceReport{Device: d.name, Shards: len(d.shards), HugePages: len(d.shards) > 0, MemoryError: memory}
	for _, sh := range d.shards {
		r.PoolBytes += int(sh.poolBytes.Load())
		r.HugePages = r.HugePages && sh.huge
	}
	return r
}

// place picks the shards for a new connection, least loaded first.
func (d *device) place() []*shard {
	order := make([]*shard, 0, len(d.shards))
	first := int(d.next.Add(1))
	for i := range d.shards {
		sh := d.shards[(first+i)%len(d.shards)]
		at := len(order)
		for at > 0 && order[at-1].load.Load() > sh.load.Load() {
			at--
		}
		order = append(order, nil)
		copy(order[at+1:], order[at:])
		order[at] = sh
	}
	return order
}

// readEvents acts on the device's asynchronous events.
func (d *device) readEvents() {
	for {
		select {
		case <-d.quit:
			return
		case e, ok := <-d.dev.Events():
			if !ok {
				return
			}
			d.asyncEvent(e)
		}
	}
}

func (d *device) asyncEvent(e rdma.AsyncEvent) {
	if f := d.srv.cfg.Events.Async; f != nil {
		f(d.name, e)
	}
	switch e.Type {
	case rdma.AsyncDeviceRemoved, rdma.AsyncDeviceFatal, rdma.AsyncCQErr:
		d.srv.deviceLost(d, fmt.Errorf("iser: asynchronous event %s", e.Type))
	case rdma.AsyncQPFatal, rdma.AsyncQPReqErr, rdma.AsyncQPAccessErr:
		d.forQP(e.QPNum, func(c *conn) { c.fail(fmt.Errorf("iser: asynchronous event %s", e.Type)) })
	case rdma.AsyncCommEst:
		d.forQP(e.QPNum, func(c *conn) {
			if !c.established && c.id != nil {
				_ = c.id.NotifyEstablished()
			}
		})
	}
	// Port changes, GID changes and the like need nothing: connections that suffer end by themselves.
}

// forQP calls f, in a turn, for the connection with that queue pair.
func (d *device) forQP(num uint32, f func(*conn)) {
	for _, sh := range d.shards {
		sh.locked(func() {
			for i := range sh.slots {
				if c := sh.slots[i].c; c != nil && c.qp != nil && c.qp.Num() == num {
					f(c)
				}
			}
		})
	}
}

// tearDown ends every connection of a device that is gone and closes every object on it: queue pairs, memory regions,
// completion queues, protection domain. Connections whose tasks a store still holds stay, without a queue pair, until
// it lets go; their memory stays mapped as long.
func (d *device) tearDown(cause error) {
	for _, sh := range d.shards {
		sh.locked(func() {
			sh.gone.Store(true)
			for i := range sh.slots {
				if c := sh.slots[i].c; c != nil {
					c.end(phaseAbort, cause)
				}
			}
			sh.finish()
			if sh.cq != nil {
				_ = sh.cq.Close()
				sh.cq = nil
			}
			_ = sh.pool.Deregister()
		})
		sh.stopping.Store(true)
		sh.channel.Wake()
		sh.wakeLoop()
	}
	_ = d.closePD()
	d.stopEvents()
}

func (d *device) stopEvents() { d.stopOnce.Do(func() { close(d.quit) }) }

// closePD closes the protection domain, once, with the regions of the stores in it.
func (d *device) closePD() (err error) {
	d.pdOnce.Do(func() {
		d.srv.mu.Lock()
		for m, list := range d.stores {
			err = errors.Join(err, d.closeRegions(list))
			delete(d.stores, m)
		}
		d.srv.mu.Unlock()
		err = errors.Join(err, d.pd.Close())
	})
	return err
}

// closeObjects closes, once, what openDevice made, when nothing ran on it yet or everything has ended.
func (d *device) closeObjects() error {
	var errs []error
	d.closeOnce.Do(func() {
		for _, sh := range d.shards {
			errs = append(errs, sh.closeObjects())
		}
		errs = append(errs, d.closePD())
	})
	return errors.Join(errs...)
}

// closeObjects closes the shard's objects once its loop has ended.
func (s *shard) closeObjects() error {
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone.Store(true)
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
		s.cq = nil
	}
	errs = append(errs, s.pool.Close(), s.channel.Close())
	return errors.Join(errs...)
}
