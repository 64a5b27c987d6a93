package scsi

import "fmt"

// MaxLUN is the highest LUN: 14 bits, what the flat space addressing method holds.
const MaxLUN = 1<<14 - 1

// wellKnownReportLUNs is the REPORT LUNS well-known logical unit, as a LUN field (SAM-5).
const wellKnownReportLUNs uint64 = 0xC101 << 48

// notFound is what decodeLUN returns for a LUN field that names no logical unit that can exist here.
const notFound = -1

// decodeLUN returns the number that a LUN field addresses, or notFound. Peripheral device addressing (bus 0), flat space
// addressing and extended flat space addressing name the same logical units (SAM-5). Everything below the first level
// must be zero.
func decodeLUN(lun uint64) int {
	first := uint8(lun >> 56)
	switch first >> 6 {
	case 0: // peripheral device: bus identifier, then the number
		if first&0x3F != 0 || lun&(1<<48-1) != 0 {
			return notFound
		}
		return int(uint8(lun >> 48))
	case 1: // flat space: 14 bits
		if lun&(1<<48-1) != 0 {
			return notFound
		}
		return int(lun>>48) & MaxLUN
	case 3:
		// Extended flat space, length 01b: 24 bits.
		if first != 0xD2 || lun&(1<<32-1) != 0 {
			return notFound
		}
		if n := int(lun>>32) & 0xFFFFFF; n <= MaxLUN {
			return n
		}
	}
	return notFound
}

// EncodeLUN returns the LUN field for a number up to [MaxLUN]: peripheral device addressing below 256, which every
// initiator understands, and flat space addressing above.
func EncodeLUN(number uint16) uint64 {
	if number < 256 {
		return uint64(number) << 48
	}
	return (0x4000 | uint64(number)) << 48
}

// FormatLUN prints a LUN field for people: the number where it names one.
func FormatLUN(lun uint64) string {
	if n := decodeLUN(lun); n != notFound {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%016x", lun)
}
