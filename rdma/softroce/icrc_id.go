package softroce

import "hash/crc32"

// Arithmetic on the CRC register, to find which IPv4 identification and don't-fragment bit a difference of two CRCs comes
// from. A difference made by bits d just before n more (equal) bytes is d·x^(8n) mod P, so the question is which of those
// bits have the effect diff·x^(-8n).

// idBits are the sixteen bits of the identification and the don't-fragment bit of the byte after it.
const idBits = 17

// idTables are made once, when the package is loaded.
var idTables = makeIDTables()

type idTable struct {
	back  [16]uint32     // x^(-8·2^i)
	basis [idBits]uint32 // reduced row echelon form of the bits' effects
	pivot [idBits]uint32
	bits  [idBits]uint32 // which bits together have the effect in basis
}

// unstep is the register before a zero byte, given the one after it: r = (s>>8) ^ T[s&0xff], and T is a bijection on the
// top byte.
func unstep(r uint32) uint32 {
	for i, t := range crc32.IEEETable {
		if t>>24 == r>>24 {
			return (r^t)<<8 | uint32(i)
		}
	}
	panic("softroce: the CRC table is no bijection")
}

// mulMod is the product of two polynomials modulo P, reflected.
func mulMod(a, b uint32) uint32 {
	var p uint32
	for m := uint32(1) << 31; ; m >>= 1 {
		if a&m != 0 {
			p ^= b
		}
		if m == 1 {
			return p
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
}

func makeIDTables() *idTable {
	t := new(idTable)
	p := unstep(1 << 31) // 1/x^8: what one zero byte turns into 1
	for i := range t.back {
		t.back[i] = p
		p = mulMod(p, p)
	}
	rows := 0
	for bit := range idBits {
		var field [3]byte
		if bit < 16 {
			field[bit/8] = 1 << (bit % 8)
		} else {
			field[2] = 0x40
		}
		// The effect on a register of zeros, without the inversions that crc32 adds.
		r := uint32(0)
		for _, b := range field {
			r = r>>8 ^ crc32.IEEETable[byte(r)^b]
		}
		bits := uint32(1) << bit
		for i := range rows {
			if r&t.pivot[i] != 0 {
				r ^= t.basis[i]
				bits ^= t.bits[i]
			}
		}
		// Seventeen bits lie closer together than the CRC is long, so that no two sets of them have one effect.
		pivot := uint32(1) << 31
		for r&pivot == 0 {
			pivot >>= 1
		}
		for i := range rows {
			if t.basis[i]&pivot != 0 {
				t.basis[i] ^= r
				t.bits[i] ^= bits
			}
		}
		t.basis[rows], t.pivot[rows], t.bits[rows] = r, pivot, bits
		rows++
	}
	return t
}

// solveID tells which bits make diff, seen n bytes after the byte of the don't-fragment bit: those of the identification in
// which it is not 0, and whether the don't-fragment bit is not set. ok is false when none do.
func solveID(diff uint32, n int) (id uint16, mayFragment, ok bool) {
	t := idTables
	for i := 0; n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			diff = mulMod(diff, t.back[i])
		}
	}
	var bits uint32
	for i := range t.basis {
		if diff&t.pivot[i] != 0 {
			diff ^= t.basis[i]
			bits ^= t.bits[i]
		}
	}
	return uint16(bits)<<8 | uint16(bits)>>8, bits>>16 != 0, diff == 0
}
