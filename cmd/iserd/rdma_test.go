package main

import (
	"bufio"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"iserd/rdma/softroce"
)

// taken is a loopback address whose UDP port 4791 is not to be had while the test runs.
func taken(t *testing.T) netip.Addr {
	t.Helper()
	a := netip.AddrFrom4([4]byte{127, 76, byte(os.Getpid() >> 8), byte(os.Getpid()) | 1})
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, softroce.Port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return a // rdma_rxe has it on every address
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return a
}

// runDaemon runs iserd serve until it is ready, stops it, and gives what it logged.
func runDaemon(t *testing.T, args ...string) (stderr string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"serve", "--quiet", "--lun", "null:1G", "--state-dir", t.TempDir()}, args...)...)
	cmd.Env = append(os.Environ(), "ISERD_TEST_MAIN=1")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	var text strings.Builder
	for s := bufio.NewScanner(pipe); s.Scan(); {
		text.WriteString(s.Text() + "\n")
		if strings.Contains(s.Text(), "\tready\t") {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	return text.String(), cmd.Wait()
}

func linesWith(text string, words ...string) (n int) {
next:
	for _, l := range strings.Split(text, "\n") {
		for _, w := range words {
			if !strings.Contains(l, w) {
				continue next
			}
		}
		n++
	}
	return n
}

// A taken port is the end where softroce is asked for, with the remedy and a status.
func TestSoftRoCEAskedForAndPortTaken(t *testing.T) {
	a := taken(t)
	text, err := runDaemon(t, "--rdma", "softroce", "--listen", a.String()+":0")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want status 1", err)
	}
	if linesWith(text, "iserd: ", a.String(), "4791", "unload rdma_rxe") != 1 || linesWith(text, "\tready\t") != 0 {
		t.Errorf("no line with the address, the port and the remedy, or it was ready:\n%s", text)
	}
}

// Under auto, which is the default, a taken port leaves TCP, and one warning.
func TestAutoAndPortTaken(t *testing.T) {
	if infos, err := deviceInfos(); err == nil && len(infos) > 0 {
		t.Skipf("this host has an RDMA device, %s: auto uses that", infos[0].Name)
	}
	a := taken(t)
	text, err := runDaemon(t, "--listen", a.String()+":0")
	if err != nil {
		t.Errorf("ended with %v", err)
	}
	if linesWith(text, "\tWARN\t", a.String(), "4791", "unload rdma_rxe", "serves TCP only") != 1 || linesWith(text, "\tWARN\t", "4791") != 1 {
		t.Errorf("want one warning with the address, the port and the remedy:\n%s", text)
	}
	if linesWith(text, "listening", `"tcp": true, "iser": false`) != 1 || linesWith(text, "\tno iSER: ") != 1 {
		t.Errorf("want a portal with TCP alone, and one line that says so:\n%s", text)
	}
}

// Where the port is free, auto uses softroce, and one line says so and why.
func TestAutoWithoutDevice(t *testing.T) {
	if infos, err := deviceInfos(); err == nil && len(infos) > 0 {
		t.Skipf("this host has an RDMA device, %s: auto uses that", infos[0].Name)
	}
	text, err := runDaemon(t, "--listen", netip.AddrFrom4([4]byte{127, 75, byte(os.Getpid() >> 8), byte(os.Getpid()) | 1}).String()+":0")
	if linesWith(text, "is taken", "4791") > 0 {
		t.Skip("no address has UDP port 4791 free; rmmod rdma_rxe to run this")
	}
	if err != nil || linesWith(text, "iSER is served by softroce") != 1 || linesWith(text, "listening", `"tcp": true, "iser": true`) != 1 {
		t.Errorf("%v; want one line that names softroce, and a portal with both transports:\n%s", err, text)
	}
}
