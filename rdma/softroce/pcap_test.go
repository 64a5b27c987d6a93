package softroce_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"iserd/internal/iserclient"
	"iserd/rdma/softroce"
)

// TestPcap: a capture of a session has every packet, and tshark, where it is installed, finds none malformed.
func TestPcap(t *testing.T) {
	var file bytes.Buffer
	trace, err := softroce.NewPcap(&file)
	check(t, err)
	a, b := loopback(), loopback()
	tgt := newProvider(t, softroce.Options{Addrs: []netip.Addr{a}, Trace: trace})
	ini := newProvider(t, softroce.Options{Addrs: []netip.Addr{b}})
	s := newStack(t, tgt, a)
	c := s.open(ini, iserclient.Options{})
	verify(t, c)
	check(t, c.Logout())
	check(t, trace.Flush())
	packets := 0
	for rest := file.Bytes()[24:]; len(rest) > 0; packets++ {
		n := binary.LittleEndian.Uint32(rest[8:])
		ip := rest[16:][:n]
		rest = rest[16+n:]
		if ip[0] != 0x45 || int(ip[2])<<8|int(ip[3]) != len(ip) || int(ip[24])<<8|int(ip[25]) != len(ip)-20 {
			t.Fatalf("packet %d: headers %x", packets, ip[:28])
		}
	}
	if packets < 500 {
		t.Errorf("%d packets", packets)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	name := filepath.Join(t.TempDir(), "x.pcap")
	check(t, os.WriteFile(name, file.Bytes(), 0o644))
	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode", "-e", "infiniband.invariant.crc").CombinedOutput()
	check(t, err)
	lines := 0
	for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if f := strings.Split(l, "\t"); len(f) == 3 {
			lines++
			if f[0] != "" || f[1] == "" || f[2] == "" {
				t.Fatalf("tshark: %q", l)
			}
		}
	}
	if lines != packets {
		t.Errorf("tshark sees %d packets of %d", lines, packets)
	}
}

// A full disk ends the trace, not the session.
func TestPcapFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	trace, err := softroce.NewPcap(full)
	check(t, err)
	at := netip.MustParseAddrPort("[::1]:4791")
	for range 100 {
		trace.Packet(true, at, at, 0, make([]byte, 2000))
	}
	if trace.Flush() == nil {
		t.Error("nothing failed")
	}
}
