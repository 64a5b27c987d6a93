package tcp

import (
	"fmt"

	"golang.org/x/sys/unix"

	"iserd/iscsi"
	"iserd/iscsi/login"
	"iserd/iscsi/pdu"
)

// rxState is the receiving side of a connection. Guarded by the turn.
type rxState struct {
	chunk *chunk // nil while there is nothing to read
	slot  int    // of chunk in conn.chunks
	r, w  int    // bytes r to w of chunk are unread
	want  int    // unread bytes that the next step needs
	iov   []unix.Iovec

	fullFeature              bool
	headerDigest, dataDigest bool
	maxSegment               int // what the target declared; in login what RFC 7143 allows
	firstBurst               uint32
	initialR2T               bool
	maxR2T                   int
	// deaf: the stream makes no sense any more.
	deaf bool

	// The Data-Out PDU under way: its header came, its data not entirely.
	inData bool
	header pdu.BHS
	left   int    // data bytes
	trail  int    // bytes of padding and digest after them
	offset uint32 // in the initiator's buffer, of the next byte
	crc    uint32
	// What it belongs to: a transfer, a burst that no transfer takes yet (spill), or nothing.
	x     *xfer
	burst *burst
	r2t   *r2t
	spill []byte
}

func (rx *rxState) unread() []byte {
	if rx.chunk == nil {
		return nil
	}
	return rx.chunk.buf[rx.r:rx.w]
}

// smallRest is how much unread data is rather copied to where there is room than left in a nearly full chunk.
const smallRest = 4 << 10

// room makes room in the chunk for at least want bytes in total, and for a decent read.
func (c *conn) room() {
	rx := &c.rx
	if rx.chunk == nil {
		c.newChunk(rx.want)
		return
	}
	if rx.r == rx.w && rx.chunk.refs == 0 {
		rx.r, rx.w = 0, 0
	}
	have := rx.w - rx.r
	fits := rx.r+rx.want <= len(rx.chunk.buf) && rx.w < len(rx.chunk.buf)
	if fits && (len(rx.chunk.buf)-rx.w >= smallRest || have > smallRest) {
		return
	}
	if rx.chunk.refs == 0 && rx.want <= len(rx.chunk.buf) {
		if rx.r == 0 {
			return // nothing to gain
		}
		copy(rx.chunk.buf, rx.chunk.buf[rx.r:rx.w])
		rx.r, rx.w = 0, have
		return
	}
	old := rx.chunk
	rest := old.buf[rx.r:rx.w]
	oldSlot := rx.slot
	c.newChunk(rx.want)
	copy(rx.chunk.buf, rest)
	rx.r, rx.w = 0, len(rest)
	if old.refs == 0 {
		c.freeChunk(oldSlot)
	}
}

// newChunk takes a chunk of at least want bytes.
func (c *conn) newChunk(want int) {
	ch := c.srv.takeChunk(want)
	c.rx.chunk, c.rx.r, c.rx.w = ch, 0, 0
	for i, other := range c.chunks {
		if other == nil {
			c.chunks[i], c.rx.slot = ch, i
			return
		}
	}
	c.rx.slot = len(c.chunks)
	c.chunks = append(c.chunks, ch)
}

func (s *Server) takeChunk(want int) *chunk {
	if want > chunkSize {
		return &chunk{buf: make([]byte, want)}
	}
	return s.chunks.get()
}

func (c *conn) freeChunk(slot int) {
	ch := c.chunks[slot]
	c.chunks[slot] = nil
	if len(ch.buf) == chunkSize {
		c.srv.chunks.put(ch)
	}
}

// ReleaseControl implements [iscsi.Datamover].
func (c *conn) ReleaseControl(handle int) {
	ch := c.chunks[handle]
	ch.refs--
	if ch.refs == 0 && ch != c.rx.chunk {
		c.freeChunk(handle)
	}
}

// fill makes one system call: into the buffers of the Data-Out PDU under way first, the rest into the chunk.
func (c *conn) fill() (int, unix.Errno) {
	rx := &c.rx
	c.room()
	rx.iov = rx.iov[:0]
	direct := 0
	if rx.inData && rx.left > 0 && rx.r == rx.w {
		direct = c.direct()
	}
	if rx.w < len(rx.chunk.buf) {
		rx.iov = appendIovec(rx.iov, rx.chunk.buf[rx.w:])
	}
	n, errno := readv(c.fd, rx.iov)
	if errno != 0 {
		return 0, errno
	}
	c.n.reads++
	c.n.bytesIn += uint64(n)
	d := min(n, direct)
	if d > 0 {
		c.placed(d)
	}
	rx.w += n - d
	return n, 0
}

// parse works on every whole PDU that has been read.
func (c *conn) parse() {
	rx := &c.rx
	for c.phase == phaseOpen && !rx.deaf {
		rx.want = pdu.BHSLength
		if rx.inData {
			if !c.consume() {
				return
			}
			c.pump()
			continue
		}
		b := rx.unread()
		if len(b) < pdu.BHSLength {
			return
		}
		bhs := (*pdu.BHS)(b)
		if cause := c.checkLengths(bhs); cause != "" {
			c.malformed(cause)
			return
		}
		head := pdu.BHSLength + bhs.TotalAHSLength()
		all := head
		if rx.headerDigest {
			all += pdu.DigestLength
		}
		if len(b) < all {
			rx.want = all
			return
		}
		if rx.headerDigest && pdu.GetDigest(b[head:]) != pdu.UpdateDigest(0, b[:head]) {
			c.n.digestErrors++
			c.malformed("header digest error")
			return
		}
		n := bhs.DataSegmentLength()
		if rx.fullFeature && bhs.Opcode() == pdu.OpDataOut {
			rx.r += all
			c.beginDataOut(bhs, n)
			c.pump()
			continue
		}
		start := all
		all += pdu.Pad4(n)
		if rx.dataDigest && n > 0 {
			all += pdu.DigestLength
		}
		if len(b) < all {
			rx.want = all
			return
		}
		rx.r += all
		c.notify(bhs, b[pdu.BHSLength:head:head], b[start:all], n)
		c.pump()
	}
	rx.r = rx.w // what is left is not listened to
}

// checkLengths refuses what cannot be an initiator's PDU before anything is allocated or waited for.
func (c *conn) checkLengths(bhs *pdu.BHS) (cause string) {
	if n := bhs.DataSegmentLength(); n > c.rx.maxSegment {
		return fmt.Sprintf("%s with a data segment of %d bytes, more than %d", bhs.Opcode(), n, c.rx.maxSegment)
	}
	if !c.rx.fullFeature && !bhs.Opcode().FromInitiator() {
		return fmt.Sprintf("%s before login: not an iSCSI initiator", bhs.Opcode())
	}
	return ""
}

func (c *conn) malformed(cause string) {
	c.rx.deaf = true
	c.rx.r = c.rx.w
	c.eng.MalformedNotify(cause)
	c.pump()
}

// notify hands a control-type PDU up. tail is the data segment of n bytes, padding and digest.
func (c *conn) notify(bhs *pdu.BHS, ahs, tail []byte, n int) {
	c.n.pdusIn++
	c.control = iscsi.Control{BHS: bhs, AHS: ahs, Data: tail[:n:n], Handle: c.rx.slot}
	if c.rx.dataDigest && n > 0 {
		end := pdu.Pad4(n)
		if pdu.GetDigest(tail[end:]) != pdu.UpdateDigest(0, tail[:end]) {
			c.n.digestErrors++
			c.control.DataDigestError = true
		}
	}
	if c.rx.fullFeature && bhs.Opcode() == pdu.OpSCSICommand {
		if cmd := bhs.SCSICommand(); cmd.Write() && !cmd.Final() {
			note, ok := c.newBurst(cmd, c.control.DataDigestError)
			if !ok {
				c.malformed("more commands with unsolicited data than the command window allows")
				return
			}
			c.control.Private[0] = note
		}
	}
	ch := c.rx.chunk
	c.eng.ControlNotify(&c.control)
	if c.control.Retain {
		ch.refs++
	}
}

// AllocateConnectionResources implements [iscsi.Datamover].
func (c *conn) AllocateConnectionResources(r iscsi.Resources) error {
	if r.Tasks > maxSlots {
		return fmt.Errorf("tcp: %d task slots, at most %d", r.Tasks, maxSlots)
	}
	c.xfers = make([]xfer, r.Tasks)
	return nil
}

// NoticeKeyValues implements [iscsi.Datamover].
func (c *conn) NoticeKeyValues(p login.Params) {
	c.params = p
	if c.rx.fullFeature {
		c.apply()
	}
}

// apply makes the negotiated values those of this moment.
func (c *conn) apply() {
	p := &c.params
	c.rx.maxSegment = int(p.MaxRecvDataSegmentLength)
	c.rx.firstBurst = p.FirstBurstLength
	c.rx.initialR2T = p.InitialR2T
	c.rx.maxR2T = int(min(max(p.MaxOutstandingR2T, 1), maxR2T))
	c.rx.headerDigest = p.HeaderDigest
	c.rx.dataDigest = p.DataDigest
	c.tx.maxSegment = int(p.MaxSendDataSegmentLength)
	c.tx.maxBurst = p.MaxBurstLength
	c.tx.headerDigest, c.tx.dataDigest = c.rx.headerDigest, c.rx.dataDigest
}

// EnableDatamover implements [iscsi.Datamover]. Digests begin with the PDU after the response, and after the request
// that it answers.
func (c *conn) EnableDatamover(finalResponse *pdu.BHS, data []byte) {
	c.SendControl(finalResponse, data, nil)
	c.rx.fullFeature = true
	c.apply()
}
