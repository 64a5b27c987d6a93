package pdu

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// AHSType is the type of an additional header segment.
type AHSType uint8

const (
	AHSExtendedCDB        AHSType = 1
	AHSBidiReadDataLength AHSType = 2
)

// ErrAHS is wrapped by every error of the AHS functions.
var ErrAHS = errors.New("pdu: malformed additional header segment")

// NextAHS takes the first additional header segment off b, which holds all of them. body is the segment's AHS-specific
// part as AHSLength counts it (the byte after the type included); rest is what follows, padding skipped.
func NextAHS(b []byte) (t AHSType, body, rest []byte, err error) {
	if len(b) < 4 {
		return 0, nil, nil, fmt.Errorf("%w: %d bytes left", ErrAHS, len(b))
	}
	n := int(binary.BigEndian.Uint16(b))
	if n == 0 || 3+n > len(b) {
		return 0, nil, nil, fmt.Errorf("%w: length %d of %d bytes", ErrAHS, n, len(b))
	}
	end := min(Pad4(3+n), len(b))
	return AHSType(b[2]), b[3 : 3+n], b[end:], nil
}

// MaxCDB is the longest CDB that [AppendCDB] assembles.
const MaxCDB = 260

// AppendCDB appends the whole CDB of a SCSI Command to dst: the 16 bytes of the header and, if ahs has one, the extended
// CDB segment. At most one such segment is legal.
func AppendCDB(dst []byte, cmd *SCSICommand, ahs []byte) ([]byte, error) {
	dst = append(dst, cmd.CDB()[:]...)
	seen := false
	for len(ahs) > 0 {
		t, body, rest, err := NextAHS(ahs)
		if err != nil {
			return dst, err
		}
		if t == AHSExtendedCDB {
			// The first byte of the body is reserved; the CDB goes on after it.
			if seen || len(body)-1 > MaxCDB-16 {
				return dst, fmt.Errorf("%w: extended CDB", ErrAHS)
			}
			seen = true
			dst = append(dst, body[1:]...)
		}
		ahs = rest
	}
	return dst, nil
}

// BidiReadDataLength is the expected bidirectional read data length, if ahs states one.
func BidiReadDataLength(ahs []byte) (n uint32, ok bool, err error) {
	for len(ahs) > 0 {
		t, body, rest, err := NextAHS(ahs)
		if err != nil {
			return 0, false, err
		}
		if t == AHSBidiReadDataLength {
			if len(body) != 5 || ok {
				return 0, false, fmt.Errorf("%w: bidirectional read data length", ErrAHS)
			}
			n, ok = binary.BigEndian.Uint32(body[1:]), true
		}
		ahs = rest
	}
	return n, ok, nil
}
