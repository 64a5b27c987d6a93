package tcp

import (
	"golang.org/x/sys/unix"

	"iserd/iscsi"
	"iserd/iscsi/pdu"
)

// outQueue is what a connection has to send: pieces of memory in stream order. Headers and copied data lie in blocks,
// data-in lies where the command has it. Guarded by the turn.
type outQueue struct {
	pieces []outPiece
	head   int // first piece that has not left entirely
	iov    []unix.Iovec

	queued, sent uint64 // stream positions: bytes ever queued, bytes that the kernel took

	// block is where headers are put now, from fill on; full are those before it that have bytes to send.
	block *block
	fill  int
	full  []fullBlock
	// copied is the number of bytes in blocks that wait.
	copied int

	done     []doneTask // tasks to release, in stream order
	doneHead int

	// The last PDU, if it is the final Data-In of a task: it can take the status along. lastHeader lies in block.
	lastTask   *iscsi.Task
	lastHeader []byte // header and header digest
	lastStart  uint64
}

type outPiece struct {
	b       []byte
	inBlock bool
}

type fullBlock struct {
	b   *block
	end uint64
}

type doneTask struct {
	t   *iscsi.Task
	end uint64
}

func (q *outQueue) empty() bool { return q.sent == q.queued }

// reserve gives n contiguous bytes (n <= blockSize) in the queue, to be filled before the end of the turn.
func (q *outQueue) reserve(c *conn, n int) []byte {
	if q.block == nil || blockSize-q.fill < n {
		q.nextBlock(c)
	}
	b := q.block.buf[q.fill : q.fill+n : q.fill+n]
	q.queued += uint64(n)
	q.copied += n
	// Bytes that continue the last piece make no new one: a row of responses is one piece.
	if k := len(q.pieces); k > q.head && q.pieces[k-1].inBlock && q.fill > 0 {
		last := &q.pieces[k-1].b
		start := q.fill - len(*last)
		*last = q.block.buf[start : q.fill+n]
	} else {
		q.pieces = append(q.pieces, outPiece{b: b, inBlock: true})
	}
	q.fill += n
	return b
}

func (q *outQueue) nextBlock(c *conn) {
	if q.block != nil {
		q.full = append(q.full, fullBlock{q.block, q.queued})
	}
	q.block, q.fill = c.srv.blocks.get(), 0
}

// refer queues memory that stays where it is.
func (q *outQueue) refer(b []byte) {
	if len(b) == 0 {
		return
	}
	q.pieces = append(q.pieces, outPiece{b: b})
	q.queued += uint64(len(b))
}

// copyIn queues a copy of b, and goes on with the digest crc over the copy.
func (q *outQueue) copyIn(c *conn, b []byte, crc uint32) uint32 {
	for len(b) > 0 {
		room := blockSize - q.fill
		if q.block == nil || room == 0 {
			room = blockSize
		}
		n := min(len(b), room)
		to := q.reserve(c, n)
		copy(to, b)
		b = b[n:]
		if c.tx.dataDigest {
			crc = pdu.UpdateDigest(crc, to)
		}
	}
	return crc
}

// release calls back for t when everything queued so far has left.
func (q *outQueue) release(t *iscsi.Task) { q.done = append(q.done, doneTask{t, q.queued}) }

// write makes one system call with as much as it takes.
func (q *outQueue) write(fd int) (int, unix.Errno) {
	q.iov = q.iov[:0]
	for i := q.head; i < len(q.pieces) && len(q.iov) < maxIovecs; i++ {
		q.iov = appendIovec(q.iov, q.pieces[i].b)
	}
	n, errno := writev(fd, q.iov)
	if errno != 0 {
		return 0, errno
	}
	q.advance(n)
	return n, 0
}

// advance forgets n bytes that left.
func (q *outQueue) advance(n int) {
	q.sent += uint64(n)
	for n > 0 {
		p := &q.pieces[q.head]
		if len(p.b) > n {
			p.b = p.b[n:]
			if p.inBlock {
				q.copied -= n
			}
			break
		}
		if p.inBlock {
			q.copied -= len(p.b)
		}
		n -= len(p.b)
		p.b = nil
		q.head++
	}
	if q.head == len(q.pieces) {
		q.pieces, q.head = q.pieces[:0], 0
	} else if q.head > 512 {
		q.pieces = append(q.pieces[:0], q.pieces[q.head:]...)
		q.head = 0
	}
}

// recycle gives back blocks that have left.
func (q *outQueue) recycle(c *conn) {
	i := 0
	for ; i < len(q.full) && q.full[i].end <= q.sent; i++ {
		c.srv.blocks.put(q.full[i].b)
	}
	if i > 0 {
		q.full = append(q.full[:0], q.full[i:]...)
	}
	if q.empty() {
		q.fill = 0
	}
}

// idle gives the last block back as well, if nothing is in it.
func (q *outQueue) idle(c *conn) {
	if q.block != nil && q.empty() {
		c.srv.blocks.put(q.block)
		q.block, q.fill = nil, 0
		q.lastTask, q.lastHeader = nil, nil
	}
}

// drop forgets everything; nothing will be sent any more.
func (q *outQueue) drop(c *conn) {
	for _, f := range q.full {
		c.srv.blocks.put(f.b)
	}
	if q.block != nil {
		c.srv.blocks.put(q.block)
	}
	*q = outQueue{queued: q.sent, sent: q.sent}
}

// control queues a PDU with copied data.
func (q *outQueue) control(c *conn, bhs *pdu.BHS, data []byte) *pdu.BHS {
	h := q.header(c, bhs, len(data))
	if len(data) > 0 {
		q.trailer(c, len(data), q.copyIn(c, data, 0))
	}
	return h
}

// header queues a header for a data segment of n bytes, with its digest.
func (q *outQueue) header(c *conn, bhs *pdu.BHS, n int) *pdu.BHS {
	size := pdu.BHSLength
	if c.tx.headerDigest {
		size += pdu.DigestLength
	}
	b := q.reserve(c, size)
	h := (*pdu.BHS)(b)
	*h = *bhs
	h.SetDataSegmentLength(n)
	c.n.pdusOut++
	if c.tx.headerDigest {
		pdu.PutDigest(b[pdu.BHSLength:], pdu.UpdateDigest(0, h[:]))
	}
	q.lastTask, q.lastHeader = nil, b
	return h
}

var padding [3]byte

// trailer queues the padding after n bytes of data, and the digest of both: crc is that of the data.
func (q *outQueue) trailer(c *conn, n int, crc uint32) {
	pad := pdu.Pad4(n) - n
	size := pad
	if c.tx.dataDigest {
		size += pdu.DigestLength
	}
	if size == 0 {
		return
	}
	b := q.reserve(c, size)
	clear(b[:pad])
	if c.tx.dataDigest {
		pdu.PutDigest(b[pad:], pdu.UpdateDigest(crc, padding[:pad]))
	}
}
