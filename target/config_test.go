package target

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]uint64{
		"512": 512, "64MiB": 64 << 20, "1G": 1 << 30, "1g": 1 << 30, "1.5K": 1536, "2T": 2 << 40, "1GB": 1e9, " 8M ": 8 << 20, "1E": 1 << 60, "1EB": 1e18,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "0M", "-1", "x", "1Q", "G", "1 2", "99999999999999999999", "1e9x", "16E", "0x10", "1_000"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d; want an error", in, got)
		}
	}
}

func TestParseStore(t *testing.T) {
	for in, want := range map[string]StoreSpec{
		"null:1T":                  {Kind: "null", Size: 1 << 40},
		"ram:64MiB,block=4096":     {Kind: "ram", Size: 64 << 20, BlockSize: 4096},
		"file:/a/b.img":            {Kind: "file", Path: "/a/b.img"},
		"file:/a,b.img,size=1G,ro": {Kind: "file", Path: "/a,b.img", Size: 1 << 30, ReadOnly: true},
		"file:c:d,serial=X1,naa=6" + strings.Repeat("0", 31): {Kind: "file", Path: "c:d", Serial: "X1", NAA: "6" + strings.Repeat("0", 31)},
	} {
		if got, err := ParseStore(in); err != nil || got != want {
			t.Errorf("ParseStore(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "ram", "ram:", "ram:0", "ram:x", "ram:1M,size=2M", "ram:1M,foo=1", "file:", "file:,size=1M", "disk:/x",
		"null:1M,block=513", "file:/a,size=", "file:/a,size=1M,size=2M", "file:/a,ro=maybe", "null:-1"} {
		if got, err := ParseStore(in); err == nil {
			t.Errorf("ParseStore(%q) = %+v; want an error", in, got)
		}
	}
}

func TestParsePortal(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:3260", "192.0.2.1:3261": "192.0.2.1:3261", "[::]:3260": "[::]:3260", "::1": "[::1]:3260", "[::1]": "[::1]:3260",
		":3262": "0.0.0.0:3262", "0.0.0.0:0": "0.0.0.0:0", "[fe80::1%eth0]:3260": "[fe80::1%eth0]:3260", "[::ffff:192.0.2.1]:3260": "192.0.2.1:3260",
	} {
		if got, err := ParsePortal(in); err != nil || got.String() != want {
			t.Errorf("ParsePortal(%q) = %v, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "host:3260", "192.0.2.1:", "192.0.2.1:70000", "[::1]:x", "::1:3260:", "3260"} {
		if got, err := ParsePortal(in); err == nil {
			t.Errorf("ParsePortal(%q) = %v; want an error", in, got)
		}
	}
}

const good = `
portals:
  - address: 127.0.0.1:3260
    transports: [tcp]
targets:
  - name: iqn.2026-12.lab.iserd:a
    luns:
      - store: ram:64MiB
      - lun: 7
        store: file:/tmp/x.img,size=1M
        serial: S1
`

func TestConfigEffectiveRoundTrip(t *testing.T) {
	cfg, err := ParseConfig([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	eff, derived := cfg.Effective("0123456789abcdef0123456789abcdef")
	if derived != 2 {
		t.Errorf("derived %d identities, want 2", derived)
	}
	text, err := eff.YAML()
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseConfig(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if err := back.Validate(); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	// Another host must not change what was written down (known-faults B63).
	again, derived := back.Effective("ffffffffffffffffffffffffffffffff")
	if derived != 0 {
		t.Errorf("derived %d identities from a complete configuration", derived)
	}
	opts := cmpopts.IgnoreUnexported(PortalConfig{}, LUNConfig{})
	if d := cmp.Diff(eff, again, opts); d != "" {
		t.Error(d)
	}
	if eff.Targets[0].LUNs[1].Serial != "S1" || eff.Targets[0].LUNs[0].NAA == eff.Targets[0].LUNs[1].NAA {
		t.Errorf("identities: %+v", eff.Targets[0].LUNs)
	}
	other, _ := cfg.Effective("fedcba9876543210fedcba9876543210")
	if other.Targets[0].LUNs[0].NAA == eff.Targets[0].LUNs[0].NAA {
		t.Error("two hosts derive the same NAA")
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct{ edit, with, want string }{
		"unknown key":       {"targets:", "tragets:", "tragets"},
		"bad portal":        {"127.0.0.1:3260", "localhost:3260", "not numeric"},
		"bad transport":     {"[tcp]", "[udp]", "unknown transport"},
		"bad name":          {"iqn.2026-12.lab.iserd:a", "disk", "not an iSCSI name"},
		"lun number":        {"lun: 7", "lun: 16384", "16383"},
		"lun twice":         {"lun: 7", "lun: 0", "twice"},
		"bad store":         {"ram:64MiB", "tape:/dev/st0", "unknown kind"},
		"bad naa":           {"serial: S1", "naa: 5000", "32 hexadecimal"},
		"naa not 6":         {"serial: S1", "naa: " + strings.Repeat("3", 32), "begins with 6"},
		"serial with space": {"serial: S1", "serial: 'S 1'", "printable"},
		"fraction":          {"lun: 7", "lun: 1.5", "whole number"},
		"lun too large":     {"lun: 7", "lun: 65537", "65537"},
		"lun negative":      {"lun: 7", "lun: -1", "-1"},
		"lun a word":        {"lun: 7", "lun: seven", "[9:14]"},
		"depth a fraction":  {"targets:", "queue_depth: 1.5\ntargets:", "whole number"},
		"two documents":     {"targets:", "rdma: off\n---\ntargets:", "document"},
		"under one block":   {"ram:64MiB", "ram:511", "less than one block of 512"},
		"under 4096":        {"ram:64MiB", "ram:1K,block=4096", "less than one block of 4096"},
		"file under one":    {"size=1M", "size=1", "less than one block"},
		"same file":         {"ram:64MiB", "file:/tmp/../tmp/x.img", "destroy"},
		"serial octal":      {"serial: S1", "serial: 00012345", `put it in quotes`},
		"serial hex":        {"serial: S1", "serial: 0x1F", "put it in quotes"},
		"serial fraction":   {"serial: S1", "serial: 1.50", "put it in quotes"},
		"serial infinite":   {"serial: S1", "serial: .inf", "put it in quotes"},
		"no luns":           {"    luns:\n", "    alias: x\n", ""},
	} {
		text := strings.Replace(good, c.edit, c.with, 1)
		if text == good {
			t.Fatalf("%s: nothing replaced", name)
		}
		cfg, err := ParseConfig([]byte(text))
		if err == nil {
			err = cfg.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v; want one with %q", name, err, c.want)
		}
	}
	for _, text := range []string{"", "[]", "targets: []", "targets: 3", "\x00", "a: [", "targets:\n - name: iqn.2026-12.lab.iserd:a\n   luns: []\n"} {
		cfg, err := ParseConfig([]byte(text))
		if err == nil {
			err = cfg.Validate()
		}
		if err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// A text that looks like a number is taken as it is written, or refused; it never becomes another text.
func TestTextThatLooksLikeANumber(t *testing.T) {
	for in, want := range map[string]string{
		"12345": "12345", `"00012345"`: "00012345", "'0x1F'": "0x1F", "1e10": "1e10", "true": "true", "12345678901234567890123": "12345678901234567890123",
		"00848b2bf6de774a01e6": "00848b2bf6de774a01e6", "|-\n          A1": "A1", "&a A2": "A2",
	} {
		cfg, err := ParseConfig([]byte(strings.Replace(good, "serial: S1", "serial: "+in, 1)))
		if err != nil || cfg.Targets[0].LUNs[1].Serial != want {
			t.Errorf("%s: %v, %+v; want %s", in, err, cfg.Targets, want)
		}
	}
}

func TestConfigOneFileTwice(t *testing.T) {
	two := strings.Replace(good, "ram:64MiB", "file:/tmp/x.img", 1)
	cfg, err := ParseConfig([]byte(two))
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "destroy") {
		t.Errorf("error %v; want a refusal of one file under two LUNs", err)
	}
}

// A file without an end must not take all memory.
func TestConfigEndless(t *testing.T) {
	if _, err := LoadConfig("/dev/zero"); err == nil || !strings.Contains(err.Error(), "not a configuration file") {
		t.Errorf("error %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("targets: []"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		cfg, err := ParseConfig(data)
		if err != nil || cfg.Validate() != nil {
			return
		}
		eff, _ := cfg.Effective("0123456789abcdef0123456789abcdef")
		text, err := eff.YAML()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseConfig(text)
		if err != nil {
			t.Fatalf("does not read back: %v\n%s", err, text)
		}
		if err := back.Validate(); err != nil {
			t.Fatalf("does not validate: %v\n%s", err, text)
		}
	})
}
