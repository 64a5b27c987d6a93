package bench

import (
	"context"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	const iqn = "iqn.2026-12.lab.iserd:demo"
	for in, want := range map[string]Target{
		"iser://192.0.2.1/" + iqn + "/0":            {true, "192.0.2.1", 3260, iqn, 0},
		"iscsi://192.0.2.1:3261/" + iqn + "/7":      {false, "192.0.2.1", 3261, iqn, 7},
		"iscsi://192.0.2.1/" + iqn + "/255?iser":    {true, "192.0.2.1", 3260, iqn, 255},
		"iser://[2001:db8::1]/" + iqn + "/1":        {true, "2001:db8::1", 3260, iqn, 1},
		"iser://[2001:db8::1]:99/" + iqn + "/1":     {true, "2001:db8::1", 99, iqn, 1},
		"iser://[fe80::1%25eth0]/" + iqn + "/1":     {true, "fe80::1%eth0", 3260, iqn, 1},
		"iser://storage.example/" + iqn:             {true, "storage.example", 3260, iqn, 0},
		"iser://storage.example":                    {true, "storage.example", 3260, "", 0},
		"iser://storage.example:3260/":              {true, "storage.example", 3260, "", 0},
		"iscsi://h/naa.52004567BA64678D/0":          {false, "h", 3260, "naa.52004567BA64678D", 0},
		"iscsi://h/iqn.2026-12.lab.iserd%3Ademo/3/": {false, "h", 3260, iqn, 3},
	} {
		got, err := ParseURL(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
			continue
		}
		if got.Name == "" || strings.Contains(got.Host, "%") {
			continue
		}
		if again, err := ParseURL(got.String()); err != nil || again != got {
			t.Errorf("%s printed as %s reads as %+v, %v", in, got, again, err)
		}
	}
	for in, want := range map[string]string{
		"":                            "no scheme",
		"192.0.2.1":                   "no scheme",
		"http://192.0.2.1/":           `scheme "http"`,
		"iser://":                     "no host",
		"iser:///" + iqn + "/0":       "no host",
		"iser://2001:db8::1/" + iqn:   "",
		"iser://h:0/" + iqn + "/0":    `port "0"`,
		"iser://h:65536/" + iqn:       `port "65536"`,
		"iser://h:x/" + iqn:           "port",
		"iser://h/disk/0":             `"disk" is not an iSCSI name`,
		"iser://h/" + iqn + "/256":    `LUN "256", want 0 to 255`,
		"iser://h/" + iqn + "/-1":     `LUN "-1"`,
		"iser://h/" + iqn + "/a":      `LUN "a"`,
		"iser://h/" + iqn + "/0/1":    `LUN "0/1"`,
		"iser://user%p@h/" + iqn:      "",
		"iser://u:p@h/" + iqn + "/0":  "CHAP is not supported",
		"iser://h/" + iqn + "/0?x=1":  `unknown option "x=1"`,
		"iser://h/" + iqn + "/0#frag": `"frag" after #`,
	} {
		if got, err := ParseURL(in); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "iser://HOST") {
			t.Errorf("%q: %+v, %v; want an error with %q and the form of a URL", in, got, err, want)
		}
	}
}

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{"iser://127.0.0.9": "127.0.0.9:3260", "iser://[::1]:7": "[::1]:7", "iser://[::ffff:127.0.0.1]": "127.0.0.1:3260"} {
		u, err := ParseURL(in)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := u.Address(context.Background()); err != nil || a.String() != want {
			t.Errorf("%s: %v, %v; want %s", in, a, err, want)
		}
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "512": 512, "4K": 4096, "4k": 4096, "4KiB": 4096, "4 KiB": 4096, "4KB": 4000, "1.5M": 3 << 19, "2T": 2 << 40} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "K", "-1", "4X", "4Kib4", "99999999999999999999"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q gave %d", in, got)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 512: "512 B", 4096: "4 KiB", 6144: "6 KiB", 1 << 20: "1 MiB", 1<<30 + 1: "1073741825 B"} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
