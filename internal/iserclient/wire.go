package iserclient

import (
	"encoding/binary"
	"errors"
	"fmt"

	"iserd/iscsi/pdu"
)

const (
	// HeaderLength is the length of the iSER header before an iSCSI control-type PDU.
	HeaderLength = 28
	headers      = HeaderLength + pdu.BHSLength
	// loginRoom and fullFeatureRoom are what receives hold: open-iscsi's and libiscsi's sizes.
	loginRoom       = headers + 8192
	fullFeatureRoom = headers + 128

	opControl = 0x10
	flagWSV   = 0x08
	flagRSV   = 0x04
)

// Flags of the private data (first byte).
const (
	NoZBVA        = 0x80
	NoSendWithInv = 0x40
)

// Header is the iSER header of a control-type PDU (RFC 7145), with base offsets.
type Header struct {
	WSV, RSV      bool
	WriteSTag     uint32
	WriteBase     uint64
	ReadSTag      uint32
	ReadBase      uint64
	FirstByte     uint8 // beside the flags; 0 means that of a control-type PDU
	ReservedBytes [3]byte
}

func (h *Header) put(b []byte) {
	clear(b[:HeaderLength])
	b[0] = opControl
	if h.FirstByte != 0 {
		b[0] = h.FirstByte
	}
	if h.WSV {
		b[0] |= flagWSV
	}
	if h.RSV {
		b[0] |= flagRSV
	}
	copy(b[1:4], h.ReservedBytes[:])
	binary.BigEndian.PutUint32(b[4:], h.WriteSTag)
	binary.BigEndian.PutUint64(b[8:], h.WriteBase)
	binary.BigEndian.PutUint32(b[16:], h.ReadSTag)
	binary.BigEndian.PutUint64(b[20:], h.ReadBase)
}

// Append appends a message: iSER header, PDU header, additional headers and data, with the lengths as they are in bhs.
func Append(b []byte, h *Header, bhs *pdu.BHS, ahs, data []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, HeaderLength)...)
	h.put(b[at:])
	b = append(b, bhs[:]...)
	b = append(b, ahs...)
	return append(b, data...)
}

// PDU is one that was received. It is the caller's.
type PDU struct {
	BHS         pdu.BHS
	Data        []byte
	Invalidated uint32 // the STag, 0 for none
	// Hello is set, and nothing else, for a message that is not a control-type PDU.
	Hello []byte
}

var errMessage = errors.New("iserclient: bad message")

// parse takes a message apart and demands what a target must keep to: an initiator's STags are never in what it sends.
func parse(raw []byte, p *PDU) error {
	if len(raw) > 0 && raw[0]>>4 != opControl>>4 {
		p.Hello = raw
		return nil
	}
	if len(raw) < headers {
		return fmt.Errorf("%w: %d bytes", errMessage, len(raw))
	}
	if raw[0] != opControl {
		return fmt.Errorf("%w: first byte %#x, want %#x", errMessage, raw[0], opControl)
	}
	for i, x := range raw[1:HeaderLength] {
		if x != 0 {
			return fmt.Errorf("%w: byte %d of the iSER header is %#x, want 0", errMessage, i+1, x)
		}
	}
	p.BHS = pdu.BHS(raw[HeaderLength:headers])
	n := p.BHS.DataSegmentLength()
	if p.BHS.TotalAHSLength() != 0 {
		return fmt.Errorf("%w: additional headers of %d bytes", errMessage, p.BHS.TotalAHSLength())
	}
	// Padded and unpadded both are in use.
	if got := len(raw) - headers; got != n && got != pdu.Pad4(n) {
		return fmt.Errorf("%w: %d bytes after the headers, DataSegmentLength %d", errMessage, got, n)
	}
	p.Data = raw[headers : headers+n : headers+n]
	return nil
}
