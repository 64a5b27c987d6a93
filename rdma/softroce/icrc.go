package softroce

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The invariant CRC of RoCEv2 (IBTA annex A17) is the Ethernet CRC-32 over eight bytes of ones in place of the link
// header, the IP and UDP headers with the fields that routers change set to ones, and everything from the BTH on, the
// BTH's reserved byte too being ones. It stands at the end of the packet, least significant byte first.

// icrcSeed is the CRC of the eight bytes of ones.
var icrcSeed = crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})

// flow is what the ICRC needs to know of the path of a packet.
type flow struct {
	src, dst         netip.Addr // both IPv4 or both IPv6
	srcPort, dstPort uint16
}

// icrc computes invariant CRCs. Its buffer is what keeps the headers off the heap; it belongs to one user at a time.
type icrc struct {
	head [40 + 8 + bthLen]byte
}

// sum is the CRC of the packet b, whose last four bytes are room for it. ipID is the IPv4 identification.
func (c *icrc) sum(f *flow, b []byte, ipID uint16) uint32 {
	n := len(b)
	h := c.head[:]
	var udp []byte
	if f.src.Is4() {
		h[0] = 0x45
		h[1] = 0xff // type of service
		binary.BigEndian.PutUint16(h[2:], uint16(28+n))
		binary.BigEndian.PutUint16(h[4:], ipID)
		h[6], h[7] = 0x40, 0      // don't fragment
		h[8] = 0xff               // time to live
		h[9] = 17                 // UDP
		h[10], h[11] = 0xff, 0xff // header checksum
		s, d := f.src.As4(), f.dst.As4()
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		udp, h = h[20:28], h[:28+bthLen]
	} else {
		h[0], h[1], h[2], h[3] = 0x6f, 0xff, 0xff, 0xff // version, traffic class and flow label
		binary.BigEndian.PutUint16(h[4:], uint16(8+n))
		h[6] = 17
		h[7] = 0xff // hop limit
		s, d := f.src.As16(), f.dst.As16()
		copy(h[8:], s[:])
		copy(h[24:], d[:])
		udp = h[40:48]
	}
	binary.BigEndian.PutUint16(udp, f.srcPort)
	binary.BigEndian.PutUint16(udp[2:], f.dstPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+n))
	udp[6], udp[7] = 0xff, 0xff // checksum
	bth := h[len(h)-bthLen:]
	copy(bth, b)
	bth[4] = 0xff
	crc := crc32.Update(icrcSeed, crc32.IEEETable, h)
	return crc32.Update(crc, crc32.IEEETable, b[bthLen:n-icrcLen])
}

// put completes the packet b.
func (c *icrc) put(f *flow, b []byte, ipID uint16) {
	binary.LittleEndian.PutUint32(b[len(b)-icrcLen:], c.sum(f, b, ipID))
}

// check verifies the ICRC as far as it can be known here. Over IPv6 that is all of it. Over IPv4 the identification and
// the don't-fragment bit are covered too, and a socket does not show them: the check then is whether there are values
// with which the ICRC is right, which a damaged packet has once in 32768 times. Those values are returned, for
// [identTrack] to judge.
func (c *icrc) check(f *flow, b []byte) (id ident, ok bool) {
	got := binary.LittleEndian.Uint32(b[len(b)-icrcLen:])
	want := c.sum(f, b, 0)
	if got == want {
		return ident{}, true
	}
	if !f.src.Is4() {
		return ident{}, false
	}
	// The CRC is linear: the difference is that of the two fields alone, moved on by the bytes after them.
	id.id, id.mayFragment, ok = solveID(got^want, 28-7+len(b)-icrcLen)
	return id, ok
}
