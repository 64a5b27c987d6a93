package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"iserd/bench"
	"iserd/rdma"
	"iserd/rdma/softroce"
	"iserd/target"
)

// TestMain lets a test run this binary as the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("ISERBENCH_TEST_MAIN") == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func run(args ...string) (stdout string, err error) {
	var out bytes.Buffer
	a := app()
	a.Writer, a.ErrWriter = &out, &out
	err = a.RunContext(context.Background(), flagsFirst(append([]string{"iserbench"}, args...)))
	return out.String(), err
}

const url = "iser://192.0.2.1/iqn.2026-12.lab.iserd:demo/3"

// A wrong command line is told in one line, before anything is connected to, and is an error of usage.
func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"rum":                                      `unknown command "rum"`,
		"run":                                      "want one URL, like iser://",
		"run a b":                                  "want one URL",
		"run http://h":                             "iser://HOST[:PORT]/IQN/LUN",
		"run URL --rv read":                        "there is no flag --rv (did you mean --rw?); see iserbench run --help",
		"run URL --rw scan":                        "want read, write, randread, randwrite or randrw",
		"run URL --rw read,":                       `"" is no kind of load`,
		"run URL --size 4Q":                        `--size: size "4Q"`,
		"run URL --size 0":                         "--size 0",
		"run URL --size":                           "flag needs an argument: -size",
		"run URL --depth 0":                        `--depth "0": want 1 to 2048`,
		"run URL --depth 1,x":                      `--depth "x"`,
		"run URL --time 0s":                        "--time 0s",
		"run URL --time 5":                         "--help",
		"run URL --count 0":                        "want at least 1",
		"run URL --count 5 --time 1s":              "--count and --time",
		"run URL --rate 0":                         "--rate 0",
		"run URL --sessions 0":                     "--sessions 0: want 1 to 1024",
		"run URL --read-percent 101":               "want 0 to 100",
		"run URL --offset x":                       "--offset",
		"run URL --region 0":                       "--region 0",
		"run URL --timeout -1s":                    "--timeout",
		"run URL --local nowhere":                  `--local "nowhere" is no address`,
		"run URL --rdma on":                        "want auto, verbs or softroce",
		"run URL --rw randwrite":                   "--rw randwrite overwrites data on LUN 3 of " + url[:len("iser://192.0.2.1")],
		"run URL --rw randrw":                      "add --destroy",
		"run URL --rw read,write":                  "--rw write overwrites",
		"run URL --verify":                         "--verify overwrites data on LUN 3",
		"run URL --verify --destroy --time 1s":     "bound it by --region",
		"run URL --json /nonexistent/x":            "--json: open /nonexistent/x",
		"report":                                   "give --html FILE",
		"report --html /dev/null":                  "no report given",
		"--rw read":                                "there is no flag",
		"run --rw read --quiet --initiator-name x": "want one URL",
	} {
		out, err := run(strings.Fields(strings.ReplaceAll(line, "URL", url))...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("iserbench %s: error %v, output %q; want one line with %q", line, err, out, want)
		}
		if !errors.As(err, new(usage)) {
			t.Errorf("iserbench %s: %v is no error of usage", line, err)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, line := range []string{"--help", "", "run --help", "report --help"} {
		if out, err := run(strings.Fields(line)...); err != nil || !strings.Contains(out, "USAGE:") {
			t.Errorf("iserbench %s: %v, %q", line, err, out)
		}
	}
	if out, _ := run("run", "--help"); !strings.Contains(out, "iserbench run iser://") || !strings.Contains(out, "--destroy") {
		t.Errorf("no example in %q", out)
	}
}

func TestFlagsFirst(t *testing.T) {
	for in, want := range map[string]string{
		"iserbench run U --rw read -q --size=4K V": "iserbench run --rw read -q --size=4K U V",
		"iserbench run -- U --rw read":             "iserbench run -- U --rw read",
		"iserbench run U --verify --depth 3":       "iserbench run --verify --depth 3 U",
		"iserbench run U --rw":                     "iserbench run --rw",
		"iserbench other U --rw read":              "iserbench other U --rw read",
		"iserbench":                                "iserbench",
	} {
		if got := strings.Join(flagsFirst(strings.Fields(in)), " "); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

// A target as the daemon serves it, over RoCEv2 in user space and TCP.
func serve(t *testing.T) string {
	t.Helper()
	var cfg target.Config
	cfg.RDMA = "softroce"
	cfg.Targets = []target.TargetConfig{{Name: "iqn.2026-12.lab.iserd:test", LUNs: []target.LUNConfig{{Store: "ram:8MiB"}, {Store: "ram:8MiB,ro"}}}}
	// An address that no other program is likely to use: RoCEv2 has one port, and it is one program's.
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(2 + os.Getpid()>>8&0x7f), byte(os.Getpid()), 1}), 0)
	cfg.Portals = []target.PortalConfig{{Address: addr.String()}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	sys, err := target.New(cfg, target.Options{HostID: "test", Revision: "0",
		SoftProvider: func(func(string)) (rdma.Provider, error) {
			return softroce.New(softroce.Options{Addrs: []netip.Addr{addr.Addr()}}), nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := sys.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := sys.Listen(); err != nil {
		t.Fatal(err)
	}
	for _, p := range sys.Portals() {
		if p.ISER && p.TCP {
			return p.Addr.String()
		}
	}
	t.Fatalf("%s: no portal with both transports in %+v", sys.NoRDMA(), sys.Portals())
	return ""
}

// schemes are the transports that the program is run over.
var schemes = []string{"iser://", "iscsi://"}

// The whole program against a whole target: a sweep with all reports, a verified pass, a write to a LUN that takes none.
func TestWhole(t *testing.T) {
	addr := serve(t)
	for _, scheme := range schemes {
		t.Run(scheme[:4], func(t *testing.T) {
			dir := t.TempDir()
			u := scheme + addr
			out, err := run("run", u, "--rdma", "softroce", "--rw", "read,randrw", "--destroy", "--size", "4K,64K", "--depth", "1,16", "--count", "50", "--sessions", "2",
				"--json", dir+"/a.json", "--csv", dir+"/a.csv", "--html", dir+"/a.html")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"iqn.2026-12.lab.iserd:test", "64 KiB", "2×16", "randrw 70/30", "p99.9"} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			b, err := os.ReadFile(dir + "/a.json")
			if err != nil {
				t.Fatal(err)
			}
			var r bench.Report
			if err := json.Unmarshal(b, &r); err != nil || len(r.Points) != 8 || r.Machine.Cores == 0 || r.Error != "" || !slices.Contains(r.Command, os.Args[0]) {
				t.Errorf("%v, %d points, %+v", err, len(r.Points), r.Machine)
			}
			for _, name := range []string{"a.csv", "a.html"} {
				if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() < 500 {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := run("report", dir+"/a.json", dir+"/a.json", "--html", dir+"/b.html"); err != nil {
				t.Error(err)
			}

			out, err = run("run", u, "--rdma", "softroce", "--verify", "--destroy", "--size", "64K", "--region", "4M", "--quiet")
			if err != nil || !strings.Contains(out, "verified: 4 MiB read back, every byte as written") || strings.Contains(out, "LUN 0 of") {
				t.Errorf("%v\n%s", err, out)
			}

			out, err = run("run", u+"/iqn.2026-12.lab.iserd:test/1", "--rdma", "softroce", "--rw", "write", "--destroy", "--count", "10")
			if err == nil || errors.As(err, new(usage)) || !strings.Contains(err.Error(), "DATA PROTECT") || !strings.Contains(out, "FAILED") {
				t.Errorf("writing to a LUN that takes no writes: %v\n%s", err, out)
			}
		})
	}
}

// The exit statuses, and SIGINT: what was measured until then is printed, and the session is logged out.
func TestProcess(t *testing.T) {
	addr := serve(t)
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "ISERBENCH_TEST_MAIN=1")
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	for want, line := range map[int]string{0: "run iser://" + addr + " --rdma softroce --count 5", 1: "run iser://" + addr + "/iqn.2026-12.lab.iserd:test/9 --rdma softroce", 2: "run --rw x"} {
		cmd, out := start(strings.Fields(line)...)
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("iserbench %s: exit status %d, want %d\n%s", line, got, want, out)
		}
	}
	cmd, out := start("run", "iser://"+addr, "--rdma", "softroce", "--time", "1h", "--warmup", "0s")
	cmd.Stdout = nil
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	var text strings.Builder
	for s := bufio.NewScanner(stdout); s.Scan(); {
		text.WriteString(s.Text() + "\n")
		if strings.HasPrefix(s.Text(), "LUN 0 of") { // it is logged in
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(text.String(), "interrupted") {
		t.Errorf("%v\n%s\n%s", err, text.String(), out)
	}
}
