//go:build linux && cgo && !nordma

package verbs

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"iserd/rdma"
)

func TestSockaddr(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:3260":           "",
		"0.0.0.0:0":                "",
		"[::]:3260":                "",
		"[2001:db8::1]:65535":      "",
		"[fe80::1%lo]:860":         "",
		"[fe80::1%1]:860":          "[fe80::1%lo]:860",
		"[fe80::1%4000000000]:860": "",
		"[::ffff:192.0.2.1]:3260":  "192.0.2.1:3260",
		"[2001:db8::1%lo]:1":       "[2001:db8::1]:1", // a zone means nothing there
	} {
		if want == "" {
			want = in
		}
		s, ok := encodeSockaddr(netip.MustParseAddrPort(in))
		if got := s.decode(); !ok || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %t, want %s", in, got, ok, want)
		}
	}
	for _, a := range []netip.AddrPort{
		{}, netip.AddrPortFrom(netip.Addr{}, 1), netip.MustParseAddrPort("[fe80::1%nosuch0]:1"),
		netip.MustParseAddrPort("[fe80::1%0]:1"), netip.MustParseAddrPort("[fe80::1%4294967296]:1"),
	} {
		if s, ok := encodeSockaddr(a); ok {
			t.Errorf("%v encodes to %x", a, s)
		}
	}
	for _, family := range []byte{0, 1, 27, 255} { // AF_IB is 27
		if a := (&sockaddr{family, 0, 1, 2}).decode(); a.IsValid() {
			t.Errorf("family %d decodes to %v", family, a)
		}
	}
	if s, _ := encodeSockaddr(netip.MustParseAddrPort("1.2.3.4:258")); s != (sockaddr{unix.AF_INET, 0, 1, 2, 1, 2, 3, 4}) {
		t.Errorf("%x", s)
	}
}

// A reader that does not read loses the oldest events, learns of it once, and blocks nobody.
func TestAsyncDropsOldest(t *testing.T) {
	for _, size := range []int{2, 3, 8} {
		d := &device{events: make(chan rdma.AsyncEvent, size)}
		r := &asyncReader{d: d}
		for i := range 10 * size {
			r.push(rdma.AsyncEvent{Type: rdma.AsyncGIDChange, Port: i})
		}
		notes, last := 0, -1
		n := len(d.events)
		for range n {
			ev := <-d.events
			if ev.Type == rdma.AsyncEventsDropped {
				notes++
				continue
			}
			if ev.Port <= last {
				t.Errorf("size %d: event %d after %d", size, ev.Port, last)
			}
			last = ev.Port
		}
		if notes != 1 || last != 10*size-1 || n < size-1 {
			t.Errorf("size %d: %d in the queue, %d notes, last event %d", size, n, notes, last)
		}
		if lost := r.lost.Load(); int(lost) != 10*size-(n-1) {
			t.Errorf("size %d: %d counted as lost", size, lost)
		}
		r.push(rdma.AsyncEvent{Type: rdma.AsyncPortErr})
		if ev := <-d.events; ev.Type != rdma.AsyncPortErr {
			t.Errorf("size %d: after reading: %+v", size, ev)
		}
	}
}

func TestTypeTables(t *testing.T) {
	if asyncType(3) != rdma.AsyncQPAccessErr || asyncType(1000) != rdma.AsyncUnknown {
		t.Error("async types")
	}
	seen := map[rdma.EventType]bool{}
	for n, typ := range eventTypes {
		if n > 15 || seen[typ] || typ == rdma.EventNone {
			t.Errorf("connection event %d is %s", n, typ)
		}
		seen[typ] = true
	}
	if len(seen) != 14 {
		t.Errorf("%d connection events", len(seen))
	}
}
