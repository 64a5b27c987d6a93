package target

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHostID(t *testing.T) {
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine-id")
	state := filepath.Join(dir, "state")
	first, err := HostID(machine, state)
	if err != nil || len(first) != 32 {
		t.Fatalf("HostID = %q, %v", first, err)
	}
	if again, err := HostID(machine, state); err != nil || again != first {
		t.Errorf("second call: %q, %v; want %q", again, err, first)
	}
	if err := os.WriteFile(filepath.Join(state, "host-id"), []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	if id, err := HostID(machine, state); err == nil {
		t.Errorf("a torn host-id gave %q, want an error", id)
	}
	want := strings.Repeat("ab", 16)
	if err := os.WriteFile(machine, []byte(want+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if id, err := HostID(machine, state); err != nil || id != want {
		t.Errorf("with a machine id: %q, %v", id, err)
	}
	if err := os.WriteFile(machine, []byte("uninitialized\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if id, err := HostID(machine, filepath.Join(dir, "other")); err != nil || id == "uninitialized" || len(id) != 32 {
		t.Errorf("with an uninitialized machine id: %q, %v", id, err)
	}
	if _, err := HostID(machine, filepath.Join(machine, "under-a-file")); err == nil || !strings.Contains(err.Error(), "systemd-machine-id-setup") {
		t.Errorf("unwritable state: %v; want an error with the remedy", err)
	}
}

func TestDeriveIsInjective(t *testing.T) {
	if derive("h", "a", "bc") == derive("h", "ab", "c") {
		t.Error("parts run together")
	}
}
