package target

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

var sizeForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpPeE]?$`)

// ParseSize reads a size in bytes: a number with an optional unit. K, M, G, T, P, E (and KiB … EiB) are powers of 1024, as
// storage tools count; KB … EB are powers of 1000. The result is not zero.
func ParseSize(s string) (uint64, error) {
	t := strings.TrimSpace(s)
	if n, err := strconv.ParseUint(t, 10, 64); err == nil {
		if n == 0 {
			return 0, fmt.Errorf("size %q is zero", s)
		}
		return n, nil
	}
	if sizeForm.MatchString(t) {
		t += "iB"
	}
	n, err := humanize.ParseBytes(t)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a number of bytes with an optional unit, like 512M, 64MiB or 1G", s)
	}
	if n == 0 {
		return 0, fmt.Errorf("size %q is zero", s)
	}
	return n, nil
}

// FormatSize prints a size for people, in powers of 1024.
func FormatSize(n uint64) string { return humanize.IBytes(n) }
