package scsi

// requestSense returns sense data as parameter data: why there is nothing at this LUN, the next unit attention, which
// is thereby reported, or nothing. The format is what DESC asks for.
func requestSense(c *Command) Next {
	key, code := NoSense, NoAdditionalSense
	switch {
	case c.path == nil && c.LUN != wellKnownReportLUNs:
		key, code = IllegalRequest, LogicalUnitNotSupported
	case c.path != nil:
		if attention, ok := c.takeAttention(); ok {
			key, code = UnitAttention, attention
		}
	}
	var b []byte
	if c.CDB[1]&0x01 != 0 {
		b = c.page(descriptorSenseLength)
		putDescriptorSense(b, key, code)
	} else {
		b = c.page(fixedSenseLength)
		putFixedSense(b, key, code)
	}
	return c.reply(b, uint64(c.CDB[4]))
}
