package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// sample is a report of a real run, with names that would break a page that does not escape them.
func sample(t *testing.T) *Report {
	c := newRig(t, "rdmatest").connect(0, 2, 16)
	r := &Report{Tool: ToolName, Version: "v1", Command: []string{"iserbench", "run", "<script>&\"'"}, Machine: ThisMachine(), Link: c.Link, Seed: 3}
	r.Link.Disk.Vendor = "<b>A&B</b>"
	for _, rw := range []RW{RandRead, Write, RandRW} {
		for _, depth := range []int{1, 8} {
			for _, size := range []uint64{512, 4096, 65536} {
				r.Points = append(r.Points, drive(t, c, Load{RW: rw, ReadPercent: 50, Size: size, Depth: depth, Count: 120}))
			}
		}
	}
	return r
}

// parse holds a page against the rules of XML, which it keeps, and gives its text and how many elements of each kind it has.
func parse(t *testing.T, page []byte) (text string, elements map[string]int) {
	t.Helper()
	body, ok := bytes.CutPrefix(page, []byte("<!doctype html>"))
	if !ok {
		t.Fatalf("no document type: %.60s", page)
	}
	d := xml.NewDecoder(bytes.NewReader(body))
	elements = map[string]int{}
	var all strings.Builder
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String(), elements
		}
		if err != nil {
			t.Fatalf("the page does not parse: %v", err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			elements[tok.Name.Local]++
			for _, a := range tok.Attr {
				if n := a.Name.Local; n == "src" || n == "href" || n == "onload" {
					t.Errorf("<%s> has %s=%q: the page must need nothing else", tok.Name.Local, n, a.Value)
				}
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("<%s> has %s=%q", tok.Name.Local, a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			all.Write(tok)
		}
	}
}

// Every point is in the table, in the plots and in the files, and the page says what the figures are not.
func TestReports(t *testing.T) {
	r := sample(t)
	soft := *r
	soft.Link.Provider, soft.Link.Loopback = "softroce", true
	soft.Points = r.Points[:1]
	var page bytes.Buffer
	check(t, WriteHTML(&page, r, &soft))
	text, elements := parse(t, page.Bytes())
	if n := len(r.Points) + len(soft.Points); elements["tr"] != n+1 {
		t.Errorf("%d rows, want %d and the head", elements["tr"], n)
	}
	// IOPS, bandwidth, and four latencies of each point are marked; then there are the distributions.
	if n := 6 * (len(r.Points) + len(soft.Points)); elements["circle"] < n {
		t.Errorf("%d marks in the plots, want at least %d", elements["circle"], n)
	}
	if elements["script"] > 0 || elements["b"] > 0 && strings.Contains(page.String(), "<b>A&") {
		t.Error("names are not escaped")
	}
	for i := range r.Points {
		for _, want := range []string{FormatCount(r.Points[i].IOPS), FormatTime(float64(r.Points[i].Latency.P99)), r.Points[i].Label} {
			if !strings.Contains(text, want) {
				t.Errorf("the page lacks %q", want)
			}
		}
	}
	for _, want := range []string{"iSER over RoCEv2 in user space", "not the figures of a network or of RDMA hardware", "every byte was copied", r.Machine.Host, targetName,
		"FirstBurstLength", "randrw 50/50", "<script>&\"'", "<b>A&B</b>", "depth 8"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}

	var js bytes.Buffer
	check(t, r.WriteJSON(&js))
	again, err := ReadReport(&js)
	check(t, err)
	if len(again.Points) != len(r.Points) || again.Points[3].IOPS != r.Points[3].IOPS || again.Link.Target != targetName {
		t.Errorf("read back: %+v", again.Link)
	}
	h, err := hdrhistogram.Decode([]byte(again.Points[3].Latency.Histogram))
	check(t, err)
	if h.TotalCount() != 120 || h.ValueAtPercentile(99) != r.Points[3].Latency.P99 {
		t.Errorf("the histogram has %d values, p99 %d; want 120, %d", h.TotalCount(), h.ValueAtPercentile(99), r.Points[3].Latency.P99)
	}

	var table, text2 bytes.Buffer
	check(t, r.WriteCSV(&table))
	rows, err := csv.NewReader(&table).ReadAll()
	check(t, err)
	if len(rows) != len(r.Points)+1 || rows[1][3] != "512" || rows[1][8] != "120" {
		t.Errorf("CSV: %q", rows)
	}
	check(t, r.WriteTable(&text2))
	if n := strings.Count(text2.String(), "\n"); n != len(r.Points)+1 || !strings.Contains(text2.String(), "2×8") {
		t.Errorf("table:\n%s", text2.String())
	}
}

// A run without points, one with a failure, and one with a single point have pages too.
func TestOddReports(t *testing.T) {
	failed := &Report{Tool: ToolName, Error: "it broke", Points: []Result{{Label: "read", RW: Read, Size: 512, Depth: 1, Launched: 1, Failed: 1,
		Failures: []Failure{{What: "MEDIUM ERROR"}}, BadBlocks: 2, Mismatches: []Mismatch{{LBA: 77}}}}}
	one := &Report{Tool: ToolName, Points: []Result{{Label: "read", Size: 512, Depth: 1, IOPS: 3, Latency: &Latency{Count: 1, P50: 5, P99: 5, P999: 5, Max: 5, Mean: 5, Curve: []Quantile{{100, 5}}}}}}
	for want, r := range map[string]*Report{"Nothing was measured": {Tool: ToolName}, "MEDIUM ERROR": failed, "LBA 77": failed, "it broke": failed, "5 ns": one} {
		var page bytes.Buffer
		check(t, WriteHTML(&page, r))
		if text, _ := parse(t, page.Bytes()); !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
		check(t, r.WriteTable(io.Discard))
		check(t, r.WriteCSV(io.Discard))
	}
	if err := WriteHTML(io.Discard); err == nil {
		t.Error("a page of nothing")
	}
	for _, in := range []string{"", "{}", `{"tool":"other"}`, "[]"} {
		if r, err := ReadReport(strings.NewReader(in)); err == nil {
			t.Errorf("%q is read as %+v", in, r)
		}
	}
}

// Sizes in the x axis, or depths where there is one size.
func TestLines(t *testing.T) {
	lat := &Latency{}
	point := func(size uint64, depth int) Result {
		return Result{Label: "read", Size: size, Depth: depth, Latency: lat}
	}
	for name, c := range map[string]struct {
		points  []Result
		lines   int
		byDepth bool
	}{
		"sizes":  {[]Result{point(4096, 1), point(512, 1), point(1024, 1)}, 1, false},
		"depths": {[]Result{point(512, 8), point(512, 1), point(512, 4)}, 1, true},
		"both":   {[]Result{point(512, 8), point(4096, 8), point(512, 4), point(4096, 4)}, 2, false},
		"one":    {[]Result{point(512, 8)}, 1, false},
		"none":   {[]Result{{Label: "read"}}, 0, false},
	} {
		pl := sortOut([]*Report{{Points: c.points}})
		if len(pl.lines) != c.lines || pl.byDepth != c.byDepth {
			t.Errorf("%s: %d lines, by depth %v", name, len(pl.lines), pl.byDepth)
		}
		for _, l := range pl.lines {
			for i := 1; i < len(l.points); i++ {
				if pl.x(l.points[i-1]) >= pl.x(l.points[i]) {
					t.Errorf("%s: the points are not in order", name)
				}
			}
		}
	}
}

func TestAxis(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
	}{{nil, true}, {nil, false}, {[]float64{0}, true}, {[]float64{0}, false}, {[]float64{100}, true}, {[]float64{3, 99, 1001}, true}, {[]float64{3, 99, 1001}, false}} {
		a := axis{log: c.log}
		a.fit(c.values)
		if len(a.ticks) < 2 || len(a.ticks) > 14 {
			t.Errorf("%v: ticks %v", c.values, a.ticks)
		}
		for _, v := range append(c.values, a.ticks...) {
			if p := a.at(v); math.IsNaN(p) || p < -1e-9 || p > 1+1e-9 {
				t.Errorf("%v, log %v: %v lies at %v", c.values, c.log, v, p)
			}
		}
	}
}

func TestFormats(t *testing.T) {
	for ns, want := range map[float64]string{0: "-", 7: "7 ns", 1234: "1.23 µs", 99949: "99.9 µs", 999400: "999 µs", 999600: "1.00 ms", 2.5e9: "2.50 s"} {
		if got := FormatTime(ns); got != want {
			t.Errorf("%v: %q, want %q", ns, got, want)
		}
	}
	for x, want := range map[float64]string{0: "0.00", 12.34: "12.3", 123.6: "124", 1234567: "1,234,567"} {
		if got := FormatCount(x); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
	for v, want := range map[float64]string{1: "0", 10: "90", 1000: "99.9", 10000: "99.99"} {
		if got := nines(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
