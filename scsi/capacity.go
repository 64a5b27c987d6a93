package scsi

import "encoding/binary"

// readCapacity10 returns the last LBA (not the number of blocks, known-faults B78), or FFFFFFFFh when it does not fit.
func readCapacity10(c *Command) Next {
	lu := c.LU
	b := c.page(8)
	binary.BigEndian.PutUint32(b, clampUint32(lu.blocks-1))
	binary.BigEndian.PutUint32(b[4:], lu.blockSize)
	return c.reply(b, uint64(len(b)))
}

// readCapacity16: no protection, LBPME 0 like the Logical Block Provisioning page says.
func readCapacity16(c *Command) Next {
	lu := c.LU
	b := c.page(32)
	binary.BigEndian.PutUint64(b, lu.blocks-1)
	binary.BigEndian.PutUint32(b[8:], lu.blockSize)
	b[13] = lu.cfg.PhysicalExponent
	return c.reply(b, be32(c.CDB[10:]))
}
