package softroce

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Leaks names what is open, for tests.
func Leaks(p *Provider) []string {
	var out []string
	o := &p.dev.open
	for _, c := range []struct {
		what string
		n    int32
	}{{"protection domains", o.pds.Load()}, {"regions", o.mrs.Load()}, {"completion queues", o.cqs.Load()}, {"completion channels", o.channels.Load()},
		{"queue pairs", o.qps.Load()}, {"listeners", o.listeners.Load()}, {"event channels", o.events.Load()}} {
		if c.n != 0 {
			out = append(out, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return out
}

// Counters are what the device counted, for tests.
func Counters(p *Provider) string { return p.Stats().String() }

// SetNetwork puts f between the wire and the provider: it says how often a datagram is handled, and may change it. It is
// called by one goroutine for each socket, and must be set before there is one.
func SetNetwork(p *Provider, f func(b []byte) int) {
	p.dev.arrive = func(from netip.AddrPort, b []byte, handle func(netip.AddrPort, []byte)) {
		for range f(b) {
			handle(from, b)
		}
	}
}

// SetDisorder puts a network between the wire and the provider at addr that holds packets back for a millisecond: late says
// which, and lost which do not come at all.
func SetDisorder(p *Provider, addr netip.Addr, late, lost func() bool) {
	type held struct {
		from  netip.AddrPort
		b     []byte
		until time.Time
	}
	const hold = time.Millisecond
	alarm := []byte("alarm")
	var mu sync.Mutex
	var back []held
	p.dev.arrive = func(from netip.AddrPort, b []byte, handle func(netip.AddrPort, []byte)) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case bytes.Equal(b, alarm), lost():
		case late():
			back = append(back, held{from, bytes.Clone(b), time.Now().Add(hold)})
			time.AfterFunc(hold, func() { // the packet is handled by who reads the socket
				if c, err := net.Dial("udp", netip.AddrPortFrom(addr, Port).String()); err == nil {
					_, _ = c.Write(alarm)
					_ = c.Close()
				}
			})
		default:
			handle(from, b)
		}
		back = slices.DeleteFunc(back, func(h held) bool {
			if time.Now().Before(h.until) {
				return false
			}
			handle(h.from, h.b)
			return true
		})
	}
}

// Timeouts is how often something was sent again because nothing came.
func Timeouts(p *Provider) uint64 { return p.dev.counters.timeouts.Load() }

// BadICRC is how many packets were dropped for their ICRC.
func BadICRC(p *Provider) uint64 { return p.dev.counters.badICRC.Load() }

// Pending counts the connections that the manager knows, those of them that are half open, and the sources of those.
func Pending(p *Provider) (conns, halfOpen, sources int) {
	c := &p.dev.cm
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID), c.halfOpen, len(c.perSource)
}
