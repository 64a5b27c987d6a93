package pdu

import (
	"strings"
	"unicode/utf8"
)

// ValidName says that s is an iSCSI name in its normalised form: iqn., eui. or naa., in lower case, 223 bytes at most.
func ValidName(s string) bool {
	if len(s) > MaxNameLength || !utf8.ValidString(s) || s != NormalizeName(s) {
		return false
	}
	switch {
	case strings.HasPrefix(s, "iqn."):
		return validIQN(s[4:])
	case strings.HasPrefix(s, "eui."):
		return hexDigits(s[4:], 16)
	case strings.HasPrefix(s, "naa."):
		return hexDigits(s[4:], 16) || hexDigits(s[4:], 32)
	}
	return false
}

// NormalizeName puts a name into the form in which names are compared: lower case (RFC 7143 prescribes a stringprep
// profile; for ASCII that is what it does). Hexadecimal names are lowered too.
func NormalizeName(s string) string { return strings.ToLower(s) }

// validIQN checks YYYY-MM.REVERSED.DOMAIN[:TEXT].
func validIQN(s string) bool {
	if len(s) < 9 || s[4] != '-' || s[7] != '.' {
		return false
	}
	for _, i := range []int{0, 1, 2, 3, 5, 6} {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	if m := s[5:7]; m < "01" || m > "12" {
		return false
	}
	domain, text, hasText := strings.Cut(s[8:], ":")
	if domain == "" || hasText && text == "" {
		return false
	}
	for _, r := range domain {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r > 0x7f) {
			return false
		}
	}
	for _, r := range text {
		// The profile forbids control characters, spaces and most ASCII punctuation; : - . separate. Underscore is
		// forbidden too, but real initiators have it.
		if r <= ' ' || r == 0x7f || r < 0x80 && !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune(":-._", r)) {
			return false
		}
	}
	return true
}

func hexDigits(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}
