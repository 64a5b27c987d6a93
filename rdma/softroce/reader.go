package softroce

import "net/netip"

// reader takes the datagrams of one socket apart and gives them to the queue pairs. It keeps the queue pair of the last
// packet locked, since the packets of a message come together.
type reader struct {
	sock    *socket
	crc     icrc
	pkt     packet
	q       *qp   // locked
	touched []*qp // got a packet in this batch, or have READs to answer
	spare   []*qp
	fresh   []*qp // heard of their peer for the first time
}

// datagram handles one UDP payload. Nothing in it is believed before it was checked; what does not fit a connection as a
// whole is dropped without an answer.
func (r *reader) datagram(from netip.AddrPort, b []byte) {
	d := r.sock.dev
	d.counters.received.Add(1)
	p := &r.pkt
	if !p.parse(b) {
		d.counters.malformed.Add(1)
		return
	}
	f := flow{src: from.Addr(), dst: r.sock.addr, srcPort: from.Port(), dstPort: Port}
	d.trace(false, &f, b, 0)
	id, ok := r.crc.check(&f, b)
	if !ok {
		d.counters.badICRC.Add(1)
		return
	}
	if p.pkey&0x7fff != defaultPKey&0x7fff {
		d.counters.strangers.Add(1)
		return
	}
	if p.op.has(hasDETH) {
		if p.destQP == gsiQP && p.qkey == gsiQKey {
			r.release()
			d.cm.datagram(r.sock, from.Addr(), p.payload)
		} else {
			d.counters.strangers.Add(1)
		}
		return
	}
	if r.q == nil || r.q.num != p.destQP {
		r.release()
		q := d.qps.find(p.destQP)
		if q == nil {
			d.counters.unknownQP.Add(1)
			return
		}
		q.mu.Lock()
		r.q = q
	}
	q := r.q
	if q.state != qpReady || q.path.flow.dst != from.Addr() || q.path.sock != r.sock {
		d.counters.strangers.Add(1)
		return
	}
	if from.Addr().Is4() && !q.ids.fits(id, q.quietFor) {
		d.counters.badICRC.Add(1)
		return
	}
	if !q.touched {
		q.touched = true
		r.touched = append(r.touched, q)
	}
	// Only the peer knows the number that is expected: a guess must not make a connection that nobody asked for.
	if !q.heard && p.op.has(isRequest) && p.psn == q.resp.psn {
		q.heard = true
		r.fresh = append(r.fresh, q)
	}
	switch {
	case p.op == opCNP:
		q.congested()
	case p.op.has(isResponse):
		q.response(p)
	default:
		q.request(p)
	}
}

func (r *reader) release() {
	if r.q != nil {
		r.q.mu.Unlock()
		r.q = nil
	}
}

// endBatch sends what the batch has caused. It is true when there is more to send: the socket is then to be read without
// waiting.
func (r *reader) endBatch() bool {
	r.release()
	again := r.spare[:0]
	for i, q := range r.touched {
		q.mu.Lock()
		if q.settle() {
			again = append(again, q)
		} else {
			q.touched = false
		}
		q.mu.Unlock()
		r.touched[i] = nil
	}
	r.spare, r.touched = r.touched[:0], again
	r.sock.flush()
	for i, q := range r.fresh {
		q.conn.heard()
		r.fresh[i] = nil
	}
	r.fresh = r.fresh[:0]
	return len(r.touched) > 0
}
