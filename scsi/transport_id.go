package scsi

import (
	"encoding/binary"
	"strings"
)

// appendTransportID appends the TransportID of an iSCSI initiator port (SPC-4): with the ISID if the name has one, else
// that of the initiator device.
func appendTransportID(b []byte, initiator string) []byte {
	const protocol, withISID = 0x05, 0x40
	first := uint8(protocol)
	if strings.Contains(initiator, ",i,0x") {
		first |= withISID
	}
	name := nameString(initiator)
	if len(name) < 20 { // the least that the additional length may be
		name = append(name, make([]byte, 20-len(name))...)
	}
	b = append(b, first, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	return append(b, name...)
}
