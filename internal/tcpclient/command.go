package tcpclient

import (
	"encoding/binary"
	"fmt"

	"iserd/internal/initiator"
	"iserd/iscsi/pdu"
)

// Command is a SCSI command to be done.
type Command struct {
	LUN uint64 // in wire order, as LUN makes it
	CDB []byte
	// In is the room for data-in; Out is what may be sent.
	In  int
	Out []byte
	// Attr is simple when zero.
	Attr      pdu.TaskAttribute
	Immediate bool
	// NoImmediateData and NoUnsolicited send less unasked than negotiation allows.
	NoImmediateData, NoUnsolicited bool
	// ImmediateLength, if not 0, bounds the immediate data.
	ImmediateLength int
	// Segment, if not 0, bounds the data segment of Data-Out PDUs further.
	Segment int
	// DataOutLUN is what Data-Out PDUs carry in their reserved LUN field.
	DataOutLUN uint64
	// Corrupt, if set, may damage a Data-Out PDU before it is sent: raw is the whole PDU.
	Corrupt func(n int, raw []byte)
}

// Result is how a command ended.
type Result struct {
	initiator.Result
	// DataIns, DataOuts and R2Ts count PDUs. Collapsed: the status came in a Data-In.
	DataIns, DataOuts, R2Ts int
	Collapsed               bool
	R2TLengths              []uint32
	Sequences               []int // bytes of Data-In up to each F bit
}

// LUN is a logical unit number below 256 in wire order.
func LUN(n int) uint64 { return initiator.LUN(n) }

// Read10 is READ(10).
func Read10(lba uint32, blocks uint16) []byte { return initiator.Read10(lba, blocks) }

// Write10 is WRITE(10).
func Write10(lba uint32, blocks uint16) []byte { return initiator.Write10(lba, blocks) }

// Header makes the SCSI Command PDU of a command without sending it. n is the length of its immediate data, final says
// whether no unsolicited Data-Out follows.
func (c *Conn) Header(cmd *Command, n int, final bool) pdu.BHS {
	var h pdu.BHS
	(&initiator.Command{LUN: cmd.LUN, CDB: cmd.CDB, ITT: c.NextITT(), In: cmd.In, Out: len(cmd.Out), Attr: cmd.Attr,
		Immediate: cmd.Immediate, More: !final}).Put(&h)
	c.Number(&h)
	return h
}

// Start sends a command with what negotiation allows to send unasked. It returns the task tag.
func (c *Conn) Start(cmd *Command, r *Result) (uint32, error) {
	out := len(cmd.Out)
	first := min(out, int(c.Params.FirstBurstLength))
	imm := 0
	if c.Params.ImmediateData && !cmd.NoImmediateData {
		imm = min(first, int(c.Params.MaxSendDataSegmentLength))
		if cmd.ImmediateLength > 0 {
			imm = min(imm, cmd.ImmediateLength)
		}
	}
	unsolicited := !c.Params.InitialR2T && !cmd.NoUnsolicited && first > imm
	var ahs []byte
	if len(cmd.CDB) > 16 {
		rest := cmd.CDB[16:]
		ahs = binary.BigEndian.AppendUint16(ahs, uint16(len(rest)+1))
		ahs = append(ahs, byte(pdu.AHSExtendedCDB), 0)
		ahs = append(ahs, rest...)
		ahs = append(ahs, make([]byte, pdu.Pad4(len(ahs))-len(ahs))...)
	}
	h := c.Header(cmd, imm, !unsolicited)
	itt := h.InitiatorTaskTag()
	if err := c.Send(&h, ahs, cmd.Out[:imm]); err != nil {
		return 0, err
	}
	if unsolicited {
		if err := c.sequence(cmd, r, itt, pdu.ReservedTag, imm, first); err != nil {
			return 0, err
		}
	}
	return itt, nil
}

// sequence sends bytes from to end as Data-Out PDUs.
func (c *Conn) sequence(cmd *Command, r *Result, itt, ttt uint32, from, end int) error {
	for sn := uint32(0); from < end; sn++ {
		n := min(end-from, int(c.Params.MaxSendDataSegmentLength))
		if cmd.Segment > 0 {
			n = min(n, cmd.Segment)
		}
		h := DataOut(itt, ttt, sn, uint32(from), from+n == end)
		h.SetLUN(cmd.DataOutLUN)
		h.DataOut().SetExpStatSN(c.ExpStatSN)
		raw := c.Append(nil, &h, nil, cmd.Out[from:from+n])
		if cmd.Corrupt != nil {
			cmd.Corrupt(r.DataOuts, raw)
		}
		r.DataOuts++
		if err := c.SendBytes(raw); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// DataOut makes the header of a Data-Out PDU.
func DataOut(itt, ttt, dataSN, offset uint32, final bool) pdu.BHS {
	var h pdu.BHS
	d := h.DataOut()
	d.Init()
	d.SetFinal(final)
	d.SetInitiatorTaskTag(itt)
	d.SetTargetTransferTag(ttt)
	d.SetDataSN(dataSN)
	d.SetBufferOffset(offset)
	return h
}

// Do does a command from begin to end, alone on the connection, and checks the order of everything that comes.
func (c *Conn) Do(cmd *Command) (*Result, error) {
	r := &Result{}
	itt, err := c.Start(cmd, r)
	if err != nil {
		return nil, err
	}
	return r, c.Finish(cmd, r, itt)
}

// Finish goes on with a command until its status. Other commands must not have replies under way.
func (c *Conn) Finish(cmd *Command, r *Result, itt uint32) error {
	for {
		p, err := c.ReceiveReply(itt)
		if err != nil {
			return err
		}
		done, err := c.Step(cmd, r, p)
		if err != nil || done {
			return err
		}
	}
}

// Step takes one PDU of a command: it keeps data, answers an R2T, and says when the command has ended.
func (c *Conn) Step(cmd *Command, r *Result, p *PDU) (done bool, err error) {
	switch p.BHS.Opcode() {
	case pdu.OpDataIn:
		return c.dataIn(cmd, r, p)
	case pdu.OpR2T:
		return false, c.r2t(cmd, r, p)
	case pdu.OpSCSIResponse:
		s := p.BHS.SCSIResponse()
		if err := r.TakeStatus(s, p.Data, make([]byte, len(p.Data))); err != nil {
			return true, err
		}
		if want := uint32(r.DataIns + r.R2Ts); s.Response() == pdu.ResponseCompleted && s.ExpDataSN() != want {
			return true, fmt.Errorf("tcpclient: ExpDataSN %d, want %d", s.ExpDataSN(), want)
		}
		return true, nil
	}
	return false, fmt.Errorf("tcpclient: %s as the answer to a command", p.BHS.Opcode())
}

func (c *Conn) dataIn(cmd *Command, r *Result, p *PDU) (bool, error) {
	d := p.BHS.DataIn()
	if int(d.DataSN()) != r.DataIns {
		return false, fmt.Errorf("tcpclient: DataSN %d, want %d", d.DataSN(), r.DataIns)
	}
	r.DataIns++
	if int(d.BufferOffset()) != len(r.Data) {
		return false, fmt.Errorf("tcpclient: buffer offset %d, want %d", d.BufferOffset(), len(r.Data))
	}
	if len(p.Data) > int(c.Params.MaxRecvDataSegmentLength) {
		return false, fmt.Errorf("tcpclient: data segment of %d bytes, declared %d", len(p.Data), c.Params.MaxRecvDataSegmentLength)
	}
	r.Data = append(r.Data, p.Data...)
	if len(r.Data) > cmd.In {
		return false, fmt.Errorf("tcpclient: %d bytes of data-in, room for %d", len(r.Data), cmd.In)
	}
	begin := 0
	for _, n := range r.Sequences {
		begin += n
	}
	burst := len(r.Data) - begin
	if burst > int(c.Params.MaxBurstLength) {
		return false, fmt.Errorf("tcpclient: sequence of %d bytes, MaxBurstLength %d", burst, c.Params.MaxBurstLength)
	}
	if d.Final() {
		r.Sequences = append(r.Sequences, burst)
	}
	if !d.HasStatus() {
		return false, nil
	}
	if !d.Final() {
		return true, fmt.Errorf("tcpclient: status in a Data-In without the F bit")
	}
	r.Collapsed = true
	r.Status, r.Overflow, r.Underflow, r.Residual = d.Status(), d.Overflow(), d.Underflow(), d.ResidualCount()
	return true, nil
}

func (c *Conn) r2t(cmd *Command, r *Result, p *PDU) error {
	q := p.BHS.R2T()
	if int(q.R2TSN()) != r.R2Ts {
		return fmt.Errorf("tcpclient: R2TSN %d, want %d", q.R2TSN(), r.R2Ts)
	}
	r.R2Ts++
	n := q.DesiredDataTransferLength()
	r.R2TLengths = append(r.R2TLengths, n)
	switch end := uint64(q.BufferOffset()) + uint64(n); {
	case n == 0 || n > c.Params.MaxBurstLength:
		return fmt.Errorf("tcpclient: R2T for %d bytes, MaxBurstLength %d", n, c.Params.MaxBurstLength)
	case end > uint64(len(cmd.Out)):
		return fmt.Errorf("tcpclient: R2T up to byte %d of %d", end, len(cmd.Out))
	case q.LUN() != cmd.LUN:
		return fmt.Errorf("tcpclient: R2T with LUN %#x, want %#x", q.LUN(), cmd.LUN)
	case q.TargetTransferTag() == pdu.ReservedTag:
		return fmt.Errorf("tcpclient: R2T without a transfer tag")
	}
	return c.sequence(cmd, r, q.InitiatorTaskTag(), q.TargetTransferTag(), int(q.BufferOffset()), int(q.BufferOffset()+n))
}
