package scsi

import "encoding/binary"

// reportLUNs works at every LUN, with or without a logical unit, and at the well-known one (known-faults B46). The list
// is that of the nexus. Unknown SELECT REPORT values are refused without noise (known-faults B58).
func reportLUNs(c *Command) Next {
	m := c.nexus.device.luns.Load()
	list := m.report
	switch c.CDB[2] {
	case 0x00: // all but the well-known ones
	case 0x01: // the well-known ones
		list = binary.BigEndian.AppendUint64(nil, wellKnownReportLUNs)
	case 0x02:
		list = binary.BigEndian.AppendUint64(list[:len(list):len(list)], wellKnownReportLUNs)
	default:
		return c.invalidField(2)
	}
	allocation := be32(c.CDB[6:])
	c.nexus.lunsChanged.Store(false)
	if c.path != nil {
		c.path.attention.drop(ReportedLUNsDataHasChanged)
	}
	b := c.inline[:0]
	if 8+len(list) > InlineData {
		b = make([]byte, 0, 8+len(list))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	b = append(b, 0, 0, 0, 0)
	return c.reply(append(b, list...), allocation)
}
