package scsi

import "encoding/binary"

// Vital product data pages.
const (
	vpdSupported    = 0x00
	vpdSerial       = 0x80
	vpdIdentifiers  = 0x83
	vpdBlockLimits  = 0xB0
	vpdBlockDevice  = 0xB1
	vpdProvisioning = 0xB2
)

// vpdPages are the pages of a disk, in ascending order, which is the order in which page 00h lists them. Each builder
// appends what follows the four bytes of header.
var vpdPages = []struct {
	code  uint8
	build func(c *Command, b []byte) []byte
}{
	{vpdSupported, nil}, // the list itself, made in place
	{vpdSerial, buildSerial},
	{vpdIdentifiers, buildIdentifiers},
	{vpdBlockLimits, buildBlockLimits},
	{vpdBlockDevice, buildBlockDevice},
	{vpdProvisioning, buildProvisioning},
}

func (c *Command) vitalProductData(allocation uint64) Next {
	b := c.page(InlineData)[:4]
	b[0], b[1] = typeDisk, c.CDB[2]
	for i := range vpdPages {
		p := &vpdPages[i]
		if p.code != c.CDB[2] {
			continue
		}
		if p.build == nil {
			for _, listed := range vpdPages {
				b = append(b, listed.code)
			}
		} else {
			b = p.build(c, b)
		}
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
		return c.reply(b, allocation)
	}
	return c.invalidField(2)
}

// wellKnownPage is the vital product data of the REPORT LUNS well-known logical unit: the list of pages, which has only
// itself and the identification, and that.
func (c *Command) wellKnownPage(allocation uint64) Next {
	b := c.page(InlineData)[:4]
	b[0], b[1] = typeWellKnown, c.CDB[2]
	switch c.CDB[2] {
	case vpdSupported:
		b = append(b, vpdSupported, vpdIdentifiers)
	case vpdIdentifiers:
		b = appendPortIdentifiers(b, c.nexus.device)
	default:
		return c.invalidField(2)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	return c.reply(b, allocation)
}

func buildSerial(c *Command, b []byte) []byte { return append(b, c.LU.id.Serial...) }

// Designators (SPC-4): code set and protocol, association and type.
const (
	codeBinary = 0x01
	codeASCII  = 0x02
	codeUTF8   = 0x03

	protocolISCSI = 0x50 // in the high half of byte 0, valid with PIV

	aboutUnit   = 0x00
	aboutPort   = 0x10
	aboutDevice = 0x20
	withPIV     = 0x80

	designatorT10          = 0x01
	designatorNAA          = 0x03
	designatorRelativePort = 0x04
	designatorName         = 0x08
)

func appendDesignator(b []byte, first, second uint8, value ...[]byte) []byte {
	b = append(b, first, second, 0, 0)
	at := len(b)
	for _, v := range value {
		b = append(b, v...)
	}
	b[at-1] = uint8(len(b) - at)
	return b
}

// buildIdentifiers: the NAA name first, as the one that hosts should take; then the T10 one, which needs to be unique
// too; then port and device, from which multipath software learns the path.
func buildIdentifiers(c *Command, b []byte) []byte {
	id := &c.LU.id
	b = appendDesignator(b, codeBinary, aboutUnit|designatorNAA, id.NAA[:])
	var vendor [8]byte
	putPadded(vendor[:], id.Vendor)
	b = appendDesignator(b, codeASCII, aboutUnit|designatorT10, vendor[:], []byte(id.Serial))
	return appendPortIdentifiers(b, c.nexus.device)
}

func appendPortIdentifiers(b []byte, d *Device) []byte {
	var port [4]byte
	binary.BigEndian.PutUint16(port[2:], d.cfg.RelativePortID)
	b = appendDesignator(b, protocolISCSI|codeBinary, withPIV|aboutPort|designatorRelativePort, port[:])
	b = appendDesignator(b, protocolISCSI|codeUTF8, withPIV|aboutPort|designatorName, nameString(d.cfg.PortName))
	return appendDesignator(b, protocolISCSI|codeUTF8, withPIV|aboutDevice|designatorName, nameString(d.deviceName()))
}

// nameString is a SCSI name string: null-terminated, the length a multiple of four.
func nameString(s string) []byte {
	b := make([]byte, (len(s)+4)&^3)
	copy(b, s)
	return b
}

// buildBlockLimits states the limits that are enforced. Commands that do not exist have 0.
func buildBlockLimits(c *Command, b []byte) []byte {
	lu := c.LU
	n := len(b)
	b = b[:n+0x3C]
	p := b[n-4:] // offsets as in SBC-3, from the start of the page
	binary.BigEndian.PutUint16(p[6:], 1<<lu.cfg.PhysicalExponent)
	binary.BigEndian.PutUint32(p[8:], uint32(lu.maxBlocks))
	// The most that is still one piece everywhere below is also the best size.
	binary.BigEndian.PutUint32(p[12:], uint32(lu.maxBlocks))
	return b
}

func buildBlockDevice(c *Command, b []byte) []byte {
	n := len(b)
	b = b[:n+0x3C]
	if !c.LU.info.Rotational {
		binary.BigEndian.PutUint16(b[n:], 1) // non-rotating medium
	}
	return b
}

// buildProvisioning: fully provisioned, no UNMAP and no unmapping WRITE SAME, as LBPME 0 says.
func buildProvisioning(_ *Command, b []byte) []byte { return append(b, 0, 0, 0, 0) }
