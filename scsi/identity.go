package scsi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// What INQUIRY shows when nothing else is set. Host software keys on these strings: they do not change.
const (
	DefaultVendor  = "ISERD"
	DefaultProduct = "VIRTUAL-DISK"
)

// Identity is what tells one logical unit from all others. Serial and NAA must differ between any two logical units
// that one host can see, and must not change while data is on them.
type Identity struct {
	Vendor   string // up to 8 characters; empty is DefaultVendor
	Product  string // up to 16; empty is DefaultProduct
	Revision string // up to 4
	Serial   string // up to 36
	NAA      [16]byte
}

// NewIdentity derives Serial and NAA from seed: the same from the same seed, on every host. An empty seed stands for 128
// random bits.
//
// The name is NAA 6 (IEEE Registered Extended), the form with room for more than a hundred bits of it and the one that
// Linux prefers. NAA 3, the locally assigned form, has 60 bits, and hosts take it only when there is nothing better. NAA
// 6 begins with an OUI; this project owns none and must not use that of others, so the OUI is made like an address that
// is administered locally: the universal/local bit set, the group bit clear, the rest from the digest. No vendor is ever
// assigned such an OUI.
func NewIdentity(seed string) Identity {
	var digest [sha256.Size]byte
	if seed == "" {
		rand.Read(digest[:]) // never fails: crypto/rand ends the process instead
	} else {
		digest = sha256.Sum256([]byte("iserd logical unit\x00" + seed))
	}
	id := Identity{Vendor: DefaultVendor, Product: DefaultProduct, Serial: hex.EncodeToString(digest[16:26])}
	copy(id.NAA[:], digest[:16])
	id.NAA[0] = 0x60 | id.NAA[0]&0x0F
	// The OUI's first octet is the low half of byte 0 and the high half of byte 1.
	id.NAA[1] = id.NAA[1]&^0x10 | 0x20
	return id
}

func (id *Identity) validate() error {
	if id.Vendor == "" {
		id.Vendor = DefaultVendor
	}
	if id.Product == "" {
		id.Product = DefaultProduct
	}
	for _, f := range []struct {
		name, value string
		max         int
	}{
		{"vendor", id.Vendor, 8}, {"product", id.Product, 16}, {"serial", id.Serial, 36},
	} {
		if len(f.value) > f.max {
			return fmt.Errorf("%s %q has more than %d characters", f.name, f.value, f.max)
		}
		if !printable(f.value) {
			return fmt.Errorf("%s %q must be printable ASCII", f.name, f.value)
		}
	}
	// A version like "0.1.0-rc1" is cut, not refused: it names the software, not the disk.
	if len(id.Revision) > 4 {
		id.Revision = id.Revision[:4]
	}
	if !printable(id.Revision) {
		return fmt.Errorf("revision %q must be printable ASCII", id.Revision)
	}
	if id.Serial == "" {
		return fmt.Errorf("no serial number: set one, or take the identity from NewIdentity")
	}
	if id.NAA == ([16]byte{}) {
		return fmt.Errorf("no NAA name: set one, or take the identity from NewIdentity")
	}
	if id.NAA[0]>>4 != 6 {
		return fmt.Errorf("NAA name %x: 16-byte names begin with 6", id.NAA)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// putPadded fills b with s and spaces.
func putPadded(b []byte, s string) {
	n := copy(b, s)
	for i := n; i < len(b); i++ {
		b[i] = ' '
	}
}
