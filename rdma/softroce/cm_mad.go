package softroce

import (
	"encoding/binary"
	"net/netip"
)

// Management datagrams of the communication manager (IBTA 12.6): 256 bytes, sent as UD SEND Only to QP 1.
const (
	madLen     = 256
	madHeader  = 24
	gsiQP      = 1
	gsiQKey    = 0x80010000
	classCM    = 0x07
	methodSend = 0x03
)

// cmAttr is the attribute ID of a CM message.
type cmAttr uint16

const (
	cmREQ  cmAttr = 0x0010
	cmMRA  cmAttr = 0x0011
	cmREJ  cmAttr = 0x0012
	cmREP  cmAttr = 0x0013
	cmRTU  cmAttr = 0x0014
	cmDREQ cmAttr = 0x0015
	cmDREP cmAttr = 0x0016
)

// Where private data begins and how long it is, counted from the end of the MAD header.
var privateData = map[cmAttr][2]int{
	cmREQ: {140, 92}, cmMRA: {10, 222}, cmREJ: {84, 148}, cmREP: {36, 196}, cmRTU: {8, 224}, cmDREQ: {12, 220}, cmDREP: {8, 224},
}

// Reasons of a REJ.
const (
	rejTimeout          = 4
	rejInvalidServiceID = 8
	rejInvalidMTU       = 26
	rejConsumer         = 28
)

// rdma_cm puts the port space and the port into the service ID, and its own header before the user's private data.
const (
	psTCP       = 0x01060000
	ipHeaderLen = 36
)

// cmMessage is any CM message; fields that its kind lacks are zero.
type cmMessage struct {
	attr                cmAttr
	tid                 uint64
	localComm, remComm  uint32
	serviceID           uint64
	localGUID           uint64
	qpn                 uint32 // REQ, REP: the sender's; DREQ: the receiver's
	psn                 uint32
	responderResources  uint8
	initiatorDepth      uint8
	retryCount          uint8
	rnrRetry            uint8
	mtu                 int // bytes, REQ
	ackTimeout          uint8
	respTimeout         uint8 // REQ: how long we may take; MRA: the time asked for
	flowControl, srq    bool
	localGID, remoteGID [16]byte
	reason              uint16 // REJ
	rejected            uint8  // REJ, MRA: 0 REQ, 1 REP, 2 other
	private             [224]byte
	privateLen          int
}

var mtuCode = map[int]uint8{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
var mtuBytes = [8]int{0, 256, 512, 1024, 2048, 4096, 0, 0}

// encode writes the MAD into b, which has room for madLen bytes.
func (m *cmMessage) encode(b []byte) {
	b = b[:madLen]
	clear(b)
	b[0], b[1], b[2], b[3] = 1, classCM, 2, methodSend
	binary.BigEndian.PutUint64(b[8:], m.tid)
	binary.BigEndian.PutUint16(b[16:], uint16(m.attr))
	d := b[madHeader:]
	be32 := func(off int, v uint32) { binary.BigEndian.PutUint32(d[off:], v) }
	be24 := func(off int, v uint32) { d[off], d[off+1], d[off+2] = byte(v>>16), byte(v>>8), byte(v) }
	be32(0, m.localComm)
	if m.attr != cmREQ {
		be32(4, m.remComm)
	}
	switch m.attr {
	case cmREQ:
		binary.BigEndian.PutUint64(d[8:], m.serviceID)
		binary.BigEndian.PutUint64(d[16:], m.localGUID)
		be24(32, m.qpn)
		d[35] = m.responderResources
		d[39] = m.initiatorDepth
		d[43] = 20<<3 | bit(m.flowControl, 1) // remote response timeout; RC service
		be24(44, m.psn)
		d[47] = m.respTimeout<<3 | m.retryCount&7
		binary.BigEndian.PutUint16(d[48:], defaultPKey)
		d[50] = mtuCode[m.mtu]<<4 | m.rnrRetry&7
		d[51] = 15<<4 | bit(m.srq, 8)
		d[52], d[53], d[54], d[55] = 0xff, 0xff, 0xff, 0xff // LIDs: permissive
		copy(d[56:], m.localGID[:])
		copy(d[72:], m.remoteGID[:])
		d[91] = 2 // packet rate
		d[93] = 64
		d[94] = 8 // subnet local
		d[95] = m.ackTimeout << 3
	case cmREP:
		be24(12, m.qpn)
		be24(20, m.psn)
		d[24], d[25] = m.responderResources, m.initiatorDepth
		d[26] = 15<<3 | bit(m.flowControl, 1)
		d[27] = m.rnrRetry<<5 | bit(m.srq, 0x10)
		binary.BigEndian.PutUint64(d[28:], m.localGUID)
	case cmREJ:
		d[8] = m.rejected << 6
		binary.BigEndian.PutUint16(d[10:], m.reason)
		if m.reason == rejTimeout { // the additional information is the GUID, by which the peer finds its request
			d[9] = 8 << 1
			binary.BigEndian.PutUint64(d[12:], m.localGUID)
		}
	case cmMRA:
		d[8] = m.rejected << 6
		d[9] = m.respTimeout << 3
	case cmDREQ:
		be24(8, m.qpn)
	}
	w := privateData[m.attr]
	copy(d[w[0]:w[0]+w[1]], m.private[:m.privateLen])
}

func bit(v bool, b byte) byte {
	if v {
		return b
	}
	return 0
}

// decode reads a MAD. It is false for whatever is not a CM message.
func (m *cmMessage) decode(b []byte) bool {
	if len(b) != madLen || b[0] != 1 || b[1] != classCM || b[2] != 2 || b[3] != methodSend {
		return false
	}
	m.attr = cmAttr(binary.BigEndian.Uint16(b[16:]))
	w, ok := privateData[m.attr]
	if !ok {
		return false
	}
	m.tid = binary.BigEndian.Uint64(b[8:])
	d := b[madHeader:]
	be32 := func(off int) uint32 { return binary.BigEndian.Uint32(d[off:]) }
	be24 := func(off int) uint32 { return uint32(d[off])<<16 | uint32(d[off+1])<<8 | uint32(d[off+2]) }
	m.localComm = be32(0)
	if m.attr != cmREQ {
		m.remComm = be32(4)
	}
	switch m.attr {
	case cmREQ:
		m.serviceID = binary.BigEndian.Uint64(d[8:])
		m.localGUID = binary.BigEndian.Uint64(d[16:])
		m.qpn = be24(32)
		m.responderResources, m.initiatorDepth = d[35], d[39]
		if d[43]>>1&3 != 0 { // not reliable connected
			return false
		}
		m.flowControl = d[43]&1 != 0
		m.psn = be24(44)
		m.respTimeout, m.retryCount = d[47]>>3, d[47]&7
		m.mtu = mtuBytes[d[50]>>4&7]
		m.rnrRetry = d[50] & 7
		m.srq = d[51]&8 != 0
		copy(m.localGID[:], d[56:])
		copy(m.remoteGID[:], d[72:])
		m.ackTimeout = d[95] >> 3
		if m.mtu == 0 {
			return false
		}
	case cmREP:
		m.qpn, m.psn = be24(12), be24(20)
		m.responderResources, m.initiatorDepth = d[24], d[25]
		m.flowControl = d[26]&1 != 0
		m.rnrRetry = d[27] >> 5
		m.srq = d[27]&0x10 != 0
		m.localGUID = binary.BigEndian.Uint64(d[28:])
	case cmREJ:
		m.rejected = d[8] >> 6
		m.reason = binary.BigEndian.Uint16(d[10:])
		if m.reason == rejTimeout {
			m.localGUID = binary.BigEndian.Uint64(d[12:])
		}
	case cmMRA:
		m.rejected = d[8] >> 6
		m.respTimeout = d[9] >> 3
	case cmDREQ:
		m.qpn = be24(8)
	}
	m.privateLen = copy(m.private[:], d[w[0]:w[0]+w[1]])
	return true
}

// putIPHeader writes rdma_cm's header into the private data of a REQ and user's bytes after it.
func (m *cmMessage) putIPHeader(src, dst netip.AddrPort, user []byte) {
	h := m.private[:92]
	clear(h)
	if src.Addr().Is4() {
		h[1] = 4 << 4
		s, d := src.Addr().As4(), dst.Addr().As4()
		copy(h[16:20], s[:])
		copy(h[32:36], d[:])
	} else {
		h[1] = 6 << 4
		s, d := src.Addr().As16(), dst.Addr().As16()
		copy(h[4:20], s[:])
		copy(h[20:36], d[:])
	}
	binary.BigEndian.PutUint16(h[2:], src.Port())
	copy(h[ipHeaderLen:], user)
	m.privateLen = 92
}

// ipHeader reads rdma_cm's header: the addresses of the connection and the user's private data, zero padded.
func (m *cmMessage) ipHeader() (src, dst netip.AddrPort, user []byte, ok bool) {
	h := m.private[:92]
	if h[0]>>4 != 0 || m.serviceID&^0xffff != psTCP {
		return src, dst, nil, false
	}
	var s, d netip.Addr
	switch h[1] >> 4 {
	case 4:
		s, d = netip.AddrFrom4([4]byte(h[16:20])), netip.AddrFrom4([4]byte(h[32:36]))
	case 6:
		s, d = netip.AddrFrom16([16]byte(h[4:20])), netip.AddrFrom16([16]byte(h[20:36]))
	default:
		return src, dst, nil, false
	}
	port := binary.BigEndian.Uint16(h[2:])
	return netip.AddrPortFrom(s, port), netip.AddrPortFrom(d, uint16(m.serviceID)), h[ipHeaderLen:92], true
}
