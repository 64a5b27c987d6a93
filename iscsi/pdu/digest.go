package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// DigestLength is the length of a header or data digest, in bytes.
const DigestLength = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// UpdateDigest goes on with a CRC32C over b; begin with 0.
func UpdateDigest(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// Digest is the CRC32C over the parts, one after the other.
func Digest(parts ...[]byte) uint32 {
	var crc uint32
	for _, p := range parts {
		crc = UpdateDigest(crc, p)
	}
	return crc
}

// PutDigest writes a finished CRC32C as the wire has it.
func PutDigest(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// GetDigest reads what PutDigest wrote.
func GetDigest(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
