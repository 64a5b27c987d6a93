package iser

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"iserd/iscsi/pdu"
)

// read asks for n bytes at lba and checks what arrives.
func (i *initiator) read(op byte, tag, lba uint32, n int) error {
	b, addr := i.data(0, n)
	clear(b)
	if err := i.sendPDU(Header{RSV: true, ReadSTag: i.mr.RKey(), ReadBaseOffset: addr}, command(tag, tag, cdb(op, lba), uint32(n), 0, 0), nil); err != nil {
		return err
	}
	r, err := i.response(tag)
	if err != nil {
		return err
	}
	if !patternOK(b, lba) {
		return fmt.Errorf("read of %d bytes at %d: wrong bytes", n, lba)
	}
	return i.done(r)
}

// write sends n bytes, the first imm of them as immediate data.
func (i *initiator) write(tag, lba uint32, n, imm int) error {
	b, addr := i.data(0, n)
	pattern(b, lba)
	h := Header{}
	if imm < n {
		h = Header{WSV: true, WriteSTag: i.mr.RKey(), WriteBaseOffset: addr + uint64(imm)}
	}
	if err := i.sendPDU(h, command(tag, tag, cdb(0x2a, lba), 0, uint32(n), imm), b[:imm]); err != nil {
		return err
	}
	r, err := i.response(tag)
	if err != nil {
		return err
	}
	return i.done(r)
}

func (i *initiator) response(tag uint32) (received, error) {
	r, err := i.next(5 * time.Second)
	if err != nil {
		return r, err
	}
	if r.bhs.Opcode() != pdu.OpSCSIResponse || r.bhs.InitiatorTaskTag() != tag {
		return r, fmt.Errorf("tag %d answered by % x", tag, r.bhs[:20])
	}
	if r.bhs[3] != 0 {
		return r, fmt.Errorf("tag %d: status %d", tag, r.bhs[3])
	}
	return r, nil
}

func cdb(op byte, lba uint32) []byte {
	c := make([]byte, 16)
	c[0] = op
	binary.BigEndian.PutUint32(c[2:], lba)
	return c
}

func TestReadsAndWrites(t *testing.T) {
	f := newFabric(t)
	n := newStubNode()
	s, addr := stubServer(t, f, n, Config{})
	st := s.Stats()
	before := st.Total()
	i := mustDial(t, f.peer, addr, dialOptions{})
	defer i.close()
	if err := i.logIn(); err != nil {
		t.Fatal(err)
	}
	tag := uint32(1)
	for _, size := range []int{512, 4096, 4097, 65536, 1 << 20, 3<<20 + 512} {
		for _, op := range []byte{0x28, 0x88} {
			if err := i.read(op, tag, 7*uint32(size), size); err != nil {
				t.Fatalf("size %d: %v", size, err)
			}
			tag++
		}
		for _, imm := range []int{0, 4, min(size, 8192)} {
			if err := i.write(tag, 3*uint32(size), size, imm); err != nil {
				t.Fatalf("write of %d, %d immediate: %v", size, imm, err)
			}
			tag++
		}
	}
	i.close()
	atRest(t, s, before)
}
