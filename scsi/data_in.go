package scsi

import "encoding/binary"

// reply finishes a command with parameter data. It is the one place where an allocation length cuts: the transfer gets
// shorter, the length fields inside the data do not (known-faults B59, B60). data may be c.inline or any other memory
// that does not change until Release.
func (c *Command) reply(data []byte, allocation uint64) Next {
	n := min(uint64(len(data)), allocation)
	c.needIn = n
	if !c.HasIn {
		n = 0
	}
	n = min(n, uint64(c.ExpectedIn))
	c.DataInLength = uint32(n)
	if n > InlineData {
		c.large = data[:n]
		return NextDataIn
	}
	if n > 0 {
		if &data[0] != &c.inline[0] {
			copy(c.inline[:], data[:n])
		}
		c.pieces[0] = c.inline[:n]
		c.Data = c.pieces[:1]
	}
	return NextDone
}

// scatterLarge copies parameter data that did not fit inline into the transport's buffers.
func (c *Command) scatterLarge() Next {
	rest := c.large
	for _, b := range c.Data {
		rest = rest[copy(b, rest):]
	}
	return NextDone
}

// page returns the first n bytes of the inline area, zeroed.
func (c *Command) page(n int) []byte {
	b := c.inline[:n]
	clear(b)
	return b
}

func be16(b []byte) uint64 { return uint64(binary.BigEndian.Uint16(b)) }
func be32(b []byte) uint64 { return uint64(binary.BigEndian.Uint32(b)) }
