package pdu

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of key text (RFC 7143).
const (
	MaxKeyLength   = 63
	MaxValueLength = 255  // of a value that is not declared to be longer
	MaxNameLength  = 223  // of an iSCSI name
	MaxBigValue    = 8192 // of a large binary value in its text form
)

// ErrText is wrapped by every error of the text functions.
var ErrText = errors.New("pdu: malformed text")

// ParseKeys calls visit for each key=value pair of data, in order. Pairs end with a zero byte; the last may lack it. The
// slices alias data. An error of visit ends it and is returned as it is.
func ParseKeys(data []byte, visit func(key, value []byte) error) error {
	for len(data) > 0 {
		pair := data
		if i := bytes.IndexByte(data, 0); i >= 0 {
			pair, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		if len(pair) == 0 {
			continue // padding, or an empty pair that some initiators send
		}
		i := bytes.IndexByte(pair, '=')
		if i < 0 {
			return fmt.Errorf("%w: %q has no '='", ErrText, clip(pair))
		}
		key, value := pair[:i], pair[i+1:]
		if !validKey(key) {
			return fmt.Errorf("%w: %q is not a key name", ErrText, clip(key))
		}
		if len(value) > MaxBigValue {
			return fmt.Errorf("%w: the value of %s has %d bytes", ErrText, key, len(value))
		}
		if err := visit(key, value); err != nil {
			return err
		}
	}
	return nil
}

// clip keeps hostile input out of messages at length.
func clip(b []byte) []byte {
	if len(b) > 64 {
		return b[:64]
	}
	return b
}

// validKey follows the standard-label: a letter, then letters, digits and . - + @ _ (X- and Z-type extension keys
// included). The RFC wants a capital letter first and itself has iSCSIProtocolLevel and iSERHelloRequired.
func validKey(k []byte) bool {
	if len(k) == 0 || len(k) > MaxKeyLength || (k[0]|0x20) < 'a' || (k[0]|0x20) > 'z' {
		return false
	}
	for _, c := range k {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '-', c == '+', c == '@', c == '_', c == '#', c == '/':
		default:
			return false
		}
	}
	return true
}

// AppendKey appends key=value and the zero byte.
func AppendKey(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	dst = append(dst, '=')
	dst = append(dst, value...)
	return append(dst, 0)
}

// ParseNumber reads a numerical value: decimal, or hexadecimal after 0x, up to 64 bits.
func ParseNumber(v []byte) (uint64, error) {
	s := string(v)
	base := 10
	if len(s) > 2 && (s[:2] == "0x" || s[:2] == "0X") {
		s, base = s[2:], 16
	}
	if s == "" || strings.ContainsAny(s, "+-_") {
		return 0, fmt.Errorf("%w: %q is not a number", ErrText, clip(v))
	}
	n, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q is not a number", ErrText, clip(v))
	}
	return n, nil
}

// ParseBool reads Yes or No.
func ParseBool(v []byte) (bool, error) {
	switch string(v) {
	case "Yes":
		return true, nil
	case "No":
		return false, nil
	}
	return false, fmt.Errorf("%w: %q is neither Yes nor No", ErrText, clip(v))
}

// ParseBinary reads a large binary value, 0x… or 0b… (base64), of at most limit bytes.
func ParseBinary(v []byte, limit int) ([]byte, error) {
	bad := func() ([]byte, error) { return nil, fmt.Errorf("%w: not a binary value", ErrText) }
	if len(v) < 3 || v[0] != '0' {
		return bad()
	}
	digits := string(v[2:])
	var out []byte
	var err error
	switch v[1] {
	case 'x', 'X':
		if len(digits)%2 != 0 {
			digits = "0" + digits
		}
		out, err = hex.DecodeString(digits)
	case 'b', 'B':
		if strings.ContainsAny(digits, "\r\n") {
			return bad() // which the decoder would skip
		}
		if out, err = base64.StdEncoding.DecodeString(digits); err != nil {
			out, err = base64.RawStdEncoding.DecodeString(digits)
		}
	default:
		return bad()
	}
	if err != nil {
		return bad()
	}
	if len(out) > limit {
		return nil, fmt.Errorf("%w: a binary value of %d bytes, more than %d", ErrText, len(out), limit)
	}
	return out, nil
}

// FormatBinary writes a large binary value in hexadecimal.
func FormatBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// EachValue calls visit for each member of a list value until it returns false.
func EachValue(v []byte, visit func(member []byte) bool) {
	for {
		i := bytes.IndexByte(v, ',')
		if i < 0 {
			visit(v)
			return
		}
		if !visit(v[:i]) {
			return
		}
		v = v[i+1:]
	}
}
