// Package serial is 32-bit serial number arithmetic (RFC 1982), as iSCSI sequence numbers need it. A Number is a struct,
// so that comparing two with < does not compile.
package serial

// Number is a sequence number that wraps at 2^32.
type Number struct{ v uint32 }

// New makes a Number of its wire value.
func New(v uint32) Number { return Number{v} }

// Uint32 is the wire value.
func (n Number) Uint32() uint32 { return n.v }

// Add is n+d, modulo 2^32. A negative step is Add with its two's complement, or Sub of the distance.
func (n Number) Add(d uint32) Number { return Number{n.v + d} }

// Next is n+1.
func (n Number) Next() Number { return Number{n.v + 1} }

// Sub is the signed distance n-o: positive when n is after o. At a distance of exactly 2^31, where RFC 1982 leaves the
// order undefined, it is negative both ways.
func (n Number) Sub(o Number) int32 { return int32(n.v - o.v) }

// Less says that n is before o.
func (n Number) Less(o Number) bool { return n.Sub(o) < 0 }

// LessEq says that n is o or before it.
func (n Number) LessEq(o Number) bool { return n.Sub(o) <= 0 }

// InWindow says that n is in lo..hi, both ends included. An empty window (hi before lo) holds nothing.
func (n Number) InWindow(lo, hi Number) bool { return lo.LessEq(n) && n.LessEq(hi) }
