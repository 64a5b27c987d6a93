package scsi

import "encoding/binary"

// Peripheral qualifier and device type, byte 0 of all INQUIRY data.
const (
	typeDisk      = 0x00
	typeWellKnown = 0x1E
	// typeNothing: qualifier 011b, type 1Fh: no logical unit can be here.
	typeNothing = 0x7F
)

// Version descriptors (SPC-4), without claiming a revision.
var versionDescriptors = []uint16{
	0x00A0, // SAM-5
	0x0460, // SPC-4
	0x04C0, // SBC-3
	0x0960, // iSCSI
}

const standardInquiryLength = 96

// inquiry answers at every LUN. Where there is no logical unit, the standard data say so, with the vendor's name in it,
// because hosts stop scanning at blank names (known-faults B46); vital product data are refused (B47).
func inquiry(c *Command) Next {
	const evpd, cmddt = 0x01, 0x02
	allocation := be16(c.CDB[3:])
	wellKnown := c.path == nil && c.LUN == wellKnownReportLUNs
	switch {
	case c.CDB[1]&cmddt != 0: // obsolete, and not reserved for anything since
		return c.invalidField(1)
	case c.CDB[1]&evpd == 0:
		if c.CDB[2] != 0 {
			return c.invalidField(2)
		}
		return c.standardInquiry(wellKnown, allocation)
	case wellKnown:
		return c.wellKnownPage(allocation)
	case c.LU == nil:
		return c.Fail(IllegalRequest, LogicalUnitNotSupported)
	}
	return c.vitalProductData(allocation)
}

func (c *Command) standardInquiry(wellKnown bool, allocation uint64) Next {
	b := c.page(standardInquiryLength)
	id := Identity{Vendor: DefaultVendor, Product: DefaultProduct}
	switch {
	case c.LU != nil:
		b[0], id = typeDisk, c.LU.id
	case wellKnown:
		b[0] = typeWellKnown
	default:
		b[0] = typeNothing
	}
	b[2] = 0x06        // SPC-4
	b[3] = 0x10 | 0x02 // HISUP: LUNs as SAM describes them; response data format 2
	b[4] = standardInquiryLength - 5
	b[7] = 0x02 // CMDQUE
	putPadded(b[8:16], id.Vendor)
	putPadded(b[16:32], id.Product)
	putPadded(b[32:36], id.Revision)
	for i, v := range versionDescriptors {
		binary.BigEndian.PutUint16(b[58+2*i:], v)
	}
	return c.reply(b, allocation)
}
