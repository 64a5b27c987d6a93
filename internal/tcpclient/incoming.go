package tcpclient

import (
	"fmt"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
)

// readRoom is how much one read takes, at most.
const readRoom = 512 << 10

// incoming is what came and was not taken apart yet: buf[begin:end], from the start of a PDU.
type incoming struct {
	buf        []byte
	begin, end int
	most       int // bytes of a data segment
}

func (in *incoming) init(segment int) {
	in.most = segment
	in.buf = make([]byte, readRoom+pdu.BHSLength+255*4+pdu.Pad4(segment)+2*pdu.DigestLength)
}

// room is where the next read goes; there is room for a whole PDU at least.
func (in *incoming) room() []byte {
	if in.begin > 0 {
		in.end = copy(in.buf, in.buf[in.begin:in.end])
		in.begin = 0
	}
	return in.buf[in.end:]
}

// parse takes apart the PDUs that are there as a whole.
func (s *Session) parse() error {
	in, c := &s.in, s.conn
	for {
		b := in.buf[in.begin:in.end]
		if len(b) < pdu.BHSLength {
			return nil
		}
		h := (*pdu.BHS)(b[:pdu.BHSLength])
		n, at := h.DataSegmentLength(), pdu.BHSLength+h.TotalAHSLength()
		if n > in.most {
			return fmt.Errorf("tcpclient: %s with %d bytes of data, declared %d", h.Opcode(), n, in.most)
		}
		head := at
		if c.HeaderDigest {
			at += pdu.DigestLength
		}
		end := at + pdu.Pad4(n)
		total := end
		if c.DataDigest && n > 0 {
			total += pdu.DigestLength
		}
		if len(b) < total {
			return nil
		}
		if c.HeaderDigest && pdu.GetDigest(b[head:at]) != pdu.UpdateDigest(0, b[:head]) {
			return fmt.Errorf("%w: header of a %s", ErrDigest, h.Opcode())
		}
		if total > end && pdu.GetDigest(b[end:total]) != pdu.UpdateDigest(0, b[at:end]) {
			return fmt.Errorf("%w: data of a %s", ErrDigest, h.Opcode())
		}
		in.begin += total
		if err := c.Take(h); err != nil {
			return err
		}
		if err := s.dispatch(h, b[at:at+n]); err != nil {
			return err
		}
	}
}

// task finds the task that a PDU is for.
func (s *Session) task(h *pdu.BHS) (*initiator.Task, *sessionTask, error) {
	itt := h.InitiatorTaskTag()
	slot := int(initiator.SlotOf(itt))
	if !s.tasks.Under(slot) || s.memory[slot].itt != itt {
		return nil, nil, fmt.Errorf("tcpclient: %s for task %#x, which is none of ours", h.Opcode(), itt)
	}
	return s.tasks.At(slot), &s.memory[slot], nil
}

func (s *Session) dispatch(h *pdu.BHS, data []byte) error {
	switch h.Opcode() {
	case pdu.OpDataIn, pdu.OpR2T, pdu.OpSCSIResponse:
		t, m, err := s.task(h)
		switch {
		case err != nil:
			return err
		case h.Opcode() == pdu.OpDataIn:
			return s.takeDataIn(t, m, h.DataIn(), data)
		case h.Opcode() == pdu.OpR2T:
			return s.takeR2T(t, m, h.R2T())
		}
		return s.takeResponse(t, m, h.SCSIResponse(), data)
	case pdu.OpNOPIn:
		if h.InitiatorTaskTag() != pdu.ReservedTag {
			break
		}
		if h.NOPIn().TargetTransferTag() != pdu.ReservedTag {
			pong := &s.out.hdr
			*pong = pdu.BHS{}
			initiator.PutPong(pong, h)
			s.emit(pong, nil)
		}
		return nil
	case pdu.OpReject, pdu.OpAsyncMessage:
		return initiator.Unsolicited(h, data)
	case pdu.OpLogoutResponse:
		if s.logout == 0 || h.InitiatorTaskTag() != s.logout {
			break
		}
		if r := h.LogoutResponse().Response(); r != pdu.LogoutSuccess {
			return fmt.Errorf("tcpclient: logout: the target answers %s", r)
		}
		s.goodbye = true
		return nil
	}
	return fmt.Errorf("tcpclient: %s for tag %#x, which nobody asked for", h.Opcode(), h.InitiatorTaskTag())
}

func (s *Session) takeDataIn(t *initiator.Task, m *sessionTask, d *pdu.DataIn, data []byte) error {
	switch {
	case d.DataSN() != m.dataIns:
		return fmt.Errorf("tcpclient: DataSN %d, want %d", d.DataSN(), m.dataIns)
	case int(d.BufferOffset()) != m.got:
		return fmt.Errorf("tcpclient: buffer offset %d, want %d", d.BufferOffset(), m.got)
	case m.got+len(data) > len(t.DataIn):
		return fmt.Errorf("tcpclient: %d bytes of data-in, room for %d", m.got+len(data), len(t.DataIn))
	}
	m.dataIns++
	m.got += copy(t.DataIn[m.got:], data)
	if !d.HasStatus() {
		return nil
	}
	if !d.Final() {
		return fmt.Errorf("tcpclient: status in a Data-In without the F bit")
	}
	t.Status, t.Response = d.Status(), pdu.ResponseCompleted
	t.Overflow, t.Underflow, t.Residual = d.Overflow(), d.Underflow(), d.ResidualCount()
	t.Data = t.DataIn[:m.got]
	s.tasks.End(t)
	return nil
}

func (s *Session) takeR2T(t *initiator.Task, m *sessionTask, q *pdu.R2T) error {
	from, n := int(q.BufferOffset()), int(q.DesiredDataTransferLength())
	switch {
	case q.R2TSN() != m.r2ts:
		return fmt.Errorf("tcpclient: R2TSN %d, want %d", q.R2TSN(), m.r2ts)
	case n == 0 || n > int(s.conn.Params.MaxBurstLength):
		return fmt.Errorf("tcpclient: R2T for %d bytes, MaxBurstLength %d", n, s.conn.Params.MaxBurstLength)
	case from+n > len(t.DataOut):
		return fmt.Errorf("tcpclient: R2T up to byte %d of %d", from+n, len(t.DataOut))
	case q.TargetTransferTag() == pdu.ReservedTag:
		return fmt.Errorf("tcpclient: R2T without a transfer tag")
	}
	m.r2ts++
	s.out.push(burst{slot: t.Slot, itt: m.itt, ttt: q.TargetTransferTag(), from: from, to: from + n})
	return nil
}

func (s *Session) takeResponse(t *initiator.Task, m *sessionTask, r *pdu.SCSIResponse, data []byte) error {
	if err := t.TakeStatus(r, data, m.sense[:]); err != nil {
		return err
	}
	if want := m.dataIns + m.r2ts; t.Response == pdu.ResponseCompleted && r.ExpDataSN() != want {
		return fmt.Errorf("tcpclient: ExpDataSN %d, want %d", r.ExpDataSN(), want)
	}
	t.Data = t.DataIn[:m.got]
	s.tasks.End(t)
	return nil
}
