package iser

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"iserd/iscsi/pdu"
	"iserd/rdma"
)

// initiator is one iSER initiator, just able enough to try the target. Its methods belong to one goroutine.
type initiator struct {
	provider  rdma.Provider
	events    rdma.EventChannel
	seen      chan rdma.Event
	conn      rdma.Conn
	dev       rdma.Device
	pd        rdma.PD
	cc        rdma.CompletionChannel
	cq        rdma.CQ
	qp        rdma.QP
	arena     *rdma.Arena
	mr        rdma.MR
	reply     []byte // private data of the accept
	wcs       [64]rdma.WC
	inbox     []received
	sendErr   error
	sent      int  // sends completed
	gone      bool // disconnected
	posted    int  // receives
	nextTx    int
	post      [1]rdma.QPPost
	wr        [1]rdma.SendWR
	rwr       [1]rdma.RecvWR
	sge, rsge [1]rdma.SGE
}

type received struct {
	header Header
	bhs    pdu.BHS
	data   []byte
	raw    []byte
	inv    uint32
	slot   int
}

const (
	iRecvs    = 160
	iRecvSize = headersLength + loginData
	iSends    = 256
	iSendSize = 512
	iData     = 8 << 20
	iBigSend  = headersLength + 256 + loginData
)

type dialOptions struct {
	private   []byte
	responder uint8 // RDMA READs that we answer; 4 if 0
	noZero    bool  // responder 0 is meant
	recvs     int
	noWait    bool
}

// dial connects. t may be nil-safe only for errors returned.
func dial(provider rdma.Provider, addr netip.AddrPort, o dialOptions) (i *initiator, err error) {
	i = &initiator{provider: provider, seen: make(chan rdma.Event, 64)}
	defer func() {
		if err != nil {
			i.close()
		}
	}()
	if i.events, err = provider.NewEventChannel(); err != nil {
		return i, err
	}
	ec := i.events
	go func() {
		defer close(i.seen)
		for {
			ev, err := ec.Next()
			if err != nil {
				return
			}
			select {
			case i.seen <- ev:
			default:
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if i.conn, err = i.events.Resolve(ctx, netip.AddrPort{}, addr); err != nil {
		return i, err
	}
	i.dev = i.conn.Device()
	if i.pd, err = i.dev.AllocPD(); err != nil {
		return i, err
	}
	if i.cc, err = i.dev.NewCompletionChannel(); err != nil {
		return i, err
	}
	if i.cq, err = i.cc.CreateCQ(1024, 0); err != nil {
		return i, err
	}
	if i.arena, err = rdma.MapArena(iRecvs*iRecvSize+iSends*iSendSize+iBigSend+iData, false); err != nil {
		return i, err
	}
	if i.mr, err = i.pd.RegMR(i.arena.Bytes(), rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite); err != nil {
		return i, err
	}
	if i.qp, err = i.conn.CreateQP(i.pd, rdma.QPConfig{SendCQ: i.cq, RecvCQ: i.cq, MaxSendWR: iSends, MaxRecvWR: iRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		return i, err
	}
	n := o.recvs
	if n == 0 {
		n = iRecvs
	}
	for k := range n {
		if err = i.recv(k); err != nil {
			return i, err
		}
	}
	if o.private == nil {
		o.private = []byte{cmNoZBVA | cmNoSendWithInv, 0, 0, 0}
	}
	if o.responder == 0 && !o.noZero {
		o.responder = 4
	}
	if err = i.conn.Connect(rdma.ConnParam{PrivateData: o.private, ResponderResources: o.responder, RetryCount: 7, RNRRetryCount: 6}); err != nil {
		return i, err
	}
	if o.noWait {
		return i, nil
	}
	return i, i.waitEstablished()
}

func (i *initiator) waitEstablished() error {
	timeout := time.After(10 * time.Second)
	for {
		select {
		case ev, ok := <-i.seen:
			if !ok {
				return rdma.ErrClosed
			}
			switch ev.Type {
			case rdma.EventEstablished:
				i.reply = ev.Param.PrivateData
				return nil
			case rdma.EventConnectResponse:
				i.reply = ev.Param.PrivateData
			case rdma.EventRejected, rdma.EventUnreachable, rdma.EventConnectError, rdma.EventDisconnected:
				return fmt.Errorf("connect: %s", ev.Type)
			}
		case <-timeout:
			return fmt.Errorf("connect: no answer")
		}
	}
}

// waitDisconnected waits for the event.
func (i *initiator) waitDisconnected(timeout time.Duration) error {
	after := time.After(timeout)
	for !i.gone {
		select {
		case ev, ok := <-i.seen:
			if !ok {
				return rdma.ErrClosed
			}
			if ev.Type == rdma.EventDisconnected {
				return nil
			}
		case <-after:
			return fmt.Errorf("not disconnected after %s", timeout)
		}
	}
	return nil
}

func (i *initiator) mem(off, n int) []byte { return i.arena.Bytes()[off : off+n] }

// data is n bytes of registered memory at off, with its address as the target shall use it.
func (i *initiator) data(off, n int) ([]byte, uint64) {
	b := i.mem(iRecvs*iRecvSize+iSends*iSendSize+iBigSend+off, n)
	return b, rdma.AddrOf(b)
}

func (i *initiator) recv(k int) error {
	b := i.mem(k*iRecvSize, iRecvSize)
	i.rsge[0] = rdma.SGE{Addr: rdma.AddrOf(b), Length: uint32(len(b)), LKey: i.mr.LKey()}
	i.rwr[0] = rdma.RecvWR{ID: uint64(k), SGE: i.rsge[:]}
	i.post[0] = rdma.QPPost{QP: i.qp, Recvs: i.rwr[:]}
	i.dev.Post(i.post[:])
	i.posted++
	return i.post[0].Err
}

// send sends raw bytes.
func (i *initiator) send(raw []byte) error {
	off, size := iRecvs*iRecvSize+(i.nextTx%iSends)*iSendSize, iSendSize
	if len(raw) > size {
		off, size = iRecvs*iRecvSize+iSends*iSendSize, iBigSend
	}
	i.nextTx++
	b := i.mem(off, size)[:copy(i.mem(off, size), raw)]
	i.sge[0] = rdma.SGE{Addr: rdma.AddrOf(b), Length: uint32(len(b)), LKey: i.mr.LKey()}
	i.wr[0] = rdma.SendWR{ID: 1 << 32, Op: rdma.OpSend, Flags: rdma.SendSignaled, SGE: i.sge[:]}
	i.post[0] = rdma.QPPost{QP: i.qp, Sends: i.wr[:]}
	i.dev.Post(i.post[:])
	return i.post[0].Err
}

// sendPDU sends a control-type PDU.
func (i *initiator) sendPDU(h Header, bhs *pdu.BHS, data []byte) error {
	raw := make([]byte, headersLength, headersLength+len(data))
	h.Put(raw)
	bhs.SetDataSegmentLength(len(data))
	copy(raw[HeaderLength:], bhs[:])
	return i.send(append(raw, data...))
}

// poll reaps what is there.
func (i *initiator) poll() error {
	n, err := i.cq.Poll(i.wcs[:])
	if err != nil {
		return err
	}
	for k := range i.wcs[:n] {
		wc := &i.wcs[k]
		if wc.ID>>32 != 0 {
			i.sent++
			if wc.Status != rdma.StatusSuccess && i.sendErr == nil {
				i.sendErr = wc.Err()
			}
			continue
		}
		i.posted--
		if wc.Status != rdma.StatusSuccess {
			if i.sendErr == nil {
				i.sendErr = wc.Err()
			}
			continue
		}
		raw := i.mem(int(wc.ID)*iRecvSize, int(wc.ByteLen))
		r := received{raw: raw, slot: int(wc.ID)}
		if wc.WithInv {
			r.inv = wc.InvRKey
		}
		if m, err := parseMessage(raw); err == nil {
			r.header, r.bhs, r.data = m.header, pdu.BHS(m.bhs), m.data
		}
		i.inbox = append(i.inbox, r)
	}
	return nil
}

// next waits for the next message; its slices are valid until done was called for it.
func (i *initiator) next(timeout time.Duration) (received, error) {
	deadline := time.Now().Add(timeout)
	for len(i.inbox) == 0 {
		if err := i.poll(); err != nil {
			return received{}, err
		}
		if len(i.inbox) > 0 {
			break
		}
		if i.sendErr != nil {
			return received{}, i.sendErr
		}
		select {
		case ev := <-i.seen:
			if ev.Type == rdma.EventDisconnected {
				i.gone = true
			}
		default:
		}
		if i.gone {
			return received{}, errors.New("disconnected")
		}
		if time.Now().After(deadline) {
			return received{}, fmt.Errorf("nothing received within %s", timeout)
		}
		runtime.Gosched()
	}
	r := i.inbox[0]
	i.inbox = i.inbox[:copy(i.inbox, i.inbox[1:])]
	return r, nil
}

func (i *initiator) done(r received) error { return i.recv(r.slot) }

// close lets go of everything, in whatever state it is.
func (i *initiator) close() {
	if i.conn != nil {
		_ = i.conn.Disconnect()
	}
	if i.qp != nil {
		_ = i.qp.SetError()
		_ = i.qp.Close()
	}
	if i.conn != nil {
		_ = i.conn.Close()
	}
	if i.cq != nil {
		_ = i.cq.Close()
	}
	if i.cc != nil {
		_ = i.cc.Close()
	}
	if i.mr != nil {
		_ = i.mr.Close()
	}
	if i.pd != nil {
		_ = i.pd.Close()
	}
	if i.events != nil {
		_ = i.events.Close()
		for range i.seen {
		}
	}
	if i.arena != nil {
		_ = i.arena.Close()
	}
}

// command builds a SCSI Command PDU.
func command(tag, cmdSN uint32, cdb []byte, in, out uint32, immediate int) *pdu.BHS {
	var b pdu.BHS
	b.SetOpcode(pdu.OpSCSICommand)
	b[1] = 0x80
	if in > 0 {
		b[1] |= 0x40
	}
	if out > 0 {
		b[1] |= 0x20
	}
	b.SetInitiatorTaskTag(tag)
	binary.BigEndian.PutUint32(b[20:], in+out)
	binary.BigEndian.PutUint32(b[24:], cmdSN)
	copy(b[32:], cdb)
	b.SetDataSegmentLength(immediate)
	return &b
}

func mustDial(t testing.TB, provider rdma.Provider, addr netip.AddrPort, o dialOptions) *initiator {
	t.Helper()
	i, err := dial(provider, addr, o)
	if err != nil {
		t.Fatalf("dial %s: %v", addr, err)
	}
	return i
}
