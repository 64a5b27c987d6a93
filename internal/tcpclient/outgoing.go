package tcpclient

import (
	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
)

// writeRoom is how many bytes are collected for one write, at least while there is something to send.
const writeRoom = 256 << 10

// outgoing is what waits for the socket: PDUs made, and data that the target may be sent.
type outgoing struct {
	buf    []byte
	sent   int // bytes of buf
	bursts []burst
	first  int // of bursts
	hdr    pdu.BHS
}

// burst is data-out that the target takes: what it asked for with an R2T, or the unsolicited rest of the first burst.
type burst struct {
	slot     int
	itt, ttt uint32
	sn       uint32
	from, to int
}

func (o *outgoing) init(segment int) {
	o.buf = make([]byte, 0, writeRoom+segment+pdu.BHSLength+16)
}

func (o *outgoing) pending() []byte { return o.buf[o.sent:] }
func (o *outgoing) empty() bool     { return o.sent == len(o.buf) }

func (o *outgoing) push(b burst) {
	if o.first > len(o.bursts)/2 && len(o.bursts) == cap(o.bursts) {
		o.bursts = o.bursts[:copy(o.bursts, o.bursts[o.first:])]
		o.first = 0
	}
	o.bursts = append(o.bursts, b)
}

// emit queues a request, which it numbers.
func (s *Session) emit(h *pdu.BHS, data []byte) {
	s.conn.Number(h)
	s.out.buf = s.conn.Append(s.out.buf, h, nil, data)
}

// fill makes the next large write, once the last one is out: data that was asked for, then commands.
func (s *Session) fill() {
	o := &s.out
	if !o.empty() {
		return
	}
	o.buf, o.sent = o.buf[:0], 0
	for len(o.buf) < writeRoom && o.first < len(o.bursts) {
		if s.dataOut(&o.bursts[o.first]) {
			o.first++
		}
	}
	if o.first == len(o.bursts) {
		o.bursts, o.first = o.bursts[:0], 0
	}
	for t := s.tasks.Held(); t != nil && len(o.buf) < writeRoom && s.conn.Open(); t = s.tasks.Held() {
		s.command(t)
		s.tasks.Sent()
	}
}

// command queues a command with what may go with it, and what may follow it unasked.
func (s *Session) command(t *initiator.Task) {
	m, p := &s.memory[t.Slot], &s.conn.Params
	m.itt = s.tags.SlotITT(uint32(t.Slot))
	m.dataIns, m.r2ts, m.got = 0, 0, 0
	first, imm := min(len(t.DataOut), int(p.FirstBurstLength)), 0
	if p.ImmediateData {
		imm = min(first, int(p.MaxSendDataSegmentLength))
	}
	more := !p.InitialR2T && first > imm
	cmd := initiator.Command{LUN: t.LUN, CDB: t.CDB[:], ITT: m.itt, In: len(t.DataIn), Out: len(t.DataOut), More: more}
	h := &s.out.hdr
	*h = pdu.BHS{}
	cmd.Put(h)
	s.emit(h, t.DataOut[:imm])
	if more {
		s.out.push(burst{slot: t.Slot, itt: m.itt, ttt: pdu.ReservedTag, from: imm, to: first})
	}
}

// dataOut queues the next Data-Out PDU of a burst and tells whether it was the last. A task that has ended meanwhile, by an
// error of the target's, sends no more.
func (s *Session) dataOut(b *burst) bool {
	if !s.tasks.Under(b.slot) || s.memory[b.slot].itt != b.itt {
		return true
	}
	n := min(b.to-b.from, int(s.conn.Params.MaxSendDataSegmentLength))
	h := &s.out.hdr
	*h = DataOut(b.itt, b.ttt, b.sn, uint32(b.from), b.from+n == b.to)
	h.DataOut().SetExpStatSN(s.conn.ExpStatSN)
	s.out.buf = s.conn.Append(s.out.buf, h, nil, s.tasks.At(b.slot).DataOut[b.from:b.from+n])
	b.from += n
	b.sn++
	return b.from == b.to
}
