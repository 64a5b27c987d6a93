package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Report is all of a run: what ran, on what, and what was measured. It is what --json writes.
type Report struct {
	Tool    string    `json:"tool"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Command []string  `json:"command"`
	Machine Machine   `json:"machine"`
	Link    Link      `json:"link"`
	Seed    uint64    `json:"seed"`
	Points  []Result  `json:"points"`
	// Counters are what the RDMA provider counted in all of the run, if it counts.
	Counters Counters `json:"rdma_counters,omitempty"`
	// Error is why the run ended before its end; Interrupted is whether somebody ended it.
	Error       string `json:"error,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// Counters are a provider's, by name.
type Counters map[string]uint64

// Repairs says in a line what the network cost, or nothing where it cost nothing.
func (c Counters) Repairs() string {
	var parts []string
	for _, x := range []struct{ name, text string }{{"timeouts", "times nothing came in time"}, {"sequence_naks", "gaps seen by the target"}, {"gaps", "gaps seen here"},
		{"bad_icrc", "damaged packets"}, {"duplicates", "packets that came twice"}, {"send_errors", "packets that the kernel did not take"}} {
		if n := c[x.name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, x.text))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("repaired by softroce (%d packets sent, %d received): %s", c["sent"], c["received"], strings.Join(parts, ", "))
}

// Link is what carried the load, and to where.
type Link struct {
	URL       string `json:"url"`
	Target    string `json:"target"`
	LUN       int    `json:"lun"`
	Disk      Disk   `json:"disk"`
	Transport string `json:"transport"` // "iSER" or "TCP"
	// Provider is "verbs" or "softroce" over iSER; Device is its device, Driver what kind of device that is.
	Provider  string `json:"provider,omitempty"`
	Device    string `json:"device,omitempty"`
	Driver    string `json:"driver,omitempty"`
	Local     string `json:"local"`
	Remote    string `json:"remote"`
	Loopback  bool   `json:"loopback"` // both ends are this machine
	Initiator string `json:"initiator"`
	Sessions  int    `json:"sessions"`
	// Window is how many commands the target takes from one session at a time, as it said after login.
	Window int `json:"window"`
	// Negotiated is what login agreed on, in the words of the keys.
	Negotiated []Key `json:"negotiated"`
}

// Key is a negotiated key and its value.
type Key struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Carrier names the transport for people: what moves the bytes, and whether that is hardware.
func (l *Link) Carrier() string {
	switch {
	case l.Transport != "iSER":
		return "iSCSI over TCP"
	case l.Provider == "softroce":
		return "iSER over RoCEv2 in user space (softroce: no RDMA hardware)"
	case l.Driver != "":
		return "iSER over " + l.Provider + ", " + l.Driver + " device " + l.Device
	}
	return "iSER over " + l.Provider
}

// Short is Carrier in a word or two.
func (l *Link) Short() string {
	switch {
	case l.Transport != "iSER":
		return "TCP"
	case l.Provider == "softroce":
		return "iSER, user-space RoCE"
	}
	return "iSER, " + l.Device
}

// WriteJSON writes the report whole.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// ReadReport reads what WriteJSON wrote.
func ReadReport(rd io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(rd).Decode(r); err != nil {
		return nil, err
	}
	if r.Tool != ToolName {
		return nil, fmt.Errorf("no report of %s", ToolName)
	}
	return r, nil
}

// ToolName marks reports as ours.
const ToolName = "iserbench"

// columns of the CSV file. Latencies are in microseconds.
var columns = []string{"transport", "provider", "rw", "size", "depth", "sessions", "rate", "seconds", "requests", "iops", "read_iops", "write_iops", "mb_per_s",
	"mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us", "cpu_us_per_io", "failed", "lost", "bad_blocks"}

// WriteCSV writes one line per point.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write(columns); err != nil {
		return err
	}
	num := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
	us := func(ns int64) string { return num(float64(ns) / 1e3) }
	u := func(x uint64) string { return strconv.FormatUint(x, 10) }
	for _, p := range r.Points {
		l := p.Latency
		if l == nil {
			l = &Latency{}
		}
		err := c.Write([]string{r.Link.Transport, r.Link.Provider, p.Label, u(p.Size), strconv.Itoa(p.Depth), strconv.Itoa(p.Sessions), num(p.Rate), num(p.Seconds),
			u(p.Measured), num(p.IOPS), num(p.ReadIOPS), num(p.WriteIOPS), num(p.MBPerSec), num(l.Mean / 1e3), us(l.P50), us(l.P90), us(l.P99), us(l.P999), us(l.P9999), us(l.Max),
			num(p.CPU), u(p.Failed), u(p.Lost), u(p.BadBlocks)})
		if err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// WriteTable prints the points for people.
func (r *Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "load\tsize\tdepth\tIOPS\tMB/s\tmean\tp50\tp99\tp99.9\tmax\tCPU/IO\terrors\t")
	for i := range r.Points {
		p := &r.Points[i]
		l := p.Latency
		if l == nil {
			l = &Latency{}
		}
		depth := strconv.Itoa(p.Depth)
		if p.Sessions > 1 {
			depth = fmt.Sprintf("%d×%d", p.Sessions, p.Depth)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f µs\t%s\t\n", p.Label, FormatSize(p.Size), depth, FormatCount(p.IOPS), FormatRate(p.MBPerSec),
			FormatTime(l.Mean), FormatTime(float64(l.P50)), FormatTime(float64(l.P99)), FormatTime(float64(l.P999)), FormatTime(float64(l.Max)), p.CPU, p.Errors())
	}
	return tw.Flush()
}

// Errors says what went wrong, in a word.
func (r *Result) Errors() string {
	switch n := r.Failed + r.Lost; {
	case n > 0 && r.BadBlocks > 0:
		return fmt.Sprintf("%d, %d bad blocks", n, r.BadBlocks)
	case r.BadBlocks > 0:
		return fmt.Sprintf("%d bad blocks", r.BadBlocks)
	default:
		return strconv.FormatUint(n, 10)
	}
}

// FormatTime prints nanoseconds in a unit that suits, with three digits.
func FormatTime(ns float64) string {
	switch {
	case ns == 0:
		return "-"
	case ns < 1e3:
		return fmt.Sprintf("%.0f ns", ns)
	case ns < 999.5e3:
		return digits(ns/1e3) + " µs"
	case ns < 999.5e6:
		return digits(ns/1e6) + " ms"
	}
	return digits(ns/1e9) + " s"
}

// FormatCount prints a large number with groups of three digits.
func FormatCount(x float64) string {
	if x < 100 {
		return digits(x)
	}
	return humanize.Comma(int64(x + 0.5))
}

// FormatRate prints MB/s.
func FormatRate(x float64) string { return FormatCount(x) }

func digits(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}
