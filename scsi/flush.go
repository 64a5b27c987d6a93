package scsi

import "iserd/backstore"

// synchronizeCache is SYNCHRONIZE CACHE(10) and (16). The whole cache is flushed whatever the range is. IMMED is
// accepted, and the status still comes after the flush: an error then reaches the one who asked.
func synchronizeCache(c *Command) Next {
	c.decodeRange()
	if !c.inRange() {
		return c.failAt(IllegalRequest, LBAOutOfRange, c.lba)
	}
	return c.flush()
}

// startStopUnit does what there is to do for a disk without a motor: before a stop, the cache is emptied. The logical
// unit stays ready, because other initiators use it too.
func startStopUnit(c *Command) Next {
	const (
		powerCondition = 0xF0
		noFlush        = 0x04
		loadEject      = 0x02
		start          = 0x01
	)
	b := c.CDB[4]
	switch {
	case b&powerCondition != 0, b&loadEject != 0:
		// No power condition is supported, and the medium is not removable.
		return c.invalidField(4)
	case b&(start|noFlush) != 0:
		return c.good()
	}
	return c.flush()
}

// flush goes to the store, or not if the store keeps nothing back.
func (c *Command) flush() Next {
	if !c.LU.info.WriteCache {
		return c.good()
	}
	return NextExecute
}

func executeFlush(c *Command) Next { return c.submit(backstore.OpFlush, 0, 0, nil) }

func finishFlush(c *Command) Next {
	if c.req.Err != nil {
		return c.storeFailed()
	}
	return c.good()
}

func testUnitReady(c *Command) Next { return c.good() }
