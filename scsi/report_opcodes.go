package scsi

import "encoding/binary"

// reportOpcodes is REPORT SUPPORTED OPERATION CODES, from the table that executes them (known-faults B56, B57).
func reportOpcodes(c *Command) Next {
	const rctd = 0x80
	timeouts := c.CDB[2]&rctd != 0
	allocation := be32(c.CDB[6:])
	set := c.nexus.device.commands
	code := Opcode(c.CDB[3])
	sa := int(be16(c.CDB[4:]))
	switch c.CDB[2] & 0x07 {
	case 0: // all
		return c.reply(appendAllOpcodes(c.inline[:0], set, timeouts), allocation)
	case 1: // one operation code that has no service actions
		if set.hasServiceActions(code) {
			return c.invalidField(3)
		}
		return c.reply(appendOneOpcode(c.inline[:0], set.lookup(code, noServiceAction), timeouts), allocation)
	case 2: // one operation code with this service action
		if set.index[code] != nil && !set.hasServiceActions(code) {
			return c.invalidField(3)
		}
		return c.reply(appendOneOpcode(c.inline[:0], set.lookup(code, sa), timeouts), allocation)
	case 3: // as 2, where the operation code has service actions; as 1, where the service action is 0
		op := set.lookup(code, sa)
		if op == nil && sa == 0 {
			op = set.lookup(code, noServiceAction)
		}
		return c.reply(appendOneOpcode(c.inline[:0], op, timeouts), allocation)
	}
	return c.invalidField(2)
}

func appendAllOpcodes(b []byte, set *commandSet, timeouts bool) []byte {
	b = append(b, 0, 0, 0, 0)
	for i := range set.rows {
		op := &set.rows[i]
		var flags uint8
		sa := 0
		if op.serviceAction != noServiceAction {
			flags |= 0x01 // SERVACTV
			sa = op.serviceAction
		}
		if timeouts {
			flags |= 0x02 // CTDP
		}
		b = append(b, uint8(op.code), 0, uint8(sa>>8), uint8(sa), 0, flags, 0, op.length)
		if timeouts {
			b = appendTimeouts(b, op)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func appendOneOpcode(b []byte, op *opcode, timeouts bool) []byte {
	const notSupported, supported, ctdp = 0x01, 0x03, 0x80
	if op == nil {
		return append(b, 0, notSupported, 0, 0)
	}
	flags := uint8(supported)
	if timeouts {
		flags |= ctdp
	}
	b = append(b, 0, flags, 0, op.length)
	b = append(b, op.usage...)
	if timeouts {
		b = appendTimeouts(b, op)
	}
	return b
}

// appendTimeouts appends a command timeouts descriptor.
func appendTimeouts(b []byte, op *opcode) []byte {
	b = append(b, 0, 0x0A, 0, 0)
	b = binary.BigEndian.AppendUint32(b, op.timeout.nominal)
	return binary.BigEndian.AppendUint32(b, op.timeout.recommended)
}
