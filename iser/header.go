package iser

import (
	"encoding/binary"
	"errors"

	"iserd/iscsi/pdu"
)

// Opcode is the high nibble of the first byte of an iSER header.
type Opcode uint8

const (
	OpControl    Opcode = 1
	OpHello      Opcode = 2
	OpHelloReply Opcode = 3
)

func (o Opcode) String() string {
	switch o {
	case OpControl:
		return "iSCSI control-type PDU"
	case OpHello:
		return "iSER Hello"
	case OpHelloReply:
		return "iSER HelloReply"
	}
	return "iSER opcode(?)"
}

const (
	// HeaderLength is the length of the header before an iSCSI control-type PDU. It is the expanded one, with base
	// offsets, since nobody uses zero-based virtual addresses.
	HeaderLength = 28
	bhsLength    = 48
	// headersLength is what every control-type message has at least.
	headersLength = HeaderLength + bhsLength

	flagWSV = 0x08
	flagRSV = 0x04

	// The Hello messages end after their reserved words: 12 bytes. A peer that fills them up to the length of the
	// expanded header gets an answer of that length.
	helloLength = 12
	// ourVersion is the iSER version that RFC 5046 and RFC 7145 describe.
	ourVersion = 1
	helloREJ   = 0x01
)

// Header is the iSER header of an iSCSI control-type PDU (RFC 7145): the STags and base offsets of the initiator's
// buffers. WSV and RSV say which are meant; a valid flag beside STag 0 happens (a write that is all immediate data).
type Header struct {
	WriteSTag, ReadSTag             uint32
	WriteBaseOffset, ReadBaseOffset uint64
	WSV, RSV                        bool
}

var (
	errShortHeader = errors.New("iser: message shorter than its headers")
	errOpcode      = errors.New("iser: unexpected iSER opcode")
	errLength      = errors.New("iser: message shorter than the lengths in its header")
)

// opcodeOf is the opcode of a message; 0, which is none, for an empty one.
func opcodeOf(msg []byte) Opcode {
	if len(msg) == 0 {
		return 0
	}
	return Opcode(msg[0] >> 4)
}

// ParseHeader reads the header of a control-type PDU. Reserved bits are ignored, as receivers must.
func ParseHeader(msg []byte) (h Header, err error) {
	if len(msg) < HeaderLength {
		return h, errShortHeader
	}
	if opcodeOf(msg) != OpControl {
		return h, errOpcode
	}
	h.WSV, h.RSV = msg[0]&flagWSV != 0, msg[0]&flagRSV != 0
	h.WriteSTag = binary.BigEndian.Uint32(msg[4:])
	h.WriteBaseOffset = binary.BigEndian.Uint64(msg[8:])
	h.ReadSTag = binary.BigEndian.Uint32(msg[16:])
	h.ReadBaseOffset = binary.BigEndian.Uint64(msg[20:])
	return h, nil
}

// Put writes the header into the first HeaderLength bytes of dst.
func (h *Header) Put(dst []byte) {
	_ = dst[HeaderLength-1]
	clear(dst[:HeaderLength])
	dst[0] = byte(OpControl) << 4
	if h.WSV {
		dst[0] |= flagWSV
	}
	if h.RSV {
		dst[0] |= flagRSV
	}
	binary.BigEndian.PutUint32(dst[4:], h.WriteSTag)
	binary.BigEndian.PutUint64(dst[8:], h.WriteBaseOffset)
	binary.BigEndian.PutUint32(dst[16:], h.ReadSTag)
	binary.BigEndian.PutUint64(dst[20:], h.ReadBaseOffset)
}

// message is a received control-type message, cut into its parts; the slices point into the receive buffer.
type message struct {
	header Header
	bhs    []byte // 48 bytes
	ahs    []byte
	data   []byte // without padding
}

// parseMessage cuts up what a receive brought. Nothing in the headers is believed before it was held against the length
// that arrived. The data segment may be padded to four bytes or not: both are in use. What comes after it is ignored.
func parseMessage(msg []byte) (m message, err error) {
	if m.header, err = ParseHeader(msg); err != nil {
		return m, err
	}
	if len(msg) < headersLength {
		return m, errShortHeader
	}
	m.bhs = msg[HeaderLength:headersLength:headersLength]
	ahs := int(m.bhs[4]) * 4
	data := int(m.bhs[5])<<16 | int(m.bhs[6])<<8 | int(m.bhs[7])
	if len(msg)-headersLength < ahs+data {
		// libiscsi up to 1.19 states the length of immediate data but sends none: all of it is behind the STag, from the
		// base offset on. Such a message ends exactly with its headers.
		if len(msg) != headersLength+ahs || !m.header.WSV || m.header.WriteSTag == 0 || pdu.Opcode(m.bhs[0]&0x3f) != pdu.OpSCSICommand {
			return m, errLength
		}
		m.bhs[5], m.bhs[6], m.bhs[7] = 0, 0, 0
		data = 0
	}
	end := headersLength + ahs
	m.ahs = msg[headersLength:end:end]
	m.data = msg[end : end+data : end+data]
	return m, nil
}

// Hello is an iSER Hello message.
type Hello struct {
	MaxVersion, MinVersion uint8
	IRD                    uint16 // RDMA READs that the initiator answers at a time
}

// ParseHello reads a Hello message.
func ParseHello(msg []byte) (h Hello, err error) {
	if len(msg) < helloLength {
		return h, errShortHeader
	}
	if opcodeOf(msg) != OpHello {
		return h, errOpcode
	}
	return Hello{MaxVersion: msg[1] >> 4, MinVersion: msg[1] & 0x0f, IRD: binary.BigEndian.Uint16(msg[2:])}, nil
}

// acceptable tells whether we speak one of the peer's versions.
func (h Hello) acceptable() bool { return h.MinVersion <= ourVersion && h.MaxVersion >= ourVersion }

// putHelloReply writes the answer to h into dst and returns its length, which follows the length of the Hello.
func putHelloReply(dst []byte, h Hello, ord uint16, helloMessage int) int {
	n := helloLength
	if helloMessage >= HeaderLength {
		n = HeaderLength
	}
	clear(dst[:n])
	dst[0] = byte(OpHelloReply) << 4
	if !h.acceptable() {
		dst[0] |= helloREJ
	}
	dst[1] = ourVersion<<4 | ourVersion
	binary.BigEndian.PutUint16(dst[2:], ord)
	return n
}

// Flags of the private data in connect request and reply: four bytes, of which the first has these bits.
const (
	cmNoZBVA          = 0x80 // request: not supported; reply: not used
	cmNoSendWithInv   = 0x40 // the same for Send with Invalidate
	cmPrivateDataSize = 4
)

// peerInvalidates tells from a request's private data whether the initiator takes Send with Invalidate. The connection
// manager pads absent data with zeros, which would read as support; every real iSER initiator sets the ZBVA bit, so
// that bit is the proof that the byte is the peer's.
func peerInvalidates(private []byte) bool {
	return len(private) > 0 && private[0]&cmNoZBVA != 0 && private[0]&cmNoSendWithInv == 0
}

// replyPrivateData is what goes back with accept.
func replyPrivateData(invalidate bool) [cmPrivateDataSize]byte {
	if invalidate {
		return [cmPrivateDataSize]byte{cmNoZBVA}
	}
	return [cmPrivateDataSize]byte{cmNoZBVA | cmNoSendWithInv}
}
