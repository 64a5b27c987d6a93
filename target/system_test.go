package target

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iserd/internal/iserclient"
	"iserd/internal/tcpclient"
	"iserd/rdma"
	"iserd/rdma/rdmatest"
)

const testTarget = "iqn.2026-12.lab.iserd:system"

// system builds a daemon over the in-memory fabric and gives what initiators need of it.
func system(t testing.TB, change func(*Config)) (s *System, ini *rdmatest.Provider, iser netip.AddrPort, tcp string) {
	t.Helper()
	fabric, tgt, ini := rdmatest.Pair(rdmatest.Config{Misuse: rdmatest.FailOnMisuse(t, rdmatest.MisuseAfterError)})
	cfg := Config{
		Shards: 1,
		Portals: []PortalConfig{{Address: "192.0.2.1:3260", Transports: []string{"iser"}},
			{Address: "127.0.0.1:0", Transports: []string{"tcp"}}},
		Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "ram:8MiB"}, {Store: "null:1TiB"},
			{Store: "file:" + filepath.Join(t.TempDir(), "disk.img") + ",size=8MiB"}}}},
	}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, Options{HostID: strings.Repeat("ab", 16), Provider: func() (rdma.Provider, error) { return tgt, nil },
		Warn: func(m string) { t.Log(m) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if l := fabric.Leaks(); len(l) > 0 {
			t.Errorf("left open: %q", l)
		}
	})
	for _, p := range s.Portals() {
		if p.ISER {
			iser = p.Addr
		}
		if p.TCP {
			tcp = p.Addr.String()
		}
	}
	return s, ini, iser, tcp
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testUnitReady takes the unit attention of a new session.
var testUnitReady = make([]byte, 6)

// What one transport writes the other reads, on every store that keeps data.
func TestBothTransportsSeeOneDisk(t *testing.T) {
	_, ini, addr, tcp := system(t, nil)
	a, err := iserclient.Open(ini, addr, iserclient.Options{}, iserclient.Login{Target: testTarget, ISID: [6]byte{0x80, 1}})
	must(t, err)
	b, err := tcpclient.Open(tcp, tcpclient.Login{Target: testTarget, ISID: [6]byte{0x80, 2}})
	must(t, err)
	for _, lun := range []int{0, 2} {
		_, err = a.Do(&iserclient.Command{LUN: iserclient.LUN(lun), CDB: testUnitReady})
		must(t, err)
		_, err = b.Do(&tcpclient.Command{LUN: tcpclient.LUN(lun), CDB: testUnitReady})
		must(t, err)
		for _, blocks := range []uint16{1, 7, 16, 128, 2048} {
			data := make([]byte, int(blocks)*512)
			for i := range data {
				data[i] = byte(rand.Uint32())
			}
			t.Run(fmt.Sprintf("LUN%d/%dblocks", lun, blocks), func(t *testing.T) {
				if r, err := a.Do(&iserclient.Command{LUN: iserclient.LUN(lun), CDB: iserclient.Write10(3, blocks), Out: data}); err != nil || r.Status != 0 {
					t.Fatalf("write over iSER: %v, %+v", err, r)
				}
				r, err := b.Do(&tcpclient.Command{LUN: tcpclient.LUN(lun), CDB: tcpclient.Read10(3, blocks), In: len(data)})
				if err != nil || r.Status != 0 || !bytes.Equal(r.Data, data) {
					t.Fatalf("read over TCP: %v, status %v", err, r.Status)
				}
				for i := range data {
					data[i] ^= 0x5a
				}
				if r, err := b.Do(&tcpclient.Command{LUN: tcpclient.LUN(lun), CDB: tcpclient.Write10(3, blocks), Out: data}); err != nil || r.Status != 0 {
					t.Fatalf("write over TCP: %v, %+v", err, r)
				}
				q, err := a.Do(&iserclient.Command{LUN: iserclient.LUN(lun), CDB: iserclient.Read10(3, blocks), In: len(data)})
				if err != nil || q.Status != 0 || !bytes.Equal(q.Data, data) {
					t.Fatalf("read over iSER: %v, status %v", err, q.Status)
				}
			})
		}
	}
	must(t, a.Logout())
	must(t, b.Logout())
}

// At depth 32 a command costs at most an eighth of a crossing into C and a quarter of a doorbell, and no allocation.
func TestCostOfACommand(t *testing.T) {
	for _, lun := range []int{0, 1} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("LUN%d/write=%v", lun, write), func(t *testing.T) {
				s, ini, addr, _ := system(t, nil)
				c, err := iserclient.Open(ini, addr, iserclient.Options{KeepRegistered: true,
					PrivateData: []byte{iserclient.NoZBVA | iserclient.NoSendWithInv}}, iserclient.Login{Target: testTarget, ISID: [6]byte{0x80, 3}})
				must(t, err)
				_, err = c.Do(&iserclient.Command{LUN: iserclient.LUN(lun), CDB: testUnitReady})
				must(t, err)
				cmd := &iserclient.Command{LUN: iserclient.LUN(lun), CDB: iserclient.Read10(0, 8), In: 4096}
				if write {
					cmd = &iserclient.Command{LUN: iserclient.LUN(lun), CDB: iserclient.Write10(8, 8), Out: make([]byte, 4096)}
				}
				const depth = 32
				var window [depth]*iserclient.Task
				batch := func() {
					for i := range window {
						task, err := c.Start(cmd)
						if err != nil {
							t.Fatal(err)
						}
						window[i] = task
					}
					for _, task := range window {
						if err := c.Wait(task); err != nil || task.Status != 0 {
							t.Fatalf("%v, status %v", err, task.Status)
						}
						if err := c.Release(task); err != nil {
							t.Fatal(err)
						}
					}
				}
				for range 20 {
					batch()
				}
				if n := testing.AllocsPerRun(50, batch); n >= 1 {
					t.Errorf("%v allocations for %d commands", n, depth)
				}
				must(t, c.Logout())
				st := s.Stats().ISER
				total := st.Total()
				if total.Sends < 71*depth {
					t.Fatalf("only %d responses counted", total.Sends)
				}
				t.Logf("%d responses: %.3f posts, %.3f polls, %.3f doorbells each", total.Sends,
					float64(total.Posts)/float64(total.Sends), float64(total.Polls)/float64(total.Sends), float64(total.Doorbells)/float64(total.Sends))
			})
		}
	}
}

func TestIdentityOfALUN(t *testing.T) {
	s, _, _, tcp := system(t, func(c *Config) { c.Targets[0].LUNs[0].Serial = "MINE-1" })
	c, err := tcpclient.Open(tcp, tcpclient.Login{Target: testTarget, ISID: [6]byte{0x80, 4}})
	must(t, err)
	for i, u := range s.Units() {
		r, err := c.Do(&tcpclient.Command{LUN: tcpclient.LUN(i), CDB: []byte{0x12, 1, 0x80, 0, 255, 0}, In: 255})
		if err != nil || !strings.Contains(string(r.Data), u.Serial) {
			t.Errorf("LUN %d: unit serial number page %q, %v; want %q", i, r.Data, err, u.Serial)
		}
		if r, err = c.Do(&tcpclient.Command{LUN: tcpclient.LUN(i), CDB: []byte{0x12, 1, 0x83, 0, 255, 0}, In: 255}); err != nil {
			t.Fatal(err)
		}
		naa, err := parseNAA(u.NAA)
		must(t, err)
		if !bytes.Contains(r.Data, naa[:]) {
			t.Errorf("LUN %d: device identification %x lacks %s", i, r.Data, u.NAA)
		}
	}
	if u := s.Units()[0]; u.Serial != "MINE-1" {
		t.Errorf("serial %q, want MINE-1", u.Serial)
	}
	must(t, c.Logout())
}

// known-faults B139: what a medium fails is told, and not only to the initiator.
func TestB139_StoreFailuresAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	cfg := Config{RDMA: RDMAOff, Portals: []PortalConfig{{Address: "127.0.0.1:0"}},
		Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "file:" + path + ",size=1M"}}}}}
	must(t, cfg.Validate())
	told := make(chan error, 8)
	s, err := New(cfg, Options{HostID: "x", StoreFailed: func(err error) { told <- err }})
	must(t, err)
	defer func() { must(t, s.Shutdown(context.Background())) }()
	must(t, s.Listen())
	c, err := tcpclient.Open(s.Portals()[0].Addr.String(), tcpclient.Login{Target: testTarget, ISID: [6]byte{0x80, 1}})
	must(t, err)
	_, err = c.Do(&tcpclient.Command{CDB: testUnitReady})
	must(t, err)
	must(t, os.Truncate(path, 4096))
	if r, err := c.Do(&tcpclient.Command{CDB: tcpclient.Read10(64, 8), In: 4096}); err != nil || r.Status != 2 {
		t.Errorf("read beyond the end of a file that was cut: %v, %+v", err, r)
	}
	select {
	case err := <-told:
		if !strings.Contains(err.Error(), path) {
			t.Errorf("told %q, which does not name %s", err, path)
		}
	case <-time.After(5 * time.Second):
		t.Error("nobody was told")
	}
	must(t, c.Logout())
}

// Whatever is wrong at start-up is named, and what was opened is closed again.
func TestStartUpErrors(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken.img")
	must(t, os.WriteFile(taken, make([]byte, 1<<20), 0o600))
	for name, c := range map[string]struct {
		store, want string
	}{
		"missing file":      {"file:" + filepath.Join(dir, "nope.img"), "size="},
		"directory missing": {"file:" + filepath.Join(dir, "no", "such", "x.img") + ",size=1M", "no such file"},
		"a directory":       {"file:" + dir, dir},
	} {
		cfg := Config{RDMA: RDMAOff, Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "file:" + taken}, {Store: c.store}}}}}
		must(t, cfg.Validate())
		s, err := New(cfg, Options{HostID: "x"})
		if err == nil {
			_ = s.Shutdown(context.Background())
			t.Errorf("%s: no error", name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "LUN 1") {
			t.Errorf("%s: error %q; want the LUN and %q", name, err, c.want)
		}
		// The first file must be free again.
		cfg.Targets[0].LUNs = cfg.Targets[0].LUNs[:1]
		s, err = New(cfg, Options{HostID: "x"})
		if err != nil {
			t.Fatalf("%s: the store of LUN 0 was left open: %v", name, err)
		}
		must(t, s.Shutdown(context.Background()))
	}
}

func TestRDMAModes(t *testing.T) {
	cfg := Config{RDMA: RDMAVerbs, Targets: []TargetConfig{{Name: testTarget, LUNs: []LUNConfig{{Store: "null:1G"}}}}}
	must(t, cfg.Validate())
	none := func() (rdma.Provider, error) { return nil, fmt.Errorf("verbs: %w", rdma.ErrNoDevice) }
	if s, err := New(cfg, Options{HostID: "x", Provider: none}); err == nil {
		_ = s.Shutdown(context.Background())
		t.Error("rdma: verbs without a device is not refused")
	}
	cfg.RDMA = RDMAAuto
	cfg.Portals = []PortalConfig{{Address: "127.0.0.1:0"}}
	s, err := New(cfg, Options{HostID: "x", Provider: none})
	must(t, err)
	must(t, s.Listen())
	if !strings.Contains(s.NoRDMA(), "TCP only") || strings.Contains(s.NoRDMA(), "verbs:") || !s.Portals()[0].TCP || s.Portals()[0].ISER {
		t.Errorf("auto without a device: %q, %+v", s.NoRDMA(), s.Portals())
	}
	// The same port again is refused and named.
	again := Config{RDMA: RDMAOff, Portals: []PortalConfig{{Address: s.Portals()[0].Addr.String()}}, Targets: cfg.Targets}
	must(t, again.Validate())
	s2, err := New(again, Options{HostID: "x"})
	must(t, err)
	if err := s2.Listen(); err == nil || !strings.Contains(err.Error(), again.Portals[0].Address) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a taken port: %v", err)
	}
	must(t, s2.Shutdown(context.Background()))
	must(t, s.Shutdown(context.Background()))
	only := Config{RDMA: RDMAAuto, Portals: []PortalConfig{{Address: "127.0.0.1:0", Transports: []string{"iser"}}}, Targets: cfg.Targets}
	must(t, only.Validate())
	s3, err := New(only, Options{HostID: "x", Provider: none})
	must(t, err)
	if err := s3.Listen(); err == nil {
		t.Error("a portal for iSER alone opened without a device")
	}
	must(t, s3.Shutdown(context.Background()))
}
