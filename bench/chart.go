package bench

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// chart is a line chart as an SVG drawing. Colours come from the page's style sheet (classes s0, s1, …), so that one
// drawing serves light and dark.
type chart struct {
	title string
	// note stands under the title.
	note   string
	x, y   axis
	series []series
}

// series is one line. style is its colour, dash its pattern: 0 is a full line.
type series struct {
	name        string
	style, dash int
	points      []point
}

// point is a mark; label is shown when it is pointed at.
type point struct {
	x, y  float64
	label string
}

// axis is a scale. ticks are where it is labelled; with none they are chosen.
type axis struct {
	name   string
	log    bool
	ticks  []float64
	format func(float64) string
	lo, hi float64
}

const (
	chartW, chartH = 560, 300
	plotL, plotR   = 64, 18
	plotT, plotB   = 12, 46
	styles         = 6 // colours in the style sheet
)

// fit sets the range from the data.
func (a *axis) fit(values []float64) {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if a.log && v <= 0 {
			continue
		}
		lo, hi = min(lo, v), max(hi, v)
	}
	if lo > hi {
		lo, hi = 1, 10
	}
	switch {
	case len(a.ticks) > 0:
		lo, hi = min(lo, a.ticks[0]), max(hi, a.ticks[len(a.ticks)-1])
	case a.log:
		lo, hi = pow10(math.Floor(math.Log10(lo))), pow10(math.Ceil(math.Log10(hi)))
		if lo == hi {
			hi *= 10
		}
		for v := lo; v <= hi*1.001; v *= 10 {
			a.ticks = append(a.ticks, v)
		}
	default:
		lo = 0
		step := niceStep(hi / 5)
		hi = max(1, math.Ceil(hi/step*1.02)) * step
		for v := 0.0; v <= hi*1.001; v += step {
			a.ticks = append(a.ticks, v)
		}
	}
	a.lo, a.hi = lo, hi
}

func pow10(x float64) float64 { return math.Pow(10, x) }

// niceStep is the next of 1, 2, 5 times a power of ten.
func niceStep(x float64) float64 {
	if x <= 0 {
		return 1
	}
	p := pow10(math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*p >= x {
			return m * p
		}
	}
	return 10 * p
}

// at is where a value lies, 0 to 1.
func (a *axis) at(v float64) float64 {
	if a.lo == a.hi {
		return 0.5
	}
	if a.log {
		return math.Log(max(v, a.lo)/a.lo) / math.Log(a.hi/a.lo)
	}
	return (v - a.lo) / (a.hi - a.lo)
}

// draw makes the SVG. Everything that comes from outside is escaped.
func (c *chart) draw() template.HTML {
	var xs, ys []float64
	for _, s := range c.series {
		for _, p := range s.points {
			xs, ys = append(xs, p.x), append(ys, p.y)
		}
	}
	c.x.fit(xs)
	c.y.fit(ys)
	var b strings.Builder
	esc := template.HTMLEscapeString
	px := func(v float64) float64 { return plotL + 10 + c.x.at(v)*(chartW-plotL-plotR-20) }
	py := func(v float64) float64 { return chartH - plotB - c.y.at(v)*(chartH-plotT-plotB) }
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartW, chartH, esc(c.title))
	for _, v := range c.y.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotL, chartW-plotR, py(v), py(v))
		fmt.Fprintf(&b, `<text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`, plotL-8, py(v)+4, esc(c.y.format(v)))
	}
	every := (len(c.x.ticks) + 8) / 9
	for i, v := range c.x.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, px(v), px(v), chartH-plotB, chartH-plotB+4)
		if i%every == 0 {
			fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%d" text-anchor="middle">%s</text>`, px(v), chartH-plotB+18, esc(c.x.format(v)))
		}
	}
	fmt.Fprintf(&b, `<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>`, plotL, chartW-plotR, chartH-plotB, chartH-plotB)
	fmt.Fprintf(&b, `<text class="name" x="%d" y="%d" text-anchor="end">%s</text>`, chartW-plotR, chartH-8, esc(c.x.name))
	for _, s := range c.series {
		class := fmt.Sprintf("s%d", s.style%styles)
		if s.dash > 0 {
			class += fmt.Sprintf(" d%d", s.dash)
		}
		var path strings.Builder
		for i, p := range s.points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], px(p.x), py(p.y))
		}
		fmt.Fprintf(&b, `<path class="line %s" d="%s"/>`, class, path.String())
		for _, p := range s.points {
			fmt.Fprintf(&b, `<circle class="dot %s" cx="%.1f" cy="%.1f" r="3.5"><title>%s</title></circle>`, class, px(p.x), py(p.y), esc(p.label))
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) //nolint:gosec // built above, escaped
}
