package target

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// parseNAA reads 32 hexadecimal digits of a 16-byte NAA name.
func parseNAA(s string) ([16]byte, error) {
	var naa [16]byte
	t := strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(s, "naa."), "0x"))
	raw, err := hex.DecodeString(t)
	if err != nil || len(raw) != 16 {
		return naa, fmt.Errorf("naa %q: want 32 hexadecimal digits", s)
	}
	if raw[0]>>4 != 6 {
		return naa, fmt.Errorf("naa %q: a 16-byte NAA name begins with 6 (IEEE Registered Extended)", s)
	}
	copy(naa[:], raw)
	return naa, nil
}

// HostID is what makes derived identities differ between hosts and stay the same over restarts: the machine id, or,
// where there is none, a random one kept in stateDir. The machine id itself is never shown; only keyed digests of it are.
func HostID(machineID, stateDir string) (string, error) {
	if b, err := os.ReadFile(machineID); err == nil {
		if id := strings.TrimSpace(string(b)); len(id) == 32 && strings.Trim(id, "0") != "" {
			return id, nil
		}
	}
	path := filepath.Join(stateDir, "host-id")
	if b, err := os.ReadFile(path); err == nil {
		if id := strings.TrimSpace(string(b)); len(id) == 32 {
			return id, nil
		}
		return "", fmt.Errorf("%s does not hold 32 hexadecimal digits: restore it, or remove it to get new identities", path)
	}
	id, err := newHostID()
	if err != nil {
		return "", err
	}
	if err := writeHostID(path, id); err != nil {
		return "", fmt.Errorf("this host has no machine id (%s), and one of our own cannot be kept: %w (run systemd-machine-id-setup, or make %s writable)", machineID, err, stateDir)
	}
	return id, nil
}

// derive gives 32 hexadecimal digits for a host and the parts of a name.
func derive(hostID string, parts ...string) string {
	m := hmac.New(sha256.New, []byte("iserd identity\x00"+hostID))
	for _, p := range parts {
		fmt.Fprintf(m, "%d:%s,", len(p), p)
	}
	return hex.EncodeToString(m.Sum(nil)[:16])
}

func newHostID() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

// writeHostID keeps id so that a crash leaves the whole file or none: temporary file, fsync, link in place.
func writeHostID(path, id string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".host-id-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(id + "\n"); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
