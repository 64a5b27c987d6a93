package softroce

import (
	"bufio"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Pcap is a [Trace] that writes a capture file, for tshark and Wireshark: IP packets without a link layer. The IP and UDP
// headers are made from what the socket tells: the identification of packets that came, their time to live and their
// type of service are not known. It slows the data path down.
type Pcap struct {
	mu   sync.Mutex
	w    *bufio.Writer
	head [16 + 40 + 8]byte
	err  error
}

// linkRaw is the link type of bare IP packets, and snapLen above all that comes.
const (
	linkRaw = 101
	snapLen = 1 << 16
)

// NewPcap starts a capture file.
func NewPcap(w io.Writer) (*Pcap, error) {
	p := &Pcap{w: bufio.NewWriterSize(w, 1<<16)}
	var h [24]byte
	binary.LittleEndian.PutUint32(h[:], 0xa1b23c4d) // nanoseconds
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], snapLen)
	binary.LittleEndian.PutUint32(h[20:], linkRaw)
	_, err := p.w.Write(h[:])
	return p, err
}

// Packet implements [Trace].
func (p *Pcap) Packet(_ bool, src, dst netip.AddrPort, ipID uint16, b []byte) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	h := p.head[:]
	clear(h)
	ip := h[16:]
	var udp []byte
	if src.Addr().Is4() {
		udp, h = ip[20:28], h[:16+28]
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(28+len(b)))
		binary.BigEndian.PutUint16(ip[4:], ipID)
		ip[6], ip[8], ip[9] = 0x40, 64, 17
		s, d := src.Addr().As4(), dst.Addr().As4()
		copy(ip[12:], s[:])
		copy(ip[16:], d[:])
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(ip[i])<<8 | uint32(ip[i+1])
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	} else {
		udp = ip[40:48]
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(8+len(b)))
		ip[6], ip[7] = 17, 64
		s, d := src.Addr().As16(), dst.Addr().As16()
		copy(ip[8:], s[:])
		copy(ip[24:], d[:])
	}
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(b)))
	n := uint32(len(h) - 16 + len(b))
	binary.LittleEndian.PutUint32(h, uint32(now.Unix()))
	binary.LittleEndian.PutUint32(h[4:], uint32(now.Nanosecond()))
	binary.LittleEndian.PutUint32(h[8:], n)
	binary.LittleEndian.PutUint32(h[12:], n)
	if _, p.err = p.w.Write(h); p.err == nil {
		_, p.err = p.w.Write(b)
	}
}

// Flush writes what is buffered, and says whether anything failed so far. The file is the caller's to close.
func (p *Pcap) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = p.w.Flush()
	}
	return p.err
}
