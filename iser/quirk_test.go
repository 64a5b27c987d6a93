package iser

import (
	"testing"

	"iserd/iscsi/pdu"
)

// libiscsi up to 1.19 negotiates immediate data, states its length and sends none of it.
func TestImmediateDataThatIsNotThere(t *testing.T) {
	write := func(edit func(*Header, *pdu.BHS)) []byte {
		msg := make([]byte, headersLength)
		h := Header{WSV: true, WriteSTag: 7, WriteBaseOffset: 0x1000}
		var bhs pdu.BHS
		bhs.SCSICommand().Init()
		bhs.SetFinal(true)
		bhs.SCSICommand().SetWrite(true)
		bhs.SetDataSegmentLength(512)
		edit(&h, &bhs)
		h.Put(msg)
		copy(msg[HeaderLength:], bhs[:])
		return msg
	}
	m, err := parseMessage(write(func(*Header, *pdu.BHS) {}))
	if err != nil {
		t.Fatal(err)
	}
	if bhs := (*pdu.BHS)(m.bhs); bhs.DataSegmentLength() != 0 || len(m.data) != 0 {
		t.Errorf("data segment of %d bytes, want none: all of it is behind the STag", bhs.DataSegmentLength())
	}
	for name, msg := range map[string][]byte{
		"no STag":       write(func(h *Header, _ *pdu.BHS) { h.WriteSTag = 0 }),
		"no WSV":        write(func(h *Header, _ *pdu.BHS) { h.WSV = false }),
		"not a command": write(func(_ *Header, b *pdu.BHS) { b.SetOpcode(pdu.OpTextRequest) }),
		"part of it":    append(write(func(*Header, *pdu.BHS) {}), make([]byte, 4)...),
	} {
		if _, err := parseMessage(msg); err != errLength {
			t.Errorf("%s: %v, want %v", name, err, errLength)
		}
	}
}
