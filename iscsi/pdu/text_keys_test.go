package pdu

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func keysOf(data string) (string, error) {
	var out []string
	err := ParseKeys([]byte(data), func(k, v []byte) error {
		out = append(out, string(k)+"="+string(v))
		return nil
	})
	return strings.Join(out, " "), err
}

func TestParseKeys(t *testing.T) {
	k63 := "K" + strings.Repeat("x", 62)
	for _, tt := range []struct {
		name, data, want string
		bad              bool
	}{
		{"nothing", "", "", false},
		{"two", "A=1\x00B=2\x00", "A=1 B=2", false},
		{"last without zero", "A=1\x00B=2", "A=1 B=2", false},
		{"padding", "A=1\x00\x00\x00\x00", "A=1", false},
		{"empty pair between", "A=1\x00\x00B=2\x00", "A=1 B=2", false},
		{"empty value", "A=\x00", "A=", false},
		{"equals in the value", "CHAP_C=0bAA==\x00", "CHAP_C=0bAA==", false},
		{"extension", "X-com.example.k=v\x00", "X-com.example.k=v", false},
		{"small letter", "iSCSIProtocolLevel=1\x00", "iSCSIProtocolLevel=1", false},
		{"longest key", k63 + "=v\x00", k63 + "=v", false},
		{"longest value", "A=" + strings.Repeat("v", MaxBigValue) + "\x00", "A=" + strings.Repeat("v", MaxBigValue), false},

		{"no equals", "A\x00", "", true},
		{"no equals at the end", "A=1\x00B", "A=1", true},
		{"no key", "=1\x00", "", true},
		{"key too long", k63 + "x=v\x00", "", true},
		{"value too long", "A=" + strings.Repeat("v", MaxBigValue+1) + "\x00", "", true},
		{"space in key", "A B=1\x00", "", true},
		{"space before key", " A=1\x00", "", true},
		{"digit first", "1A=1\x00", "", true},
		{"control character", "A\x01=1\x00", "", true},
		{"non-ASCII key", "\xc3\xa4=1\x00", "", true},
		{"TLS hello", "\x16\x03\x01\x02\x00\x01\x00", "", true},
		{"comma in key", "A,B=1\x00", "", true},
	} {
		got, err := keysOf(tt.data)
		if got != tt.want || errors.Is(err, ErrText) != tt.bad {
			t.Errorf("%s: %.80q, %v", tt.name, got, err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("%s: an error of %d bytes", tt.name, len(err.Error()))
		}
	}
}

func TestParseKeysEnds(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	if err := ParseKeys([]byte("A=1\x00B=2\x00"), func(_, _ []byte) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}

func TestAppendKey(t *testing.T) {
	b := AppendKey(AppendKey(nil, "A", "1"), "B", "")
	if string(b) != "A=1\x00B=\x00" {
		t.Errorf("%q", b)
	}
}

func TestParseNumber(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "1": 1, "262144": 262144, "0x40000": 262144, "0X4aB": 0x4ab, "16777215": 1<<24 - 1,
		"18446744073709551615": 1<<64 - 1, "0xffffffffffffffff": 1<<64 - 1, "007": 7} {
		if got, err := ParseNumber([]byte(s)); err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", " ", "1 ", " 1", "+1", "-1", "0x", "0X", "x10", "0x1g", "1_000", "0x1_0", "1e3", "1.0", "Yes", "?", "1~2",
		"18446744073709551616", "0x10000000000000000", "\x00", strings.Repeat("9", 5000)} {
		if got, err := ParseNumber([]byte(s)); !errors.Is(err, ErrText) {
			t.Errorf("%.40q: %d, %v", s, got, err)
		}
	}
}

func TestParseBool(t *testing.T) {
	for s, want := range map[string]bool{"Yes": true, "No": false} {
		if got, err := ParseBool([]byte(s)); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "yes", "YES", "no", "Y", "True", "1", "0", "Yes ", "Yes,No", "?"} {
		if _, err := ParseBool([]byte(s)); !errors.Is(err, ErrText) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestParseBinary(t *testing.T) {
	for s, want := range map[string]string{"0x00ff": "\x00\xff", "0X0A": "\n", "0xabc": "\x0a\xbc", "0bAQID": "\x01\x02\x03",
		"0bAQI=": "\x01\x02", "0bAQI": "\x01\x02", "0BAQ==": "\x01"} {
		if got, err := ParseBinary([]byte(s), 1024); err != nil || string(got) != want {
			t.Errorf("%q: % x, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "0", "0x", "0b", "ab", "1x00", "0y00", "0xgg", "0x 0", "0b!!", "0bA", "0bAQ=I", "0b\n", "123"} {
		if got, err := ParseBinary([]byte(s), 1024); !errors.Is(err, ErrText) {
			t.Errorf("%q: % x, %v", s, got, err)
		}
	}
	// known-faults B39: up to 1024 bytes, in either form.
	long := bytes.Repeat([]byte{0xa5}, 1024)
	if got, err := ParseBinary([]byte(FormatBinary(long)), 1024); err != nil || !bytes.Equal(got, long) {
		t.Errorf("1024 bytes: %v", err)
	}
	if _, err := ParseBinary([]byte(FormatBinary(append(long, 0))), 1024); err == nil {
		t.Error("1025 bytes of 1024 accepted")
	}
}

func TestEachValue(t *testing.T) {
	var got []string
	collect := func(v []byte) bool { got = append(got, string(v)); return string(v) != "stop" }
	EachValue([]byte("a,,b,stop,c"), collect)
	if s := strings.Join(got, "|"); s != "a||b|stop" {
		t.Errorf("%q", s)
	}
	got = nil
	EachValue(nil, collect)
	EachValue([]byte("None"), collect)
	if s := strings.Join(got, "|"); s != "|None" {
		t.Errorf("%q", s)
	}
}

func TestValidName(t *testing.T) {
	long := "iqn.2001-04.com.example:" + strings.Repeat("a", MaxNameLength-len("iqn.2001-04.com.example:"))
	for _, s := range []string{"iqn.2001-04.com.example", "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309", "iqn.1991-05.com.microsoft:host.domain",
		"iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test", "iqn.1998-01.com.vmware:esx_1", "iqn.2001-04.de.müller:platte", "eui.02004567a425678d",
		"naa.52004567ba64678d", "naa.62004567ba64678d0123456789abcdef", long} {
		if !ValidName(s) {
			t.Errorf("%q refused", s)
		}
	}
	for _, s := range []string{"", "disk", "iqn.", "iqn.2001", "iqn.2001-04", "iqn.2001-04.", "iqn.2001-13.com.example", "iqn.2001-00.com.example",
		"iqn.20a1-04.com.example", "iqn-2001-04.com.example", "iqn.2001-04com.example", "iqn.2001-04.com.example:", "iqn.2001-04.com.exa mple",
		"iqn.2001-04.com.example:a b", "iqn.2001-04.com.example:a\tb", "iqn.2001-04.com.example:a\x00", "iqn.2001-04.com.example:a/b",
		"iqn.2001-04.com.example:a,b", "iqn.2001-04.com.example:\xff", "IQN.2001-04.com.example", "iqn.2001-04.com.Example", long + "a",
		"eui.", "eui.02004567A425678D", "eui.02004567a425678", "eui.02004567a425678d0", "eui.02004567a425678g", "naa.5200", "naa.62004567ba64678d0123456789abcde",
		"eui.0x004567a425678d", "nqn.2014-08.org.nvmexpress:uuid"} {
		if ValidName(s) {
			t.Errorf("%q accepted", s)
		}
	}
	if NormalizeName("IQN.2001-04.com.Example:Ä") != "iqn.2001-04.com.example:ä" {
		t.Error("not lowered")
	}
}
