package bench

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

var sizeForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?\s*[kKmMgGtTpP]?$`)

// ParseSize reads a size in bytes: a number with an optional unit. K, M, G, T (and KiB …) are powers of 1024, KB, MB, … of
// 1000, as in the daemon's configuration.
func ParseSize(s string) (uint64, error) {
	t := strings.TrimSpace(s)
	if n, err := strconv.ParseUint(t, 10, 63); err == nil {
		return n, nil
	}
	if sizeForm.MatchString(t) {
		t += "iB"
	}
	n, err := humanize.ParseBytes(t)
	if err != nil || n >= 1<<63 {
		return 0, fmt.Errorf("size %q: want a number of bytes with an optional unit, like 4096, 4KiB or 1M", s)
	}
	return n, nil
}

// FormatSize prints a size for people, in powers of 1024 where it is a multiple of one.
func FormatSize(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatUint(n, 10) + " " + units[i]
}
