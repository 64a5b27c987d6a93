//go:build linux && cgo && !nordma

package iser

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"iserd/rdma/verbs"
)

// TestMain starts the test anew with the folder of drop-in libraries that LAB_VERBS names in LD_LIBRARY_PATH, which the
// dynamic linker reads before main.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LAB_VERBS"); dir != "" {
		path := os.Getenv("LD_LIBRARY_PATH")
		if !strings.Contains(path, dir) {
			exe, err := filepath.EvalSymlinks("/proc/self/exe")
			if err == nil {
				os.Setenv("LD_LIBRARY_PATH", strings.TrimSuffix(dir+":"+path, ":"))
				err = syscall.Exec(exe, os.Args, os.Environ())
			}
			panic(err)
		}
	}
	runTests(m)
}

// labFabric is the machine's verbs, where LAB_VERBS asks for them; nil else.
func labFabric(t testing.TB) *fabric {
	if os.Getenv("LAB_VERBS") == "" {
		return nil
	}
	p, err := verbs.New(verbs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &fabric{target: p, peer: p, addr: netip.MustParseAddr("127.0.0.1")}
}
