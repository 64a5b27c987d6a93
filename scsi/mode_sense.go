package scsi

import "encoding/binary"

// Mode pages.
const (
	pageCaching                 = 0x08
	pageControl                 = 0x0A
	pageInformationalExceptions = 0x1C
	pageAll                     = 0x3F
	subpageAll                  = 0xFF
)

// Page control: which values MODE SENSE returns.
const (
	valuesCurrent = iota
	valuesChangeable
	valuesDefault
	valuesSaved
)

// modePages are in ascending order, as page 3Fh returns them.
var modePages = []struct {
	code  uint8
	build func(lu *LogicalUnit, b []byte) // fills the page after its two bytes of header
	size  int                             // with the header
}{
	{pageCaching, buildCaching, 20},
	{pageControl, buildControl, 12},
	{pageInformationalExceptions, func(*LogicalUnit, []byte) {}, 12},
}

func buildCaching(lu *LogicalUnit, b []byte) {
	if lu.info.WriteCache {
		b[2] = 0x04 // WCE
	}
}

func buildControl(_ *LogicalUnit, b []byte) {
	// Queue algorithm modifier 1: commands are reordered without restriction. Everything else is 0: no autosense in
	// descriptor format, one task set for all nexuses, commands of others just vanish when they are cleared (TAS 0).
	b[3] = 0x10
	// Busy timeout period: unlimited.
	b[8], b[9] = 0xFF, 0xFF
}

// modeSense is MODE SENSE(6) and (10). Nothing can be changed, as there is no MODE SELECT: the changeable masks are
// zero, and the default values are the current ones.
func modeSense(c *Command) Next {
	const dbd, llbaa = 0x08, 0x10
	lu := c.LU
	long := Opcode(c.CDB[0]) == OpModeSense10
	allocation := uint64(c.CDB[4])
	header := 4
	if long {
		allocation = be16(c.CDB[7:])
		header = 8
	}
	page, subpage := c.CDB[2]&0x3F, c.CDB[3]
	values := int(c.CDB[2] >> 6)
	if values == valuesSaved {
		return c.Fail(IllegalRequest, SavingParametersNotSupported)
	}
	if subpage != 0 && subpage != subpageAll {
		return c.invalidField(3)
	}
	b := c.page(InlineData)
	n := header
	if c.CDB[1]&dbd == 0 {
		n += putBlockDescriptor(b[n:], lu, long && c.CDB[1]&llbaa != 0)
	}
	descriptor := n - header
	found := false
	for _, p := range modePages {
		if page != pageAll && page != p.code {
			continue
		}
		found = true
		b[n], b[n+1] = p.code, uint8(p.size-2)
		if values != valuesChangeable {
			p.build(lu, b[n:n+p.size])
		}
		n += p.size
	}
	if !found {
		return c.invalidField(2)
	}
	// Device-specific parameter: WP, and DPOFUA because FUA is honoured (known-faults B75).
	specific := uint8(0x10)
	if lu.readOnly {
		specific |= 0x80
	}
	if long {
		binary.BigEndian.PutUint16(b, uint16(n-2))
		b[3] = specific
		if descriptor == 16 {
			b[4] = 0x01 // LONGLBA
		}
		binary.BigEndian.PutUint16(b[6:], uint16(descriptor))
	} else {
		b[0] = uint8(n - 1)
		b[2] = specific
		b[3] = uint8(descriptor)
	}
	return c.reply(b[:n], allocation)
}

// putBlockDescriptor writes the short or the long LBA mode parameter block descriptor and returns its length.
func putBlockDescriptor(b []byte, lu *LogicalUnit, long bool) int {
	if long {
		binary.BigEndian.PutUint64(b, lu.blocks)
		binary.BigEndian.PutUint32(b[12:], lu.blockSize)
		return 16
	}
	binary.BigEndian.PutUint32(b, clampUint32(lu.blocks))
	binary.BigEndian.PutUint32(b[4:], lu.blockSize) // byte 4 is reserved, and the size has 24 bits
	return 8
}
