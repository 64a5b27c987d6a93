package softroce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"iserd/rdma"
)

const (
	sendRoom    = 256 << 10 // bytes of packets in one batch
	sendRuns    = 32        // messages in one batch
	maxSegments = 48        // packets in one message, below the kernel's limit of 64
	maxRunBytes = 60 << 10
	recvMsgs    = 16
	recvRoom    = 64 << 10
	wantBuffer  = 8 << 20
)

// socket is a UDP socket at the RoCEv2 port of one local address. Sending is batched: packets of one length to one peer
// that follow each other become one message that the kernel cuts (UDP_SEGMENT).
type socket struct {
	dev  *device
	addr netip.Addr
	f    *os.File
	raw  syscall.RawConn
	gso  atomic.Bool

	readRoom uint32       // bytes of READ responses that the receive buffer is sure to hold
	asked    atomic.Int64 // bytes of READ responses that are awaited

	mu    sync.Mutex // guards what follows; held from begin to end
	crc   icrc
	buf   []byte
	n     int // bytes used
	size  int // of the packet between begin and end
	runs  [sendRuns]run
	nrun  int
	tx    mmsgs
	off   int // of the first message that is not sent
	tries int
	sent  int
	errno syscall.Errno
	write func(fd uintptr) bool // made once: a closure for each batch would be garbage
}

// run is a message: count packets of seg bytes (the last may be shorter) from off on.
type run struct {
	to           netip.AddrPort
	off, seg     int
	count, bytes int
	closed       bool // a shorter packet ended it
}

type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// mmsgs is the memory of one sendmmsg or recvmmsg.
type mmsgs struct {
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	names []unix.RawSockaddrInet6 // large enough for both families
	ctl   [][64]byte
}

func (m *mmsgs) init(n int) {
	m.hdrs, m.iovs = make([]mmsghdr, n), make([]unix.Iovec, n)
	m.names, m.ctl = make([]unix.RawSockaddrInet6, n), make([][64]byte, n)
	for i := range m.hdrs {
		h := &m.hdrs[i].hdr
		h.Iov, h.Iovlen = &m.iovs[i], 1
		h.Name = (*byte)(unsafe.Pointer(&m.names[i]))
	}
}

// zoneID is the interface index of a link-local address.
func zoneID(a netip.Addr) uint32 {
	if z := a.Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			return uint32(i.Index)
		}
	}
	return 0
}

// openSocket binds to one address.
func (d *device) openSocket(addr netip.Addr) (*socket, error) {
	const op = "bind of UDP port 4791"
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("softroce: socket: %w", err)
	}
	fail := func(op string, err error, hint string) (*socket, error) {
		_ = unix.Close(fd)
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			return nil, fmt.Errorf("softroce: %s: %w", op, err)
		}
		return nil, &rdma.OpError{Op: op, Errno: errno, Hint: hint}
	}
	var sa unix.Sockaddr
	if family == unix.AF_INET {
		// Don't fragment: the kernel then writes an identification that the ICRC can know, and a packet above the MTU
		// fails here instead of being cut.
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		sa = &unix.SockaddrInet4{Port: Port, Addr: addr.As4()}
	} else {
		// RoCEv2 senders write no UDP checksum, which a socket takes over IPv6 only when asked to; the ICRC stands in.
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO))
		sa = &unix.SockaddrInet6{Port: Port, Addr: addr.As16(), ZoneId: zoneID(addr)}
	}
	if err != nil {
		return fail("setsockopt", err, "")
	}
	for _, o := range [][2]int{{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], wantBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], wantBuffer)
		}
	}
	rcvbuf, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return fail("getsockopt", err, "")
	}
	if n := rcvbuf; n < wantBuffer {
		d.warnBuffer.Do(func() {
			d.warn(fmt.Sprintf("softroce: the receive buffer of a UDP socket is %d KiB instead of %d; packets will be lost under load (remedy: sysctl -w net.core.rmem_max=%d, or CAP_NET_ADMIN)", n>>10, wantBuffer>>10, wantBuffer))
		})
	}
	// No SO_REUSEADDR: the kernel itself sees to it that an address belongs to one program.
	if err := unix.Bind(fd, sa); err != nil {
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			return fail(op, err, addr.String()+" is taken by another program or by rdma_rxe; use another address, for example 127.0.0.2, or unload rdma_rxe")
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return fail(op, err, addr.String()+" is not an address of this machine")
		}
		return fail(op, err, addr.String())
	}
	// The kernel counts a packet with its bookkeeping: up to twice its bytes.
	s := &socket{dev: d, addr: addr, buf: make([]byte, sendRoom), readRoom: uint32(max(rcvbuf/2, 16<<10))}
	s.gso.Store(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) // a kernel without it delivers packet by packet
	s.f = os.NewFile(uintptr(fd), "softroce-udp")
	if s.raw, err = s.f.SyscallConn(); err != nil {
		_ = s.f.Close()
		return nil, fmt.Errorf("softroce: %w", err)
	}
	s.tx.init(sendRuns)
	s.write = s.sendmmsg
	d.wg.Add(1)
	go s.receive()
	return s, nil
}

func (s *socket) close() { _ = s.f.Close() }

// begin gives room for a packet of n bytes and holds the socket until end or abandon.
func (s *socket) begin(n int) []byte {
	s.mu.Lock()
	if s.n+n > len(s.buf) || s.nrun == sendRuns {
		s.transmit()
	}
	s.size = n
	return s.buf[s.n : s.n+n]
}

// abandon gives the room back.
func (s *socket) abandon() { s.mu.Unlock() }

// end completes the packet: its ICRC, and its place in a message.
func (s *socket) end(to netip.AddrPort, f *flow) {
	b := s.buf[s.n : s.n+s.size]
	var r *run
	if s.nrun > 0 && s.gso.Load() {
		if l := &s.runs[s.nrun-1]; l.to == to && !l.closed && s.size <= l.seg && l.count < maxSegments && l.bytes+s.size <= maxRunBytes {
			r = l
			r.closed = s.size < r.seg
		}
	}
	if r == nil {
		r = &s.runs[s.nrun]
		*r = run{to: to, off: s.n, seg: s.size}
		s.nrun++
	}
	// The kernel writes the identification 0 into what may not be fragmented, and counts up within one message.
	id := uint16(r.count)
	s.crc.put(f, b, id)
	r.count++
	r.bytes += s.size
	s.n += s.size
	s.dev.counters.sent.Add(1)
	s.dev.trace(true, f, b, id)
	s.mu.Unlock()
}

// flush sends what is queued.
func (s *socket) flush() {
	s.mu.Lock()
	s.transmit()
	s.mu.Unlock()
}

func (s *socket) sendmmsg(fd uintptr) bool {
	r, _, e := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&s.tx.hdrs[s.off])), uintptr(s.nrun-s.off), unix.MSG_DONTWAIT, 0, 0)
	s.sent, s.errno = int(r), e
	s.tries++
	return e != unix.EAGAIN || s.tries > 1
}

// transmit sends every message of the batch. What the kernel does not take is lost, as on any network; the transport
// sends it again. mu is held.
func (s *socket) transmit() {
	if s.nrun == 0 {
		return
	}
	for i := range s.nrun {
		r := &s.runs[i]
		h := &s.tx.hdrs[i].hdr
		s.tx.iovs[i].Base = &s.buf[r.off]
		s.tx.iovs[i].SetLen(r.bytes)
		h.Namelen = putName(&s.tx.names[i], r.to)
		h.Control = nil
		h.SetControllen(0)
		if r.count > 1 {
			h.Control = &s.tx.ctl[i][0]
			h.SetControllen(putSegment(s.tx.ctl[i][:], r.seg))
		}
	}
	for s.off = 0; s.off < s.nrun; {
		s.tries = 0
		err := s.raw.Write(s.write)
		s.dev.counters.sendCalls.Add(1)
		if err != nil {
			break // closed
		}
		if s.errno != 0 {
			if s.errno == unix.EINVAL && s.runs[s.off].count > 1 || s.errno == unix.EIO {
				s.gso.Store(false) // this path cannot cut: later batches go packet by packet
			}
			s.dev.counters.sendErrors.Add(1)
			s.off++ // that one is lost
			continue
		}
		s.off += s.sent
	}
	s.nrun, s.n = 0, 0
}

func putName(n *unix.RawSockaddrInet6, to netip.AddrPort) uint32 {
	if to.Addr().Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(n))
		*v4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&v4.Port))[:], to.Port())
		return unix.SizeofSockaddrInet4
	}
	*n = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.Addr().As16()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&n.Port))[:], to.Port())
	return unix.SizeofSockaddrInet6
}

func putSegment(b []byte, size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return unix.CmsgSpace(2)
}

// receive reads the socket until it is closed, a batch of messages at a time.
func (s *socket) receive() {
	defer s.dev.wg.Done()
	var m mmsgs
	m.init(recvMsgs)
	buf := make([]byte, recvMsgs*recvRoom)
	rx := reader{sock: s}
	var n int
	var errno syscall.Errno
	more := false
	read := func(fd uintptr) bool {
		r, _, e := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&m.hdrs[0])), recvMsgs, unix.MSG_DONTWAIT, 0, 0)
		n, errno = int(r), e
		return more || e != unix.EAGAIN
	}
	for {
		for i := range m.hdrs {
			m.iovs[i].Base = &buf[i*recvRoom]
			m.iovs[i].SetLen(recvRoom)
			m.hdrs[i].hdr.Namelen = unix.SizeofSockaddrInet6
			m.hdrs[i].hdr.Control = &m.ctl[i][0]
			m.hdrs[i].hdr.SetControllen(len(m.ctl[i]))
		}
		if err := s.raw.Read(read); err != nil {
			rx.endBatch()
			return // closed
		}
		if errno != 0 { // nothing there, or an ICMP error of some peer: its timers will tell
			n = 0
		}
		for i := range n {
			from := s.getName(&m.names[i])
			seg := getSegment(m.ctl[i][:min(int(m.hdrs[i].hdr.Controllen), len(m.ctl[i]))])
			data := buf[i*recvRoom : i*recvRoom+int(m.hdrs[i].len)]
			if seg <= 0 {
				seg = len(data)
			}
			for len(data) > 0 {
				k := min(seg, len(data))
				if s.dev.arrive == nil {
					rx.datagram(from, data[:k])
				} else {
					s.dev.arrive(from, data[:k], rx.datagram)
				}
				data = data[k:]
			}
		}
		more = rx.endBatch()
	}
}

func (s *socket) getName(n *unix.RawSockaddrInet6) netip.AddrPort {
	if n.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(n))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&v4.Port))[:]))
	}
	a := netip.AddrFrom16(n.Addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&n.Port))[:]))
}

// getSegment reads the segment size of a received message; zero when it is one packet.
func getSegment(b []byte) int {
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(b) {
			return 0
		}
		if d := b[unix.CmsgLen(0):n]; h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(d) >= 2 {
			return int(binary.NativeEndian.Uint16(d))
		}
		b = b[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(b)):]
	}
	return 0
}
