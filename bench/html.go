package bench

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

//go:embed report.html
var reportPage string

// page is what the template sees.
type page struct {
	Title, Machine string
	Caveats        []string
	Heads          []head
	Figures        []figure
	Spread         []figure
	Rows           []row
	Runs           []runInfo
	Made           string
}

type head struct{ Value, Unit, What string }

type row struct {
	Link string
	*Result
	L *Latency
}

type runInfo struct {
	Name  string
	Facts []Key
	Error string
}

// WriteHTML writes one page with everything that the reports say. It needs nothing beside itself: no script, no font, no
// other file.
func WriteHTML(w io.Writer, reports ...*Report) error {
	if len(reports) == 0 {
		return errors.New("no report to show")
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"size": FormatSize, "count": FormatCount, "rate": FormatRate,
		"comma": func(n uint64) string { return humanize.Comma(int64(n)) },
		"ns":    func(n int64) string { return FormatTime(float64(n)) },
		"nsf":   FormatTime,
		"us":    func(x float64) string { return FormatTime(x * 1e3) },
	}).Parse(reportPage)
	if err != nil {
		return err
	}
	return t.Execute(w, newPage(reports))
}

func newPage(reports []*Report) page {
	first := reports[0]
	var carriers []string
	for _, r := range reports {
		if c := r.Link.Carrier(); len(carriers) == 0 || carriers[len(carriers)-1] != c {
			carriers = append(carriers, c)
		}
	}
	p := page{Title: strings.Join(carriers, ", and "), Machine: machineLine(first.Machine), Made: first.Started.Format(time.RFC1123)}
	pl := sortOut(reports)
	if len(pl.lines) > 0 {
		p.Figures, p.Spread = pl.figures(), pl.distributions()
	}
	p.Heads, p.Caveats = heads(reports), caveats(reports)
	for _, r := range reports {
		info := runInfo{Name: r.Link.Carrier(), Facts: facts(r), Error: r.Error}
		p.Runs = append(p.Runs, info)
		for i := range r.Points {
			q := &r.Points[i]
			l := q.Latency
			if l == nil {
				l = &Latency{}
			}
			p.Rows = append(p.Rows, row{r.Link.Short(), q, l})
		}
	}
	return p
}

func machineLine(m Machine) string {
	cpu := m.CPU
	if cpu == "" {
		cpu = "unknown processor"
	}
	kind := "cores"
	if m.Virtual {
		kind = "virtual cores"
	}
	return fmt.Sprintf("%s: %d %s of %s, %s of memory, %s", m.Host, m.Cores, kind, cpu, humanize.IBytes(m.Memory), m.Kernel)
}

// caveats say what the figures are not.
func caveats(reports []*Report) (out []string) {
	var loop, soft, bad bool
	for _, r := range reports {
		loop = loop || r.Link.Loopback
		soft = soft || r.Link.Provider == "softroce"
		for i := range r.Points {
			bad = bad || !r.Points[i].OK()
		}
	}
	if loop {
		out = append(out, "Target and load generator ran on this one machine and shared its processor. These are not the figures of a network or of RDMA hardware.")
	}
	if soft {
		out = append(out, "RDMA was done in user space: every byte was copied and summed by the processor, which an adapter does by itself.")
	}
	if reports[0].Machine.Virtual {
		out = append(out, "It is a virtual machine: what else its host did is in these figures.")
	}
	if bad {
		out = append(out, "Some requests failed or some blocks did not hold what was written: see the table.")
	}
	return out
}

// heads are the best figures over all.
func heads(reports []*Report) (out []head) {
	var iops, rate, lat *Result
	var verified uint64
	verifies, bad := false, uint64(0)
	for _, r := range reports {
		for i := range r.Points {
			p := &r.Points[i]
			if p.Latency == nil {
				continue
			}
			if iops == nil || p.IOPS > iops.IOPS {
				iops = p
			}
			if rate == nil || p.MBPerSec > rate.MBPerSec {
				rate = p
			}
			if lat == nil || p.Latency.P50 < lat.Latency.P50 {
				lat = p
			}
			if p.Verify {
				verifies = true
				bad += p.BadBlocks
				if strings.HasSuffix(p.Label, "(verified)") {
					verified += p.Bytes
				}
			}
		}
	}
	if iops == nil {
		return nil
	}
	what := func(p *Result) string { return fmt.Sprintf("%s, %s, depth %d", p.Label, FormatSize(p.Size), p.Depth) }
	out = []head{{FormatCount(iops.IOPS), "IOPS", what(iops)}, {FormatRate(rate.MBPerSec), "MB/s", what(rate)}, {FormatTime(float64(lat.Latency.P50)), "median latency", what(lat)}}
	if verifies {
		word := "every byte as written"
		if bad > 0 {
			word = FormatCount(float64(bad)) + " blocks differ"
		}
		out = append(out, head{humanize.IBytes(verified), "read back", word})
	}
	return out
}

// facts are what ran, in the order of interest.
func facts(r *Report) (out []Key) {
	add := func(name, value string) {
		if value != "" {
			out = append(out, Key{name, value})
		}
	}
	l := &r.Link
	add("Target", l.Target+", LUN "+fmt.Sprint(l.LUN))
	add("Disk", fmt.Sprintf("%s %s, %s in blocks of %d bytes", l.Disk.Vendor, l.Disk.Product, humanize.IBytes(l.Disk.Bytes()), l.Disk.BlockSize))
	add("Transport", l.Carrier())
	add("Device", strings.TrimSpace(l.Device+" "+parens(l.Driver)))
	add("From, to", l.Local+" → "+l.Remote)
	add("Initiator", fmt.Sprintf("%s, %d session(s), command window %d", l.Initiator, l.Sessions, l.Window))
	for _, k := range l.Negotiated {
		add(k.Name, k.Value)
	}
	add("Seed", fmt.Sprint(r.Seed))
	add("Command", strings.Join(r.Command, " "))
	add("Version", r.Tool+" "+r.Version+", "+r.Machine.Go)
	return out
}

func parens(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}
