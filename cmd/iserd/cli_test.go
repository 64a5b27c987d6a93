package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets a test run this binary as the daemon itself.
func TestMain(m *testing.M) {
	if os.Getenv("ISERD_TEST_MAIN") == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func run(args ...string) (stdout string, err error) {
	var out bytes.Buffer
	a := app()
	a.Writer, a.ErrWriter = &out, &out
	err = a.Run(append([]string{"iserd"}, args...))
	return out.String(), err
}

// A wrong command line is told in one line that names the word and what to do; no page of help comes with it.
func TestUsageErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no.yaml")
	for line, want := range map[string]string{
		"serv":                               `unknown command "serv" (did you mean serve?); see iserd --help`,
		"--lun ram:1M":                       "there is no flag --lun",
		"serve --lum ram:1M":                 "there is no flag --lum (did you mean --lun?); see iserd serve --help",
		"serve -z":                           "there is no flag -z",
		"serve --lun":                        "see iserd serve --help",
		"serve":                              "nothing to serve",
		"serve ram:1M":                       `unexpected argument "ram:1M"`,
		"serve --lun ram:1M --log-level x":   "want debug",
		"serve --lun ram:1M --log-format x":  "want console or json",
		"config --lun ram:1M --rdma on":      "want auto, verbs, softroce or off",
		"config --lun ram:1M --config x":     "--lun cannot stand beside --config",
		"config --config=":                   "names no file",
		"config --config " + missing:         "prints one to start from",
		"config --lun ram:1M --target disk":  "not an iSCSI name",
		"config --lun ram:1M --listen host1": "portal",
		"devices x":                          "unexpected argument",
		"devices --jsn":                      "did you mean --json?",
	} {
		out, err := run(strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("iserd %s: error %v, output %q; want one line with %q", line, err, out, want)
		}
	}
}

// What iserd config prints is read back by it, and says the same.
func TestConfigPrintsWhatItReads(t *testing.T) {
	dir := t.TempDir()
	first, err := run("config", "--state-dir", dir, "--lun", "ram:1M", "--lun", "file:"+dir+"/a b,c.img,size=1G,ro")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := run("config", "--state-dir", dir, "--config", path)
	if err != nil || first != second {
		t.Errorf("%v\n%s\nbecame\n%s", err, first, second)
	}
}

func TestHelp(t *testing.T) {
	for _, line := range []string{"--help", "help", "", "serve --help", "help serve", "config --help", "devices --help", "version --help"} {
		if out, err := run(strings.Fields(line)...); err != nil || !strings.Contains(out, "USAGE:") {
			t.Errorf("iserd %s: %v, %q", line, err, out)
		}
	}
}

// timeout(1) sends SIGTERM to the process and then to its group: that is one wish, not an impatient second one.
func TestTwoSignalsAtOnceAreOne(t *testing.T) {
	cmd := exec.Command(os.Args[0], "serve", "--quiet", "--listen", "127.0.0.1:0", "--rdma", "off", "--lun", "null:1G", "--state-dir", t.TempDir())
	cmd.Env = append(os.Environ(), "ISERD_TEST_MAIN=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() }).Stop()
	var text strings.Builder
	for s := bufio.NewScanner(stderr); s.Scan(); {
		text.WriteString(s.Text() + "\n")
		switch line := s.Text(); {
		case strings.Contains(line, "ready"):
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case strings.Contains(line, "stopping"):
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(text.String(), "stopped") {
		t.Errorf("%v\n%s", err, text.String())
	}
}
