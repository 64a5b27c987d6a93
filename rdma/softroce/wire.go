package softroce

import "encoding/binary"

// Sizes of the headers of the InfiniBand transport, in bytes.
const (
	bthLen       = 12
	rethLen      = 16
	aethLen      = 4
	immLen       = 4
	iethLen      = 4
	dethLen      = 8
	atomicLen    = 28
	atomicAckLen = 8
	icrcLen      = 4
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// opcode is the BTH opcode: transport class in the top three bits, operation below.
type opcode uint8

const (
	opSendFirst      opcode = 0x00
	opSendMiddle     opcode = 0x01
	opSendLast       opcode = 0x02
	opSendLastImm    opcode = 0x03
	opSendOnly       opcode = 0x04
	opSendOnlyImm    opcode = 0x05
	opWriteFirst     opcode = 0x06
	opWriteMiddle    opcode = 0x07
	opWriteLast      opcode = 0x08
	opWriteLastImm   opcode = 0x09
	opWriteOnly      opcode = 0x0a
	opWriteOnlyImm   opcode = 0x0b
	opReadRequest    opcode = 0x0c
	opReadRespFirst  opcode = 0x0d
	opReadRespMiddle opcode = 0x0e
	opReadRespLast   opcode = 0x0f
	opReadRespOnly   opcode = 0x10
	opAcknowledge    opcode = 0x11
	opAtomicAck      opcode = 0x12
	opCompareSwap    opcode = 0x13
	opFetchAdd       opcode = 0x14
	opSendLastInv    opcode = 0x16
	opSendOnlyInv    opcode = 0x17
	opUDSendOnly     opcode = 0x64
	opUDSendOnlyImm  opcode = 0x65
	opCNP            opcode = 0x81
)

// Bits of opcodeInfo.
const (
	hasRETH = 1 << iota
	hasAETH
	hasImm
	hasIETH
	hasDETH
	hasAtomic
	hasAtomicAck
	hasPayload
	isFirst
	isLast
	isRequest
	isResponse
	isSend
	isWrite
	isKnown
)

var opcodeInfo = func() (t [256]uint16) {
	set := func(op opcode, bits uint16) { t[op] = bits | isKnown }
	set(opSendFirst, isRequest|isSend|isFirst|hasPayload)
	set(opSendMiddle, isRequest|isSend|hasPayload)
	set(opSendLast, isRequest|isSend|isLast|hasPayload)
	set(opSendLastImm, isRequest|isSend|isLast|hasImm|hasPayload)
	set(opSendOnly, isRequest|isSend|isFirst|isLast|hasPayload)
	set(opSendOnlyImm, isRequest|isSend|isFirst|isLast|hasImm|hasPayload)
	set(opSendLastInv, isRequest|isSend|isLast|hasIETH|hasPayload)
	set(opSendOnlyInv, isRequest|isSend|isFirst|isLast|hasIETH|hasPayload)
	set(opWriteFirst, isRequest|isWrite|isFirst|hasRETH|hasPayload)
	set(opWriteMiddle, isRequest|isWrite|hasPayload)
	set(opWriteLast, isRequest|isWrite|isLast|hasPayload)
	set(opWriteLastImm, isRequest|isWrite|isLast|hasImm|hasPayload)
	set(opWriteOnly, isRequest|isWrite|isFirst|isLast|hasRETH|hasPayload)
	set(opWriteOnlyImm, isRequest|isWrite|isFirst|isLast|hasRETH|hasImm|hasPayload)
	set(opReadRequest, isRequest|isFirst|isLast|hasRETH)
	set(opCompareSwap, isRequest|isFirst|isLast|hasAtomic)
	set(opFetchAdd, isRequest|isFirst|isLast|hasAtomic)
	set(opReadRespFirst, isResponse|isFirst|hasAETH|hasPayload)
	set(opReadRespMiddle, isResponse|hasPayload)
	set(opReadRespLast, isResponse|isLast|hasAETH|hasPayload)
	set(opReadRespOnly, isResponse|isFirst|isLast|hasAETH|hasPayload)
	set(opAcknowledge, isResponse|isFirst|isLast|hasAETH)
	set(opAtomicAck, isResponse|isFirst|isLast|hasAETH|hasAtomicAck)
	set(opUDSendOnly, isRequest|isFirst|isLast|hasDETH|hasPayload)
	set(opCNP, isRequest|isFirst|isLast|hasPayload)
	set(opUDSendOnlyImm, isRequest|isFirst|isLast|hasDETH|hasImm|hasPayload)
	return t
}()

func (o opcode) has(bits uint16) bool { return opcodeInfo[o]&bits != 0 }

// psn arithmetic is modulo 2^24.
const psnMask = 1<<24 - 1

// psnDiff is a-b as a signed distance.
func psnDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }

// packet is a parsed packet; payload aliases the datagram.
type packet struct {
	op               opcode
	solicited        bool
	ackReq           bool
	pkey             uint16
	destQP, psn      uint32
	becn, fecn       bool
	va               uint64 // RETH or AtomicETH
	rkey, dmaLen     uint32
	syndrome         uint8
	msn              uint32
	imm, invKey      uint32
	qkey, srcQP      uint32
	swapAdd, compare uint64
	atomicOrig       uint64
	payload          []byte
}

// parse reads the UDP payload b, the ICRC at its end included but not checked. It is false for whatever is not a
// well-formed packet of a known opcode: such a datagram is dropped (IBTA 9.6).
func (p *packet) parse(b []byte) bool {
	if len(b) < bthLen+icrcLen {
		return false
	}
	p.op = opcode(b[0])
	info := opcodeInfo[p.op]
	if info&isKnown == 0 {
		return false
	}
	if b[1]&0x0f != 0 { // transport header version must be 0
		return false
	}
	pad := int(b[1] >> 4 & 3)
	p.solicited = b[1]&0x80 != 0
	p.pkey = binary.BigEndian.Uint16(b[2:])
	p.fecn, p.becn = b[4]&0x80 != 0, b[4]&0x40 != 0
	p.destQP = binary.BigEndian.Uint32(b[4:]) & psnMask
	p.ackReq = b[8]&0x80 != 0
	p.psn = binary.BigEndian.Uint32(b[8:]) & psnMask
	h := b[bthLen : len(b)-icrcLen]
	take := func(n int) []byte {
		if len(h) < n {
			return nil
		}
		x := h[:n]
		h = h[n:]
		return x
	}
	if info&hasDETH != 0 {
		x := take(dethLen)
		if x == nil {
			return false
		}
		p.qkey = binary.BigEndian.Uint32(x)
		p.srcQP = binary.BigEndian.Uint32(x[4:]) & psnMask
	}
	if info&hasRETH != 0 {
		x := take(rethLen)
		if x == nil {
			return false
		}
		p.va, p.rkey, p.dmaLen = binary.BigEndian.Uint64(x), binary.BigEndian.Uint32(x[8:]), binary.BigEndian.Uint32(x[12:])
	}
	if info&hasAtomic != 0 {
		x := take(atomicLen)
		if x == nil {
			return false
		}
		p.va, p.rkey = binary.BigEndian.Uint64(x), binary.BigEndian.Uint32(x[8:])
		p.swapAdd, p.compare = binary.BigEndian.Uint64(x[12:]), binary.BigEndian.Uint64(x[20:])
	}
	if info&hasAETH != 0 {
		x := take(aethLen)
		if x == nil {
			return false
		}
		p.syndrome, p.msn = x[0], binary.BigEndian.Uint32(x)&psnMask
	}
	if info&hasAtomicAck != 0 {
		x := take(atomicAckLen)
		if x == nil {
			return false
		}
		p.atomicOrig = binary.BigEndian.Uint64(x)
	}
	if info&hasImm != 0 {
		x := take(immLen)
		if x == nil {
			return false
		}
		p.imm = binary.BigEndian.Uint32(x)
	}
	if info&hasIETH != 0 {
		x := take(iethLen)
		if x == nil {
			return false
		}
		p.invKey = binary.BigEndian.Uint32(x)
	}
	if info&hasPayload == 0 {
		p.payload = nil
		return len(h) == 0 && pad == 0
	}
	if len(h) < pad || len(h)%4 != 0 {
		return false
	}
	p.payload = h[:len(h)-pad]
	return true
}

// putBTH writes the base transport header.
func putBTH(b []byte, op opcode, pad int, solicited, ackReq bool, destQP, psn uint32) {
	b[0] = byte(op)
	b[1] = byte(pad) << 4
	if solicited {
		b[1] |= 0x80
	}
	b[1] |= 0x40 // MigReq: migrated, the state of a path that never migrates
	binary.BigEndian.PutUint16(b[2:], defaultPKey)
	binary.BigEndian.PutUint32(b[4:], destQP&psnMask)
	binary.BigEndian.PutUint32(b[8:], psn&psnMask)
	if ackReq {
		b[8] |= 0x80
	}
}

const defaultPKey = 0xffff

func putRETH(b []byte, va uint64, rkey, n uint32) {
	binary.BigEndian.PutUint64(b, va)
	binary.BigEndian.PutUint32(b[8:], rkey)
	binary.BigEndian.PutUint32(b[12:], n)
}

func putAETH(b []byte, syndrome uint8, msn uint32) {
	binary.BigEndian.PutUint32(b, msn&psnMask)
	b[0] = syndrome
}

func putDETH(b []byte, qkey, srcQP uint32) {
	binary.BigEndian.PutUint32(b, qkey)
	binary.BigEndian.PutUint32(b[4:], srcQP&psnMask)
}
