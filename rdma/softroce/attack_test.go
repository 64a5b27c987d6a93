package softroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"iserd/rdma"
)

// attack is a row: what is sent to a live queue pair, and what the specification answers (IBTA volume 1, 9.6 and 9.7).
// Every datagram has the right ICRC.
type attack struct {
	name string
	// send makes the datagrams. They come from the peer's address, or from a stranger's.
	send     func(a *assault) [][]byte
	stranger bool
	// answers are all packets that the victim sends: kind, number counted from the one that it expected, length of data.
	answers []string
	dies    bool
	takes   uint32 // numbers of packets that were executed
	// done are the receives that complete by the attack, before those that are flushed.
	done []rdma.Status
	// writes are the ranges of the victim's memory that hold what the attacker sent.
	writes [][2]int
	counts string // the counter that rises
}

// assault makes datagrams for one row.
type assault struct {
	r       *rig
	v       *end
	qpn     uint32
	psn     uint32 // the victim expects it
	una     uint32 // the victim's oldest packet that is not acknowledged
	silence bool   // requests do not ask for an acknowledgement
}

// raw is a packet with extended headers and n bytes of data.
func raw(op opcode, qpn, psn uint32, ack bool, head []byte, n int) []byte {
	pad := -n & 3
	b := make([]byte, bthLen+len(head)+n+pad+icrcLen)
	putBTH(b, op, pad, false, ack, qpn, psn)
	copy(b[bthLen:], head)
	for i := range n {
		b[bthLen+len(head)+i] = armFill
	}
	return b
}

// req is a request whose number is d after the expected one.
func (a *assault) req(op opcode, d int, head []byte, n int) []byte {
	return raw(op, a.qpn, a.psn+uint32(d), !a.silence, head, n)
}

// resp is a response whose number is d after the oldest that is not acknowledged.
func (a *assault) resp(op opcode, d int, head []byte, n int) []byte {
	return raw(op, a.qpn, a.una+uint32(d), false, head, n)
}

func (a *assault) rethTo(off int, key uint32, n uint32) []byte {
	var h [rethLen]byte
	putRETH(h[:], a.v.own.Addr()+uint64(off), key, n)
	return h[:]
}

func (a *assault) key(region int) uint32 { return a.v.mrs[region].RKey() }

// reth is one to a region, by the region's key.
func (a *assault) reth(region int, n uint32) []byte { return a.rethTo(region, a.key(region), n) }

func aeth(syndrome uint8) []byte {
	var h [aethLen]byte
	putAETH(h[:], syndrome, 1)
	return h[:]
}

func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func (a *assault) atomic(off int, key uint32) []byte {
	h := make([]byte, atomicLen)
	putRETH(h, a.v.own.Addr()+uint64(off), key, 0)
	return h
}

// one is a row's single request at the expected number.
func one(op opcode, head func(a *assault) []byte, n int) func(a *assault) [][]byte {
	return func(a *assault) [][]byte { return [][]byte{a.req(op, 0, head(a), n)} }
}

func none(*assault) []byte { return nil }

func reth(region int, n uint32) func(a *assault) []byte {
	return func(a *assault) []byte { return a.reth(region, n) }
}

func rethAt(off, region int, n uint32) func(a *assault) []byte {
	return func(a *assault) []byte { return a.rethTo(off, a.key(region), n) }
}

func keyOf(key uint32) func(a *assault) []byte {
	return func(a *assault) []byte { return a.rethTo(armRW, key, 64) }
}

// changed is a right message, changed.
func changed(change func(a *assault, b []byte)) func(a *assault) [][]byte {
	return func(a *assault) [][]byte {
		b := a.req(opSendOnly, 0, nil, 64)
		change(a, b)
		return [][]byte{b}
	}
}

// dest is a right message to another queue pair.
func dest(qpn func(a *assault) uint32) func(a *assault) [][]byte {
	return changed(func(a *assault, b []byte) {
		q := qpn(a)
		b[5], b[6], b[7] = byte(q>>16), byte(q>>8), byte(q)
	})
}

func ok(n int) []rdma.Status { return make([]rdma.Status, n) }

var (
	refused  = []string{"NAK invalid +0"}
	noAccess = []string{"NAK access +0"}
)

// run makes a connection, attacks it, and looks at everything.
func (r *rig) run(t *testing.T, x *attack) {
	was := r.t
	r.t = t
	defer func() { r.t = was }()
	v, p := r.connect(r.peer)
	defer r.closeEnds(v, p)
	// Honest traffic before, so that there are old numbers and a known content.
	r.traffic("before", v, p)
	copy(r.image, v.arena.Bytes())
	want := bytes.Clone(r.image)
	for _, w := range x.writes {
		copy(want[w[0]:w[0]+w[1]], bytes.Repeat([]byte{armFill}, w[1]))
	}
	a := &assault{r: r, v: v, qpn: v.qp.num}
	_, a.psn, a.una = v.state()
	r.settle()
	r.answers(p.qp.num, a.psn)
	stats := r.victim.p.Stats()
	from := r.asPeer
	if x.stranger {
		from = r.asStranger
	}
	for _, b := range x.send(a) {
		r.deliver(from, b)
	}
	r.settle()
	if got := r.answers(p.qp.num, a.psn); !same(got, x.answers) {
		t.Errorf("answered %q, want %q", got, x.answers)
	}
	state, psn, _ := v.state()
	if dead := state == qpError; dead != x.dies || psnDiff(psn, a.psn) != int32(x.takes) {
		t.Errorf("dead: %t, %d packets executed, want %t, %d", dead, psnDiff(psn, a.psn), x.dies, x.takes)
	}
	r.checkMemory("the victim", v.arena.Bytes(), want)
	now := r.victim.p.Stats()
	rose := map[string]bool{"malformed": now.Malformed > stats.Malformed, "unknown_qp": now.UnknownQP > stats.UnknownQP,
		"strangers": now.Strangers > stats.Strangers, "duplicates": now.Duplicates > stats.Duplicates, "gaps": now.Gaps > stats.Gaps,
		"refused": now.Refused > stats.Refused, "congested": now.Congested > stats.Congested}
	for name, rose := range rose {
		if rose != (name == x.counts) {
			t.Errorf("counter %s rose: %t", name, rose)
		}
	}
	if now.BadICRC != stats.BadICRC {
		t.Error("the harness wrote a wrong ICRC")
	}
	r.checkReceives(t, x, v)
	switch {
	case x.dies || state != qpReady:
	case x.takes == 0:
		for i := range x.done {
			t.Errorf("receive %d by a packet that was not executed", i)
		}
		r.traffic("the attacked connection", v, p)
	default: // the peer's numbers are behind now: a message with the next one shows that the victim goes on
		r.deliver(r.asPeer, a.req(opSendOnly, int(x.takes), nil, 8))
		r.settle()
		if got, want := r.answers(p.qp.num, a.psn), fmt.Sprintf("ACK %+d", x.takes); !same(got, []string{want}) {
			t.Errorf("a message afterwards is answered %q, want %q", got, want)
		}
	}
	r.checkInnocent()
}

// checkReceives: no receive is lost and none is told twice.
func (r *rig) checkReceives(t *testing.T, x *attack, v *end) {
	n := len(x.done)
	if x.dies {
		n = armRecvs
	}
	got := r.reap(v, n)
	if k, err := v.cq.Poll(v.wcs[:]); k != 0 || err != nil {
		t.Errorf("%d completions too many, %v", k, err)
	}
	for i, wc := range got {
		want := rdma.StatusFlushed
		if i < len(x.done) {
			want = x.done[i]
		}
		if wc.Status != want {
			t.Errorf("receive %d: %s, want %s", i, wc.Status, want)
		}
	}
}

// runAll runs rows on one set of programs, and sees that nothing is left.
func runAll(t *testing.T, rows []attack) {
	r := newRig(t)
	before := runtime.NumGoroutine()
	for i := range rows {
		t.Run(rows[i].name, func(t *testing.T) { r.run(t, &rows[i]) })
	}
	// The timers that end connections run as goroutines for a moment.
	if n := runtime.NumGoroutine(); n > before+3 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if n := r.victim.p.dev.open.qps.Load(); n != 1 {
		t.Errorf("%d queue pairs are left, want the innocent one", n)
	}
}

// TestAttackOpcodes: every opcode at the expected number, with headers and a length that would be right for it.
func TestAttackOpcodes(t *testing.T) {
	inRegion := [][2]int{{armRW, 64}}
	in := func(n int) [][2]int { return [][2]int{{armRecv + armRecvN, n}} } // the receive after that of the honest message
	known := map[opcode]attack{
		opSendFirst: {send: func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opSendLast, 1, nil, 4)}
		}, answers: []string{"ACK +0", "ACK +1"}, takes: 2, done: ok(1), writes: in(armMTU + 4)},
		opSendMiddle:  {send: one(opSendMiddle, none, armMTU), answers: refused, dies: true, counts: "refused"},
		opSendLast:    {send: one(opSendLast, none, 64), answers: refused, dies: true, counts: "refused"},
		opSendLastImm: {send: one(opSendLastImm, func(*assault) []byte { return be32(1) }, 64), answers: refused, dies: true, counts: "refused"},
		opSendOnly:    {send: one(opSendOnly, none, 64), answers: []string{"ACK +0"}, takes: 1, done: ok(1), writes: in(64)},
		opSendOnlyImm: {send: one(opSendOnlyImm, func(*assault) []byte { return be32(1) }, 64), answers: []string{"ACK +0"}, takes: 1, done: ok(1), writes: in(64)},
		opWriteFirst: {send: func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, armMTU+4), armMTU), a.req(opWriteLast, 1, nil, 4)}
		}, answers: []string{"ACK +0", "ACK +1"}, takes: 2, writes: [][2]int{{armRW, armMTU + 4}}},
		opWriteMiddle:  {send: one(opWriteMiddle, none, armMTU), answers: refused, dies: true, counts: "refused"},
		opWriteLast:    {send: one(opWriteLast, none, 64), answers: refused, dies: true, counts: "refused"},
		opWriteLastImm: {send: one(opWriteLastImm, func(*assault) []byte { return be32(1) }, 64), answers: refused, dies: true, counts: "refused"},
		opWriteOnly:    {send: one(opWriteOnly, reth(armRW, 64), 64), answers: []string{"ACK +0"}, takes: 1, writes: inRegion},
		opWriteOnlyImm: {send: one(opWriteOnlyImm, func(a *assault) []byte { return append(a.reth(armRW, 64), be32(1)...) }, 64),
			answers: []string{"ACK +0"}, takes: 1, done: ok(1), writes: inRegion},
		opReadRequest: {send: one(opReadRequest, reth(armRW, 64), 0), answers: []string{"READ +0 64"}, takes: 1},
		// Responses that nobody waits for are ghosts (9.7.5.1.1).
		opReadRespFirst:  {send: one(opReadRespFirst, func(*assault) []byte { return aeth(synACK) }, armMTU)},
		opReadRespMiddle: {send: one(opReadRespMiddle, none, armMTU)},
		opReadRespLast:   {send: one(opReadRespLast, func(*assault) []byte { return aeth(synACK) }, 64)},
		opReadRespOnly:   {send: one(opReadRespOnly, func(*assault) []byte { return aeth(synACK) }, 64)},
		opAcknowledge:    {send: one(opAcknowledge, func(*assault) []byte { return aeth(synACK) }, 0)},
		opAtomicAck:      {send: one(opAtomicAck, func(*assault) []byte { return append(aeth(synACK), make([]byte, atomicAckLen)...) }, 0)},
		// A function that the queue pair does not have: invalid request (9.7.5.2.4).
		opCompareSwap: {send: one(opCompareSwap, func(a *assault) []byte { return a.atomic(armRW, a.key(armRW)) }, 0), answers: refused, dies: true, counts: "refused"},
		opFetchAdd:    {send: one(opFetchAdd, func(a *assault) []byte { return a.atomic(armRW, a.key(armRW)) }, 0), answers: refused, dies: true, counts: "refused"},
		opSendLastInv: {send: one(opSendLastInv, func(a *assault) []byte { return be32(a.key(armRW)) }, 64), answers: refused, dies: true, counts: "refused"},
		opSendOnlyInv: {send: one(opSendOnlyInv, func(a *assault) []byte { return be32(a.key(armRW)) }, 64), answers: []string{"ACK +0"}, takes: 1, done: ok(1), writes: in(64)},
		// Datagrams are not for a connected queue pair (9.6.1).
		opUDSendOnly:    {send: one(opUDSendOnly, func(*assault) []byte { return make([]byte, dethLen) }, 64), counts: "strangers"},
		opUDSendOnlyImm: {send: one(opUDSendOnlyImm, func(*assault) []byte { return make([]byte, dethLen+immLen) }, 64), counts: "strangers"},
		opCNP:           {send: one(opCNP, none, 16), counts: "congested"},
	}
	rows := make([]attack, 256)
	for i := range rows {
		op := opcode(i)
		x, found := known[op]
		if !found { // another service, or reserved: dropped, as rdma_rxe does
			x = attack{send: one(op, none, 64), counts: "malformed"}
		}
		x.name = fmt.Sprintf("%#02x", i)
		rows[i] = x
	}
	runAll(t, rows)
}
