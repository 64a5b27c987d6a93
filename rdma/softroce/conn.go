package softroce

import (
	"net/netip"
	"syscall"
	"time"

	"iserd/rdma"
)

type connState uint8

const (
	connIdle      connState = iota
	connAsking              // active: the REQ is out
	connRequested           // passive: the request waits for the program
	connAnswered            // passive: the REP is out
	connUp                  // established
	connLeaving             // our DREQ is out
	connLeft                // the peer's DREQ came
	connTimewait            // over, late packets may come
	connDone                // rejected, timed out, or over
)

// Sizes of private data. What comes is padded with zeros to them.
const (
	reqPrivate = 92 - ipHeaderLen
	repPrivate = 196
	rejPrivate = 148
)

// conn implements [rdma.Conn]. cm.mu guards it.
type conn struct {
	cm            *cm
	ch            *eventChannel
	sock          *socket
	peerAddr      netip.Addr
	local, remote netip.AddrPort
	passive       bool
	state         connState
	key           peerKey // passive

	id, remoteID         uint32
	tid, dreqTID         uint64
	remoteGUID           uint64
	qp                   *qp
	qpn                  uint32
	psn                  uint32
	mtu                  uint32
	remoteQPN, remotePSN uint32
	retry, rnrRetry      uint8 // passive: as the request says
	param                rdma.ConnParam

	timer *time.Timer
	gen   int
	tries int

	counted      bool // among the half-open
	disconnected bool // the event was sent
	closed       bool // by the program: no more events
	forgotten    bool
}

func (x *conn) Device() rdma.Device        { return x.cm.dev }
func (x *conn) LocalAddr() netip.AddrPort  { return x.local }
func (x *conn) RemoteAddr() netip.AddrPort { return x.remote }

// check refuses calls on a closed connection. cm.mu is held.
func (x *conn) check() error {
	if x.closed || x.cm.dev.closed.Load() {
		return rdma.ErrClosed
	}
	return nil
}

func (x *conn) CreateQP(p rdma.PD, cfg rdma.QPConfig) (rdma.QP, error) {
	const op = "rdma_create_qp"
	own, ok := p.(*pd)
	if !ok || own.dev != x.cm.dev {
		return nil, invalid(op, "a protection domain of another device")
	}
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if err := x.check(); err != nil {
		return nil, err
	}
	if x.qp != nil {
		return nil, &rdma.OpError{Op: op, Errno: syscall.EEXIST, Hint: "the connection has a queue pair"}
	}
	q, err := x.cm.dev.newQP(x, own, cfg)
	if err != nil {
		return nil, err
	}
	x.qp, x.qpn = q, q.num
	return q, nil
}

func (x *conn) qpClosed(q *qp) {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if x.qp == q {
		x.qp = nil
	}
}

// heard is told when the first packet of the peer came: it has our answer, though its RTU may be lost.
func (x *conn) heard() {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if x.state == connAnswered {
		x.established()
	}
}

// NotifyEstablished implements [rdma.Conn].
func (x *conn) NotifyEstablished() error {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if err := x.check(); err != nil {
		return err
	}
	if x.state == connAnswered {
		x.established()
	}
	return nil
}

// checkParam refuses what the device or the wire cannot do, and takes a copy.
func checkParam(p *rdma.ConnParam, private int) error {
	for _, l := range []struct {
		what     string
		is, most int
	}{
		{"responder resources", int(p.ResponderResources), maxRDAtom}, {"initiator depth", int(p.InitiatorDepth), maxRDAtom},
		{"retry count", int(p.RetryCount), 7}, {"RNR retry count", int(p.RNRRetryCount), 7}, {"bytes of private data", len(p.PrivateData), private},
	} {
		if l.is > l.most {
			return tooBig(l.what, l.is, l.most)
		}
	}
	p.PrivateData = append([]byte(nil), p.PrivateData...)
	return nil
}

// Connect implements [rdma.Conn].
func (x *conn) Connect(p rdma.ConnParam) error {
	if err := checkParam(&p, reqPrivate); err != nil {
		return err
	}
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if err := x.check(); err != nil {
		return err
	}
	if x.passive || x.state != connIdle || x.qp == nil {
		return invalid("rdma_connect", "no queue pair, or not a connection that can be asked for")
	}
	x.param = p
	x.tid = uint64(randomKey())<<32 | uint64(randomKey())
	x.state = connAsking
	x.start()
	return nil
}

// Accept implements [rdma.Conn].
func (x *conn) Accept(p rdma.ConnParam) error {
	if err := checkParam(&p, repPrivate); err != nil {
		return err
	}
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if err := x.check(); err != nil {
		return err
	}
	if x.state != connRequested || x.qp == nil {
		return invalid("rdma_accept", "no queue pair, or no request to accept")
	}
	x.param = p
	// The passive side's retry counts are the request's; the answer programs the RNR retries of the active side.
	x.qp.ready(x.path(int(p.InitiatorDepth), int(p.ResponderResources), x.retry, x.rnrRetry))
	x.state = connAnswered
	x.start()
	return nil
}

// Reject implements [rdma.Conn].
func (x *conn) Reject(data []byte) error {
	if len(data) > rejPrivate {
		return tooBig("bytes of private data", len(data), rejPrivate)
	}
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if err := x.check(); err != nil {
		return err
	}
	if x.state != connRequested {
		return invalid("rdma_reject", "no request to refuse")
	}
	x.sendREJ(rejConsumer, data)
	x.finish()
	return nil
}

// Disconnect implements [rdma.Conn].
func (x *conn) Disconnect() error {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if x.closed {
		return nil
	}
	if x.qp != nil {
		_ = x.qp.SetError()
	}
	x.disconnect()
	return nil
}

func (x *conn) disconnect() {
	switch x.state {
	case connUp, connAnswered:
		x.disarm()
		x.uncount()
		x.state = connLeaving
		x.dreqTID = uint64(randomKey())<<32 | uint64(randomKey())
		x.start()
	case connLeft:
		x.sendDREP()
		x.end()
	}
}

// Close implements [rdma.Conn].
func (x *conn) Close() error {
	x.cm.mu.Lock()
	defer x.cm.mu.Unlock()
	if x.closed {
		return nil
	}
	if x.qp != nil {
		return busy("rdma_destroy_id", "queue pair", 1)
	}
	x.close()
	return nil
}

// close ends an identifier in whatever state it is. cm.mu is held.
func (x *conn) close() {
	x.closed = true
	x.ch.drop(x)
	x.ch.leave()
	switch x.state {
	case connRequested:
		x.sendREJ(rejConsumer, nil)
	case connAsking:
		x.sendREJ(rejTimeout, nil)
	case connUp, connAnswered, connLeft:
		x.disconnect()
	}
	if x.state != connLeaving { // that one goes on until the peer has answered
		x.forget()
	}
}
