package scsi

import (
	"encoding/binary"

	"iserd/backstore"
)

// fuaBit is FUA in byte 1 of READ and WRITE with 10 bytes and more; protectMask is RDPROTECT, WRPROTECT or VRPROTECT.
const (
	fuaBit      = 0x08
	protectMask = 0xE0
)

// decodeRange takes LBA and transfer length out of a CDB, by the group of its operation code, which fixes the layout.
func (c *Command) decodeRange() {
	b := c.CDB
	switch b[0] >> 5 {
	case 0: // 6 bytes
		c.lba = uint64(b[1]&0x1F)<<16 | be16(b[2:])
		c.blocks = uint64(b[4])
		if c.blocks == 0 {
			c.blocks = 256 // SBC-3, READ(6) and WRITE(6)
		}
	case 1, 2: // 10 bytes
		c.lba, c.blocks = be32(b[2:]), be16(b[7:])
	case 4: // 16 bytes
		c.lba, c.blocks = binary.BigEndian.Uint64(b[2:]), be32(b[10:])
	case 5: // 12 bytes
		c.lba, c.blocks = be32(b[2:]), be32(b[6:])
	}
}

// inRange is true when the decoded blocks exist. The sum LBA + blocks is never formed: it may wrap (known-faults B76).
func (c *Command) inRange() bool {
	lu := c.LU
	return c.blocks <= lu.blocks && c.lba <= lu.blocks-c.blocks
}

// checkRange is what READ, WRITE and VERIFY with data have in common. It returns false after it has ended the command.
func (c *Command) checkRange() bool {
	c.decodeRange()
	if c.CDB[0]>>5 != 0 && c.CDB[1]&protectMask != 0 {
		// There is no protection information (PROTECT in INQUIRY, PROT_EN in READ CAPACITY(16)).
		c.invalidField(1)
		return false
	}
	if !c.inRange() {
		c.failAt(IllegalRequest, LBAOutOfRange, c.lba)
		return false
	}
	return true
}

// checkTransfer enforces the limit that the Block Limits page states; it also bounds the memory of one command
// (known-faults B77).
func (c *Command) checkTransfer() bool {
	if c.blocks > c.LU.maxBlocks {
		c.invalidField(transferLengthAt(c.CDB[0]))
		return false
	}
	return true
}

// transferLengthAt is where the transfer length field begins.
func transferLengthAt(code uint8) int {
	switch code >> 5 {
	case 0:
		return 4
	case 4:
		return 10
	case 5:
		return 6
	}
	return 7
}

// startRead is READ. FUA and DPO are accepted; there is nothing to do for them, as no store answers a read with bytes
// that are older than what was written.
func startRead(c *Command) Next {
	if !c.checkRange() || !c.checkTransfer() {
		return NextDone
	}
	lu := c.LU
	c.needIn = c.blocks << lu.shift
	n := c.needIn
	if !c.HasIn {
		n = 0 // no room: with the W bit alone, the residual says that nothing that was offered was taken
	}
	n = min(n, uint64(c.ExpectedIn))
	c.DataInLength = uint32(n)
	if n == 0 {
		return NextDone
	}
	if lu.mapper != nil {
		pieces := lu.mapper.Map(c.pieces[:0], c.lba<<lu.shift, n)
		if len(pieces) <= len(c.pieces) {
			c.Data = pieces
			return NextDone
		}
	}
	return NextDataIn
}

func executeRead(c *Command) Next {
	return c.submit(backstore.OpRead, c.lba<<c.LU.shift, uint64(c.DataInLength), c.Data)
}

func finishRead(c *Command) Next {
	if c.req.Err != nil {
		return c.storeFailed()
	}
	return NextDone
}

func startWrite(c *Command) Next {
	if !c.checkRange() || !c.checkTransfer() {
		return NextDone
	}
	lu := c.LU
	if lu.readOnly {
		return c.Fail(DataProtect, WriteProtected)
	}
	c.needOut = c.blocks << lu.shift
	return c.askDataOut()
}

// askDataOut asks for the needOut bytes of the command, as far as the initiator has them.
func (c *Command) askDataOut() Next {
	n := c.needOut
	if !c.HasOut {
		if c.HasIn && n > 0 && c.ExpectedIn > 0 {
			// The R and W bits say the opposite of the CDB. It must not end well: the initiator would believe that its
			// data were written.
			return c.Fail(IllegalRequest, InvalidFieldInInformationUnit)
		}
		n = 0
	}
	n = min(n, uint64(c.ExpectedOut))
	c.DataOutLength = uint32(n)
	if n == 0 {
		return c.good()
	}
	return NextDataOut
}

func executeWrite(c *Command) Next {
	// With an expected length that is too short, only the bytes that came are written, as residual overflow says.
	next := c.submit(backstore.OpWrite, c.lba<<c.LU.shift, uint64(c.DataOutLength), c.Data)
	c.req.FUA = c.CDB[0]>>5 != 0 && c.CDB[1]&fuaBit != 0
	return next
}

func finishWrite(c *Command) Next {
	if c.req.Err != nil {
		return c.storeFailed()
	}
	return c.good()
}
