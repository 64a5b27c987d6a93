package softroce

import (
	"bytes"
	"math"
	"testing"

	"iserd/rdma"
)

// wrapping is an address near the end of the address space, from which a range wraps around into the region.
func wrapping(n uint32) func(a *assault) []byte {
	return func(a *assault) []byte {
		var h [rethLen]byte
		putRETH(h[:], math.MaxUint64-15, a.key(armRW), n)
		return h[:]
	}
}

// TestAttackAccess: ranges, keys and rights (9.7.4.1.5): remote access error, and nothing moves.
func TestAttackAccess(t *testing.T) {
	var rows []attack
	add := func(name string, op opcode, head func(a *assault) []byte, n int) {
		rows = append(rows, attack{name: name, send: one(op, head, n), answers: noAccess, dies: true, counts: "refused"})
	}
	for what, head := range map[string]func(n uint32) func(a *assault) []byte{
		"unknown key": func(n uint32) func(a *assault) []byte {
			return func(a *assault) []byte { return a.rethTo(armRW, a.key(armRW)^1, n) }
		},
		"key zero": func(n uint32) func(a *assault) []byte {
			return func(a *assault) []byte { return a.rethTo(armRW, 0, n) }
		},
		"local key": func(n uint32) func(a *assault) []byte {
			return func(a *assault) []byte { return a.rethTo(armRW, a.v.own.LKey(), n) }
		},
		"another domain":            func(n uint32) func(a *assault) []byte { return reth(armAlien, n) },
		"closed region":             func(n uint32) func(a *assault) []byte { return reth(armGone, n) },
		"invalidated key":           func(n uint32) func(a *assault) []byte { return reth(armInval, n) },
		"one byte past the end":     func(n uint32) func(a *assault) []byte { return rethAt(armRW+armRegion-int(n)+1, armRW, n) },
		"one byte before the start": func(n uint32) func(a *assault) []byte { return rethAt(armRW-1, armRW, n) },
		"just after the end":        func(n uint32) func(a *assault) []byte { return rethAt(armRW+armRegion, armRW, n) },
		"another region's address":  func(n uint32) func(a *assault) []byte { return rethAt(armRO, armRW, n) },
		"offset instead of address": func(n uint32) func(a *assault) []byte {
			return func(a *assault) []byte { return a.rethTo(-int(a.v.own.Addr()), a.key(armRW), n) }
		},
		"wrap around": wrapping,
		"innocent connection's range": func(n uint32) func(a *assault) []byte {
			return func(a *assault) []byte {
				return a.rethTo(int(a.r.good.mrs[armRW].Addr()-a.v.own.Addr()), a.r.good.mrs[armRW].RKey(), n)
			}
		},
	} {
		add("write, "+what, opWriteOnly, head(64), 64)
		add("write with immediate, "+what, opWriteOnlyImm, func(a *assault) []byte { return append(head(64)(a), 0, 0, 0, 0) }, 64)
		add("write of two packets, "+what, opWriteFirst, head(armMTU+64), armMTU)
		add("read, "+what, opReadRequest, head(64), 0)
		add("long read, "+what, opReadRequest, head(armMTU+64), 0)
	}
	add("write, read-only region", opWriteOnly, reth(armRO, 64), 64)
	add("read, write-only region", opReadRequest, reth(armWO, 64), 0)
	add("write of 2^31", opWriteFirst, reth(armRW, 1<<31), armMTU)
	add("write of 2^32-1", opWriteFirst, reth(armRW, math.MaxUint32), armMTU)
	add("write of 2^32-1 that wraps around", opWriteFirst, wrapping(math.MaxUint32), armMTU)
	add("write of the region and one byte", opWriteFirst, reth(armRW, armRegion+1), armMTU)
	add("read of the region and one byte", opReadRequest, reth(armRW, armRegion+1), 0)
	add("read of 2^30", opReadRequest, reth(armRW, 1<<30), 0)
	for name, key := range map[string]func(a *assault) uint32{
		"unknown":        func(a *assault) uint32 { return a.key(armRW) ^ 1 },
		"another domain": func(a *assault) uint32 { return a.key(armAlien) },
		"local":          func(a *assault) uint32 { return a.v.own.RKey() },
		"twice":          func(a *assault) uint32 { return a.key(armInval) },
	} { // the data is in the receive already, which completes in error
		rows = append(rows, attack{name: "invalidate, key " + name, send: one(opSendOnlyInv, func(a *assault) []byte { return be32(key(a)) }, 64),
			answers: noAccess, dies: true, done: []rdma.Status{rdma.StatusLocAccessErr}, writes: [][2]int{{armRecv + armRecvN, 64}}, counts: "refused"})
	}
	// Without a byte to move, key and address are not looked at (9.7.4.1.5).
	zero := func(name string, op opcode, head func(a *assault) []byte, answer string) {
		rows = append(rows, attack{name: name, send: one(op, head, 0), answers: []string{answer}, takes: 1})
	}
	zero("write of nothing, unknown key", opWriteOnly, func(a *assault) []byte { return a.rethTo(armRW, 0, 0) }, "ACK +0")
	zero("write of nothing, wild address", opWriteOnly, wrapping(0), "ACK +0")
	zero("read of nothing, unknown key", opReadRequest, func(a *assault) []byte { return a.rethTo(armRW, 0, 0) }, "READ +0 0")
	// Exactly the last byte is granted.
	rows = append(rows, attack{name: "write of the last byte", send: one(opWriteOnly, rethAt(armRW+armRegion-1, armRW, 1), 1), answers: []string{"ACK +0"}, takes: 1,
		writes: [][2]int{{armRW + armRegion - 1, 1}}},
		attack{name: "the key is taken away in the middle of a write", send: func(a *assault) [][]byte {
			a.silence = true
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, 2*armMTU+4), armMTU), a.req(opSendOnlyInv, 1, be32(a.key(armRW)), 4)}
		}, answers: []string{"NAK invalid +1"}, dies: true, takes: 1, writes: [][2]int{{armRW, armMTU}}, counts: "refused"},
		attack{name: "write after invalidate", send: func(a *assault) [][]byte {
			return [][]byte{a.req(opSendOnlyInv, 0, be32(a.key(armRW)), 4), a.req(opWriteOnly, 1, a.reth(armRW, 64), 64)}
		}, answers: []string{"ACK +0", "NAK access +1"}, dies: true, takes: 1, done: ok(1), writes: [][2]int{{armRecv + armRecvN, 4}}, counts: "refused"})
	runAll(t, rows)
}

// TestAttackForm: the order of a message's packets and their lengths (9.7.4.1.2 to 9.7.4.1.7), and headers that lie.
func TestAttackForm(t *testing.T) {
	pkts := func(f func(a *assault) [][]byte) func(a *assault) [][]byte {
		return func(a *assault) [][]byte { a.silence = true; return f(a) }
	}
	bad := func(name string, at string, takes uint32, writes [][2]int, done []rdma.Status, send func(a *assault) [][]byte) attack {
		return attack{name: name, send: pkts(send), answers: []string{"NAK invalid " + at}, dies: true, takes: takes, writes: writes, done: done, counts: "refused"}
	}
	recv := func(n int) [][2]int { return [][2]int{{armRecv + armRecvN, n}} }
	rw := func(n int) [][2]int { return [][2]int{{armRW, n}} }
	cut := []rdma.Status{rdma.StatusFlushed}
	runAll(t, []attack{
		bad("send first after first", "+1", 1, recv(armMTU), cut, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opSendFirst, 1, nil, armMTU)}
		}),
		bad("send only within a send", "+1", 1, recv(armMTU), cut, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opSendOnly, 1, nil, 4)}
		}),
		bad("write last ends a send", "+1", 1, recv(armMTU), cut, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opWriteLast, 1, nil, 4)}
		}),
		bad("read within a send", "+1", 1, recv(armMTU), cut, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opReadRequest, 1, a.reth(armRW, 4), 0)}
		}),
		bad("atomic within a write", "+1", 1, rw(armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, armMTU+4), armMTU), a.req(opFetchAdd, 1, a.atomic(armRW, a.key(armRW)), 0)}
		}),
		bad("write first after first", "+1", 1, rw(armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, 2*armMTU), armMTU), a.req(opWriteFirst, 1, a.reth(armRW, 2*armMTU), armMTU)}
		}),
		bad("send last ends a write", "+1", 1, rw(armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, armMTU+4), armMTU), a.req(opSendLast, 1, nil, 4)}
		}),
		bad("write that is shorter than it said", "+1", 1, rw(armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, armMTU+8), armMTU), a.req(opWriteLast, 1, nil, 4)}
		}),
		bad("write that is longer than it said", "+1", 1, rw(armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, armMTU+4), armMTU), a.req(opWriteLast, 1, nil, 8)}
		}),
		bad("write with a middle too many", "+2", 2, rw(2*armMTU), nil, func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteFirst, 0, a.reth(armRW, 2*armMTU), armMTU), a.req(opWriteMiddle, 1, nil, armMTU), a.req(opWriteMiddle, 2, nil, armMTU)}
		}),
		bad("write first of nothing", "+0", 0, nil, nil, one(opWriteFirst, reth(armRW, 0), armMTU)),
		bad("write only that is shorter than it said", "+0", 0, nil, nil, one(opWriteOnly, reth(armRW, 64), 60)),
		bad("write only that is longer than it said", "+0", 0, nil, nil, one(opWriteOnly, reth(armRW, 64), 68)),
		bad("write only of nothing, with data", "+0", 0, nil, nil, one(opWriteOnly, reth(armRW, 0), 64)),
		bad("send first below the MTU", "+0", 0, nil, nil, one(opSendFirst, none, armMTU-4)),
		bad("send first above the MTU", "+0", 0, nil, nil, one(opSendFirst, none, armMTU+4)),
		bad("send first without data", "+0", 0, nil, nil, one(opSendFirst, none, 0)),
		bad("send only above the MTU", "+0", 0, nil, nil, one(opSendOnly, none, armMTU+1)),
		bad("send only of 60000", "+0", 0, nil, nil, one(opSendOnly, none, 60000)),
		bad("write first below the MTU", "+0", 0, nil, nil, one(opWriteFirst, reth(armRW, 2*armMTU), armMTU-1)),
		bad("write only above the MTU", "+0", 0, nil, nil, one(opWriteOnly, reth(armRW, armMTU+4), armMTU+4)),
		bad("send last without data", "+1", 1, recv(armMTU), cut, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opSendLast, 1, nil, 0)}
		}),
		bad("send beyond the receive", "+2", 2, recv(armRecvN), []rdma.Status{rdma.StatusLocLenErr}, func(a *assault) [][]byte {
			return [][]byte{a.req(opSendFirst, 0, nil, armMTU), a.req(opSendMiddle, 1, nil, armMTU), a.req(opSendLast, 2, nil, 1)}
		}),
		bad("read of 2^31", "+0", 0, nil, nil, one(opReadRequest, reth(armRW, 1<<31), 0)),
		bad("read of 2^32-1", "+0", 0, nil, nil, one(opReadRequest, reth(armRW, math.MaxUint32), 0)),
		bad("write whose pad count lies", "+0", 0, nil, nil, func(a *assault) [][]byte {
			b := a.req(opWriteOnly, 0, a.reth(armRW, 64), 64)
			b[1] |= 3 << 4
			return [][]byte{b}
		}),
		bad("write first with a pad", "+0", 0, nil, nil, func(a *assault) [][]byte {
			b := a.req(opWriteFirst, 0, a.reth(armRW, 2*armMTU), armMTU)
			b[1] |= 1 << 4
			return [][]byte{b}
		}),
		// What is no packet at all is dropped (9.6.1).
		{name: "pad without data", send: func(a *assault) [][]byte {
			b := a.req(opSendOnly, 0, nil, 0)
			b[1] |= 3 << 4
			return [][]byte{b}
		}, counts: "malformed"},
		{name: "header version", send: changed(func(_ *assault, b []byte) { b[1] |= 1 }), counts: "malformed"},
		{name: "a header and no more", send: func(a *assault) [][]byte {
			return [][]byte{a.req(opWriteOnly, 0, nil, 4), a.req(opReadRequest, 0, nil, 12)}
		}, counts: "malformed"},
		{name: "fifteen bytes", send: func(a *assault) [][]byte { return [][]byte{a.req(opSendOnly, 0, nil, 0)[:bthLen+icrcLen-1]} }, counts: "malformed"},
		{name: "read request with data", send: one(opReadRequest, reth(armRW, 64), 64), counts: "malformed"},
		{name: "length not of words", send: func(a *assault) [][]byte { return [][]byte{a.req(opSendOnly, 0, nil, 8)[:bthLen+7+icrcLen]} }, counts: "malformed"},
	})
}

// TestAttackIdentity: who a packet is for and who sent it (9.6.1): what does not fit a connection is dropped and counted.
func TestAttackIdentity(t *testing.T) {
	runAll(t, []attack{
		{name: "another partition", send: changed(func(_ *assault, b []byte) { b[2], b[3] = 0x80, 1 }), counts: "strangers"},
		{name: "no partition", send: changed(func(_ *assault, b []byte) { b[2], b[3] = 0, 0 }), counts: "strangers"},
		{name: "a stranger's message", send: one(opSendOnly, none, 64), stranger: true, counts: "strangers"},
		{name: "a stranger's write", send: one(opWriteOnly, reth(armRW, 64), 64), stranger: true, counts: "strangers"},
		{name: "a stranger's read", send: one(opReadRequest, reth(armRW, 64), 0), stranger: true, counts: "strangers"},
		{name: "a stranger's old read", send: func(a *assault) [][]byte { return [][]byte{a.req(opReadRequest, -3, a.reth(armRW, 64), 0)} }, stranger: true, counts: "strangers"},
		{name: "a stranger's NAK", send: func(a *assault) [][]byte { return [][]byte{a.resp(opAcknowledge, 0, aeth(synNAK|nakAccess), 0)} }, stranger: true, counts: "strangers"},
		{name: "a stranger's CNP", send: one(opCNP, none, 16), stranger: true, counts: "strangers"},
		{name: "unknown queue pair", send: dest(func(a *assault) uint32 { return a.qpn ^ 1 }), counts: "unknown_qp"},
		{name: "an earlier queue pair's number", send: dest(func(a *assault) uint32 { return a.qpn ^ maxQP<<3 }), counts: "unknown_qp"},
		{name: "queue pair 0", send: dest(func(*assault) uint32 { return 0 }), counts: "unknown_qp"},
		{name: "message to queue pair 1", send: dest(func(*assault) uint32 { return gsiQP }), counts: "unknown_qp"},
		{name: "multicast queue pair", send: dest(func(*assault) uint32 { return psnMask }), counts: "unknown_qp"},
		{name: "another connection's queue pair", send: func(a *assault) [][]byte {
			_, psn, una := a.r.good.state()
			q := a.r.good.qp.num
			return [][]byte{raw(opSendOnly, q, psn, true, nil, 64), raw(opReadRequest, q, psn, true, a.reth(armRW, 64), 0), raw(opAcknowledge, q, una, false, aeth(synNAK|nakAccess), 0)}
		}, counts: "strangers"},
		{name: "datagram to queue pair 1 with another key", send: func(*assault) [][]byte {
			return [][]byte{raw(opUDSendOnly, gsiQP, 0, false, make([]byte, dethLen), madLen)}
		}, counts: "strangers"},
		{name: "no management datagram", send: func(*assault) [][]byte {
			head := make([]byte, dethLen)
			putDETH(head, gsiQKey, gsiQP)
			return [][]byte{raw(opUDSendOnly, gsiQP, 0, false, head, madLen)}
		}, counts: "malformed"},
	})
}

// TestAttackReplay: numbers that were, and that are not yet (9.7.1, 9.7.5).
func TestAttackReplay(t *testing.T) {
	acked := []string{"ACK -1"}
	old := func(d int, op opcode, head func(a *assault) []byte, n int) func(a *assault) [][]byte {
		return func(a *assault) [][]byte { return [][]byte{a.req(op, d, head(a), n)} }
	}
	dup := func(name string, answers []string, send func(a *assault) [][]byte) attack {
		return attack{name: name, answers: answers, send: send, counts: "duplicates"}
	}
	gap := []string{"NAK sequence +0"}
	runAll(t, []attack{
		dup("old message", acked, old(-1, opSendOnly, none, 64)),
		dup("old write with other data", acked, old(-6, opWriteOnly, reth(armRW, 64), 64)),
		dup("old write by a wrong key", acked, old(-2, opWriteOnly, keyOf(0), 64)),
		dup("old write outside", acked, old(-2, opWriteOnly, rethAt(0, armRW, 64), 64)),
		dup("old invalidate", acked, old(-1, opSendOnlyInv, func(a *assault) []byte { return be32(a.key(armRW)) }, 4)),
		dup("old middle", acked, old(-1, opWriteMiddle, none, armMTU)),
		dup("message half the circle back", acked, old(-1<<23, opSendOnly, none, 64)),
		dup("old read", []string{"READ -4 1024", "READ -3 1024", "READ -2 952"}, old(-4, opReadRequest, reth(armRW, 3000), 0)),
		dup("the rest of an old read", []string{"READ -3 1024", "READ -2 952"}, old(-3, opReadRequest, rethAt(armRW+armMTU, armRW, 1976), 0)),
		dup("a part of an old read", []string{"READ -3 64"}, old(-3, opReadRequest, rethAt(armRW+armMTU, armRW, 64), 0)),
		// A READ that comes again is one of those that the peer may still wait for, or the rest of one (9.7.5.1.2).
		dup("old read of other bytes", nil, old(-3, opReadRequest, reth(armRW, 64), 0)),
		dup("old read that is longer", nil, old(-3, opReadRequest, rethAt(armRW+armMTU, armRW, 1977), 0)),
		dup("old read of nothing", nil, old(-3, opReadRequest, func(a *assault) []byte { return a.rethTo(armRW+armMTU, 1, 0) }, 0)),
		dup("old read at an old message's number", nil, old(-1, opReadRequest, reth(armRW, 64), 0)),
		// Half of all numbers are old: who guesses one, and no key, must not end the connection.
		dup("old read by a wrong key", nil, old(-4, opReadRequest, keyOf(1), 0)),
		dup("old read of another domain", nil, old(-2, opReadRequest, reth(armAlien, 64), 0)),
		dup("old read, one byte past the end", nil, old(-2, opReadRequest, rethAt(armRW+armRegion-63, armRW, 64), 0)),
		dup("old read that wraps around", nil, old(-2, opReadRequest, wrapping(64), 0)),
		dup("old read that reaches beyond the expected number", nil, old(-1, opReadRequest, reth(armRW, armMTU+1), 0)),
		dup("old read of 2^32-1", nil, old(-2, opReadRequest, reth(armRW, math.MaxUint32), 0)),
		dup("old atomic", nil, old(-2, opFetchAdd, func(a *assault) []byte { return a.atomic(armRW, a.key(armRW)) }, 0)),
		{name: "message ahead", answers: gap, send: old(1, opSendOnly, none, 64), counts: "gaps"},
		{name: "write ahead", answers: gap, send: old(7, opWriteOnly, reth(armRW, 64), 64), counts: "gaps"},
		{name: "read ahead", answers: gap, send: old(1, opReadRequest, reth(armRW, 64), 0), counts: "gaps"},
		{name: "wrong key ahead", answers: gap, send: old(1, opWriteOnly, keyOf(0), 64), counts: "gaps"},
		{name: "half the circle ahead", answers: gap, send: old(1<<23-1, opSendOnly, none, 64), counts: "gaps"},
		{name: "many ahead, one NAK", answers: gap, counts: "gaps", send: func(a *assault) (out [][]byte) {
			for i := range 20 {
				out = append(out, a.req(opSendOnly, 1+i, nil, 64))
			}
			return out
		}},
	})
}

// TestAttackRequester: forged answers to what the victim sent (9.7.5.1), while the peer hears and says nothing.
func TestAttackRequester(t *testing.T) {
	r := newRig(t)
	const readLen = 2*armMTU + 100
	send := rdma.SendWR{ID: 9, Op: rdma.OpSend}
	read := rdma.SendWR{ID: 9, Op: rdma.OpRDMARead}
	for _, x := range []struct {
		name   string
		wr     rdma.SendWR
		pkts   func(a *assault) [][]byte
		status rdma.Status // of the request, in the end
		dies   bool
		writes int // bytes of the READ that the forged answer brought
	}{
		{"ACK of what was never sent", send, forged(opAcknowledge, 1, synACK, 0), 0, false, 0},
		{"ACK of half the circle", send, forged(opAcknowledge, 1<<23-1, synACK, 0), 0, false, 0},
		{"ACK of the past", send, forged(opAcknowledge, -1, synACK, 0), 0, false, 0},
		{"NAK of what was never sent", send, forged(opAcknowledge, 1, synNAK|nakAccess, 0), 0, false, 0},
		{"NAK of the past", send, forged(opAcknowledge, -1, synNAK|nakAccess, 0), 0, false, 0},
		{"NAK of half the circle back", send, forged(opAcknowledge, -1<<23, synNAK|nakInvalid, 0), 0, false, 0},
		{"sequence NAK of the past", send, forged(opAcknowledge, -2, synNAK|nakSequence, 0), 0, false, 0},
		{"RNR NAK of the past", send, forged(opAcknowledge, -1, synRNR|1, 0), 0, false, 0},
		{"RNR NAK of what was never sent", send, forged(opAcknowledge, 1, synRNR|1, 0), 0, false, 0},
		{"reserved syndrome", send, forged(opAcknowledge, 0, 0x40, 0), 0, false, 0},
		{"read response to a message", send, forged(opReadRespOnly, 0, synACK, 64), 0, false, 0},
		{"read response in the middle of nothing", send, func(a *assault) [][]byte { return [][]byte{a.resp(opReadRespMiddle, 0, nil, armMTU)} }, 0, false, 0},
		{"atomic acknowledgement", send, func(a *assault) [][]byte {
			return [][]byte{a.resp(opAtomicAck, 0, append(aeth(synACK), make([]byte, 8)...), 0)}
		}, 0, false, 0},
		{"ACK of a read without its data", read, forged(opAcknowledge, 2, synACK, 0), 0, false, 0},
		{"read response, second packet first", read, func(a *assault) [][]byte { return [][]byte{a.resp(opReadRespMiddle, 1, nil, armMTU)} }, 0, false, 0},
		{"read response that was never asked for", read, forged(opReadRespLast, 3, synACK, 100), 0, false, 0},
		{"read response of the past", read, forged(opReadRespOnly, -1, synACK, 100), 0, false, 0},
		{"read response above the MTU", read, forged(opReadRespFirst, 0, synACK, armMTU+4), rdma.StatusBadRespErr, true, 0},
		{"read response that is short", read, forged(opReadRespFirst, 0, synACK, 4), rdma.StatusBadRespErr, true, 0},
		{"read response without data", read, forged(opReadRespOnly, 0, synACK, 0), rdma.StatusBadRespErr, true, 0},
		{"read response that is longer than the read", read, func(a *assault) [][]byte {
			return [][]byte{a.resp(opReadRespFirst, 0, aeth(synACK), armMTU), a.resp(opReadRespMiddle, 1, nil, armMTU), a.resp(opReadRespMiddle, 2, nil, armMTU)}
		}, rdma.StatusBadRespErr, true, 2 * armMTU},
		// Who guesses the one right number is the peer, as far as the protocol can tell.
		{"access NAK of the right number", send, forged(opAcknowledge, 0, synNAK|nakAccess, 0), rdma.StatusRemAccessErr, true, 0},
		{"invalid request NAK of the right number", read, forged(opAcknowledge, 0, synNAK|nakInvalid, 0), rdma.StatusRemInvReqErr, true, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			r.t = t
			v, p := r.connect(r.peer)
			r.traffic("before", v, p)
			r.settle()
			copy(r.image, v.arena.Bytes())
			want := bytes.Clone(r.image)
			copy(want[armLocal:], bytes.Repeat([]byte{armFill}, x.writes))
			a := &assault{r: r, v: v, qpn: v.qp.num}
			_, a.psn, a.una = v.state()
			r.answers(p.qp.num, a.psn)
			r.peer.deaf.Store(true)
			x.wr.SGE = v.sge(armLocal, readLen)
			if x.wr.Op == rdma.OpRDMARead {
				x.wr.RemoteAddr, x.wr.RKey = p.own.Addr()+armRW, p.own.RKey()
			} else {
				x.wr.SGE[0].Length = 100
			}
			r.must(v.post(x.wr))
			for _, b := range x.pkts(a) {
				r.deliver(r.asPeer, b)
			}
			r.settle()
			r.checkMemory("the victim", v.arena.Bytes(), want)
			if state, _, _ := v.state(); (state == qpError) != x.dies {
				t.Errorf("state %d, dead: %t", state, x.dies)
			}
			if got := r.answers(p.qp.num, a.psn); len(got) > 0 {
				t.Errorf("answered %q", got)
			}
			n := armRecvs
			if !x.dies {
				n = 0
				if k, err := v.cq.Poll(v.wcs[:]); k != 0 || err != nil {
					t.Errorf("%d completions by forged answers, %v", k, err)
				}
			}
			r.peer.deaf.Store(false)
			for _, wc := range r.reap(v, 1+n) { // the request is repeated, and answered by the peer
				if wc.ID == 9 && wc.Status != x.status {
					t.Errorf("the request ends with %s, want %s", wc.Status, x.status)
				}
			}
			if !x.dies {
				if x.wr.Op == rdma.OpRDMARead {
					copy(want[armLocal:][:readLen], p.arena.Bytes()[armRW:])
				}
				r.checkMemory("the victim, afterwards", v.arena.Bytes(), want)
			}
			r.checkInnocent()
			r.closeEnds(v, p)
		})
	}
}

// forged is one answer with an acknowledgement header.
func forged(op opcode, d int, syndrome uint8, n int) func(a *assault) [][]byte {
	return func(a *assault) [][]byte { return [][]byte{a.resp(op, d, aeth(syndrome), n)} }
}
