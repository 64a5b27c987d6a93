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

func (t AHSType) String() string {
	return name(map[AHSType]string{1: "extended CDB", 2: "bidirectional read data length"}, t, "AHS type")
}

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

// AHSIterator walks over additional header segments.
type AHSIterator struct {
	body, rest []byte
	t          AHSType
	err        error
}

// ParseAHS begins a walk over b, which holds all additional header segments of one PDU.
func ParseAHS(b []byte) AHSIterator { return AHSIterator{rest: b} }

// Next goes to the next segment. It returns false at the end and at a malformed segment.
func (i *AHSIterator) Next() bool {
	if i.err != nil || len(i.rest) == 0 {
		return false
	}
	i.t, i.body, i.rest, i.err = NextAHS(i.rest)
	return i.err == nil
}

// Type is the type of the current segment.
func (i *AHSIterator) Type() AHSType { return i.t }

// Body is the AHS-specific part of the current segment, its reserved first byte included; it aliases what was parsed.
func (i *AHSIterator) Body() []byte { return i.body }

// Err says why the walk ended early, nil if it did not.
func (i *AHSIterator) Err() error { return i.err }

// MaxCDB is the longest CDB that [AppendCDB] assembles.
const MaxCDB = 260

// AppendCDB appends the whole CDB of a SCSI Command to dst: the 16 bytes of the header and, if ahs has one, the extended
// CDB segment. At most one such segment is legal.
func AppendCDB(dst []byte, cmd *SCSICommand, ahs []byte) ([]byte, error) {
	dst = append(dst, cmd.CDB()[:]...)
	seen := false
	it := ParseAHS(ahs)
	for it.Next() {
		if it.Type() != AHSExtendedCDB {
			continue
		}
		// The first byte of the body is reserved; the CDB goes on after it.
		more := it.Body()[1:]
		if seen || len(more) == 0 || len(more) > MaxCDB-16 {
			return dst, fmt.Errorf("%w: extended CDB", ErrAHS)
		}
		seen = true
		dst = append(dst, more...)
	}
	return dst, it.Err()
}

// AppendExtendedCDB appends the segment that carries what of a CDB does not fit into the header, padded. It appends
// nothing for a CDB of up to 16 bytes.
func AppendExtendedCDB(dst, cdb []byte) []byte {
	if len(cdb) <= 16 {
		return dst
	}
	more := cdb[16:]
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(more)+1))
	dst = append(dst, byte(AHSExtendedCDB), 0)
	dst = append(dst, more...)
	return append(dst, make([]byte, Pad4(len(more))-len(more))...)
}

// AppendBidiReadDataLength appends the segment with the expected bidirectional read data length.
func AppendBidiReadDataLength(dst []byte, n uint32) []byte {
	dst = append(dst, 0, 5, byte(AHSBidiReadDataLength), 0)
	return binary.BigEndian.AppendUint32(dst, n)
}

// BidiReadDataLength is the expected bidirectional read data length, if ahs states one.
func BidiReadDataLength(ahs []byte) (n uint32, ok bool, err error) {
	it := ParseAHS(ahs)
	for it.Next() {
		if it.Type() != AHSBidiReadDataLength {
			continue
		}
		if len(it.Body()) != 5 || ok {
			return 0, false, fmt.Errorf("%w: bidirectional read data length", ErrAHS)
		}
		n, ok = binary.BigEndian.Uint32(it.Body()[1:]), true
	}
	if it.Err() != nil {
		return 0, false, it.Err()
	}
	return n, ok, nil
}
