package bench

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// figure is a chart as the page shows it.
type figure struct {
	Title, Note string
	SVG         template.HTML
	Legend      []legend
}

type legend struct {
	Name  string
	Class string
}

func (c *chart) figure() figure {
	f := figure{Title: c.title, Note: c.note, SVG: c.draw()}
	for _, s := range c.series {
		class := fmt.Sprintf("s%d", s.style%styles)
		if s.dash > 0 {
			class += fmt.Sprintf(" d%d", s.dash)
		}
		f.Legend = append(f.Legend, legend{s.name, class})
	}
	return f
}

// line is the points of the same load that differ in what is on the x axis.
type line struct {
	name   string
	points []*Result
}

// plotted are the points of reports, sorted into lines.
type plotted struct {
	lines   []line
	byDepth bool // the x axis is the depth, not the size
}

func sortOut(reports []*Report) plotted {
	sizes, depths, links, labels := map[uint64]bool{}, map[int]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range reports {
		for _, p := range r.Points {
			if p.Latency != nil {
				sizes[p.Size], depths[p.Depth], links[r.Link.Short()], labels[p.Label] = true, true, true, true
			}
		}
	}
	pl := plotted{byDepth: len(sizes) == 1 && len(depths) > 1}
	at := map[string]int{}
	for _, r := range reports {
		for i := range r.Points {
			p := &r.Points[i]
			if p.Latency == nil {
				continue
			}
			name := p.Label
			if len(links) > 1 {
				name = r.Link.Short() + ": " + name
			}
			switch {
			case pl.byDepth && len(sizes) > 1:
				name += ", " + FormatSize(p.Size)
			case !pl.byDepth && len(depths) > 1:
				name += ", depth " + strconv.Itoa(p.Depth)
			}
			k, ok := at[name]
			if !ok {
				k = len(pl.lines)
				at[name] = k
				pl.lines = append(pl.lines, line{name: name})
			}
			pl.lines[k].points = append(pl.lines[k].points, p)
		}
	}
	for _, l := range pl.lines {
		slices.SortStableFunc(l.points, func(a, b *Result) int { return int(math.Copysign(1, pl.x(a)-pl.x(b))) })
	}
	return pl
}

func (pl *plotted) x(p *Result) float64 {
	if pl.byDepth {
		return float64(p.Depth)
	}
	return float64(p.Size)
}

// xAxis is the same in all charts over size or depth.
func (pl *plotted) xAxis() axis {
	a := axis{name: "block size", log: true, format: func(v float64) string { return FormatSize(uint64(v)) }}
	if pl.byDepth {
		a.name, a.format = "depth", func(v float64) string { return strconv.Itoa(int(v)) }
	}
	for _, l := range pl.lines {
		for _, p := range l.points {
			if x := pl.x(p); !slices.Contains(a.ticks, x) {
				a.ticks = append(a.ticks, x)
			}
		}
	}
	slices.Sort(a.ticks)
	return a
}

func (pl *plotted) over() string {
	if pl.byDepth {
		return "depth"
	}
	return "block size"
}

// overX draws one value of every line.
func (pl *plotted) overX(title, note string, y axis, value func(*Result) float64, show func(*Result) string) figure {
	c := chart{title: title + " over " + pl.over(), note: note, x: pl.xAxis(), y: y}
	for i, l := range pl.lines {
		s := series{name: l.name, style: i, dash: i / styles}
		for _, p := range l.points {
			s.points = append(s.points, point{pl.x(p), value(p), l.name + ", " + c.x.format(pl.x(p)) + ": " + show(p)})
		}
		c.series = append(c.series, s)
	}
	return c.figure()
}

// figures are the charts of a report.
func (pl *plotted) figures() (out []figure) {
	out = append(out,
		pl.overX("Requests per second", "logarithmic scale", axis{log: true, format: shortCount}, func(p *Result) float64 { return p.IOPS },
			func(p *Result) string { return FormatCount(p.IOPS) + " IOPS" }),
		pl.overX("Bandwidth", "MB/s, 10⁶ bytes per second", axis{format: shortCount}, func(p *Result) float64 { return p.MBPerSec },
			func(p *Result) string { return FormatRate(p.MBPerSec) + " MB/s" }))
	for _, l := range pl.lines {
		out = append(out, pl.percentiles(l))
	}
	return out
}

// percentiles draws how latency grows along one line.
func (pl *plotted) percentiles(l line) figure {
	c := chart{title: "Latency over " + pl.over(), note: l.name, x: pl.xAxis(), y: axis{log: true, format: timeTick}}
	for i, q := range []struct {
		name string
		of   func(*Latency) int64
	}{
		{"p50", func(l *Latency) int64 { return l.P50 }},
		{"p99", func(l *Latency) int64 { return l.P99 }},
		{"p99.9", func(l *Latency) int64 { return l.P999 }},
		{"max", func(l *Latency) int64 { return l.Max }},
	} {
		s := series{name: q.name, style: i}
		for _, p := range l.points {
			v := float64(q.of(p.Latency))
			s.points = append(s.points, point{pl.x(p), v, q.name + ", " + c.x.format(pl.x(p)) + ": " + FormatTime(v)})
		}
		c.series = append(c.series, s)
	}
	return c.figure()
}

// distributions draws, for each line, the latency of each of its points over the percentile, in nines.
func (pl *plotted) distributions() (out []figure) {
	for _, l := range pl.lines {
		c := chart{title: "Distribution of latency", note: l.name + ": so many percent of the requests took no longer", y: axis{log: true, format: timeTick},
			x: axis{name: "percentile", log: true, ticks: []float64{1, 2, 10, 100, 1000, 10000}, format: nines}}
		for i, p := range l.points {
			x := pl.xAxis()
			s := series{name: x.format(pl.x(p)), style: i, dash: i / styles}
			for _, q := range p.Latency.Curve {
				if q.Percent >= 100 {
					continue
				}
				s.points = append(s.points, point{100 / (100 - q.Percent), float64(q.Value), fmt.Sprintf("%s: %g %% within %s", s.name, q.Percent, FormatTime(float64(q.Value)))})
			}
			c.series = append(c.series, s)
		}
		out = append(out, c.figure())
	}
	return out
}

// timeTick prints a tick of nanoseconds, a power of ten.
func timeTick(ns float64) string {
	n, unit, _ := strings.Cut(FormatTime(ns), " ")
	if strings.Contains(n, ".") {
		n = strings.TrimRight(strings.TrimRight(n, "0"), ".")
	}
	return n + " " + unit
}

// nines labels a percentile p that lies at 100/(100-p).
func nines(v float64) string {
	if v <= 1 {
		return "0"
	}
	return strconv.FormatFloat(100-100/v, 'f', -1, 64)
}

// shortCount prints a tick.
func shortCount(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
