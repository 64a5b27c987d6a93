package iser

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden reads a testdata file: one PDU in hex, comments after #.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(raw)) {
		line, _, _ = strings.Cut(line, "#")
		b.WriteString(strings.Join(strings.Fields(line), ""))
	}
	p, err := hex.DecodeString(b.String())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestGoldenHeaders(t *testing.T) {
	for name, want := range map[string]struct {
		h    Header
		data string
	}{
		"read10.hex":            {Header{ReadSTag: 0xa5c1, ReadBaseOffset: 0x7f0012345000, RSV: true}, ""},
		"write10_immediate.hex": {Header{WriteSTag: 0x1234abcd, WriteBaseOffset: 0x7f0000000004, WSV: true}, "\xde\xad\xbe\xef"},
	} {
		msg := golden(t, name)
		m, err := parseMessage(msg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want.h, m.header); d != "" {
			t.Errorf("%s: header: %s", name, d)
		}
		if string(m.data) != want.data {
			t.Errorf("%s: data %x", name, m.data)
		}
		var again [HeaderLength]byte
		m.header.Put(again[:])
		if !bytes.Equal(again[:], msg[:HeaderLength]) {
			t.Errorf("%s: encoded again: %x, was %x", name, again, msg[:HeaderLength])
		}
	}
}

func TestParseMessage(t *testing.T) {
	control := func(ahs byte, dsl int, rest int) []byte {
		m := make([]byte, headersLength+rest)
		m[0] = byte(OpControl) << 4
		m[HeaderLength+4] = ahs
		m[HeaderLength+5], m[HeaderLength+6], m[HeaderLength+7] = byte(dsl>>16), byte(dsl>>8), byte(dsl)
		return m
	}
	hello := golden(t, "hello.hex")
	for _, tt := range []struct {
		name string
		msg  []byte
		err  error
		data int
	}{
		{"no data", control(0, 0, 0), nil, 0},
		{"unpadded", control(0, 5, 5), nil, 5},
		{"padded", control(0, 5, 8), nil, 5},
		{"AHS", control(2, 6, 14), nil, 6},
		{"B116: 8192 bytes", control(0, 8192, 8192), nil, 8192},
		{"empty", nil, errShortHeader, 0},
		{"one byte", []byte{0x10}, errShortHeader, 0},
		{"27 bytes", control(0, 0, 0)[:27], errShortHeader, 0},
		{"header alone", control(0, 0, 0)[:28], errShortHeader, 0},
		{"75 bytes", control(0, 0, 0)[:75], errShortHeader, 0},
		{"data short by one", control(0, 5, 4), errLength, 0},
		{"AHS missing", control(1, 0, 0), errLength, 0},
		{"AHS eats the data", control(2, 4, 8), errLength, 0},
		{"16 MB claimed", control(0, 0xffffff, 8192), errLength, 0},
		{"all lengths at their limit", control(0xff, 0xffffff, 8192), errLength, 0},
		{"Hello", append(hello, make([]byte, 64)...), errOpcode, 0},
		{"opcode 0", make([]byte, 76), errOpcode, 0},
		{"opcode 15", bytes.Repeat([]byte{0xff}, 76), errOpcode, 0},
	} {
		m, err := parseMessage(tt.msg)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.err)
		}
		if err == nil && len(m.data) != tt.data {
			t.Errorf("%s: %d bytes of data, want %d", tt.name, len(m.data), tt.data)
		}
	}
}

func TestHello(t *testing.T) {
	h, err := ParseHello(golden(t, "hello.hex"))
	if err != nil || h != (Hello{1, 1, 16}) || !h.acceptable() {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, tt := range []struct {
		hello  Hello
		length int
		want   string
	}{
		{Hello{1, 1, 16}, 12, "301100080000000000000000"},
		{Hello{1, 1, 16}, 28, "30110008000000000000000000000000000000000000000000000000"},
		{Hello{2, 0, 0}, 12, "301100080000000000000000"},
		{Hello{3, 2, 16}, 12, "311100080000000000000000"},
		{Hello{0, 0, 16}, 12, "311100080000000000000000"},
	} {
		var b [64]byte
		for i := range b {
			b[i] = 0xee
		}
		n := putHelloReply(b[:], tt.hello, 8, tt.length)
		if got := hex.EncodeToString(b[:n]); got != tt.want {
			t.Errorf("%+v in %d bytes: %s, want %s", tt.hello, tt.length, got, tt.want)
		}
	}
	for _, bad := range [][]byte{nil, {0x20}, make([]byte, 11), {0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		if _, err := ParseHello(bad); err == nil {
			t.Errorf("%x taken for a Hello", bad)
		}
	}
}

// TestPrivateData holds the trap that absent private data arrives as zeros.
func TestPrivateData(t *testing.T) {
	for _, tt := range []struct {
		private []byte
		want    bool
	}{
		{[]byte{0x80, 0, 0, 0}, true},                     // ib_iser
		{append([]byte{0x80}, make([]byte, 55)...), true}, // the same, padded
		{[]byte{0xc0, 0, 0, 0}, false},                    // libiscsi
		{nil, false},
		{[]byte{}, false},
		{make([]byte, 56), false}, // nothing sent, padded
		{[]byte{0x40, 0, 0, 0}, false},
		{[]byte{0x3f}, false},
	} {
		if got := peerInvalidates(tt.private); got != tt.want {
			t.Errorf("% x: %v", tt.private, got)
		}
	}
	if got := replyPrivateData(true); got != [4]byte{0x80} {
		t.Errorf("reply with invalidation: % x", got)
	}
	if got := replyPrivateData(false); got != [4]byte{0xc0} {
		t.Errorf("reply without: % x", got)
	}
}

func TestWorkRequestID(t *testing.T) {
	for _, tt := range []struct {
		kind         idKind
		gen          uint16
		slot, number uint32
	}{{idRecv, 0, 0, 0}, {idSend, 0xffff, maxSlots - 1, idNumberMask}, {idSendSentinel, 1, 2, 3}, {idRecvSentinel, 0x8000, 1 << 19, 1 << 23}} {
		id := wrID(tt.kind, tt.gen, tt.slot, tt.number)
		if idKindOf(id) != tt.kind || idGen(id) != tt.gen || idSlot(id) != tt.slot || idNumber(id) != tt.number {
			t.Errorf("%+v became %#x", tt, id)
		}
	}
	// A number past the field wraps round and touches nothing else.
	if id := wrID(idSend, 5, 6, idNumberMask+2); idNumber(id) != 1 || idSlot(id) != 6 {
		t.Errorf("%#x", id)
	}
}

func TestFIFO(t *testing.T) {
	var q fifo[int]
	next, want := 0, 0
	for round := range 50 {
		for range round%7 + 3 {
			q.push(next)
			next++
		}
		for range min(round%5+2, q.len()) {
			if *q.front() != want {
				t.Fatalf("front %d, want %d", *q.front(), want)
			}
			if got := q.pop(); got != want {
				t.Fatalf("popped %d, want %d", got, want)
			}
			want++
		}
	}
	if q.len() != next-want {
		t.Errorf("length %d, want %d", q.len(), next-want)
	}
	q.clear()
	q.push(1)
	if q.len() != 1 || q.pop() != 1 {
		t.Error("not usable after clear")
	}
}

func FuzzHeader(f *testing.F) {
	for _, name := range []string{"read10.hex", "write10_immediate.hex", "hello.hex"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if h, err := ParseHello(msg); err == nil {
			var b [64]byte
			if n := putHelloReply(b[:], h, 1, len(msg)); n != 12 && n != 28 {
				t.Fatalf("reply of %d bytes", n)
			}
		}
		m, err := parseMessage(msg)
		if err != nil {
			return
		}
		if headersLength+len(m.ahs)+len(m.data) > len(msg) {
			t.Fatal("parts longer than the message")
		}
		var b [HeaderLength]byte
		m.header.Put(b[:])
		again, err := ParseHeader(b[:])
		if err != nil || again != m.header {
			t.Fatalf("%+v became %+v (%v)", m.header, again, err)
		}
	})
}
