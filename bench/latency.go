package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the longest latency that is told from longer ones.
const longest = int64(5 * time.Minute)

// newHistogram is one of nanoseconds, exact to three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(100, longest, 3) }

// record adds a latency without allocating.
func record(h *hdrhistogram.Histogram, ns int64) { _ = h.RecordValue(min(max(ns, 0), longest)) }

// Latency is a distribution in nanoseconds.
type Latency struct {
	Count int64   `json:"count"`
	Min   int64   `json:"min_ns"`
	Mean  float64 `json:"mean_ns"`
	P50   int64   `json:"p50_ns"`
	P90   int64   `json:"p90_ns"`
	P99   int64   `json:"p99_ns"`
	P999  int64   `json:"p999_ns"`
	P9999 int64   `json:"p9999_ns"`
	Max   int64   `json:"max_ns"`
	// Curve is the latency at rising percentiles, up to the last that the count can tell.
	Curve []Quantile `json:"curve"`
	// Histogram is the whole distribution in the HdrHistogram V2 compressed encoding (base64).
	Histogram string `json:"hdrhistogram,omitempty"`
}

// Quantile is a point of a distribution: so many percent took Value nanoseconds or less.
type Quantile struct {
	Percent float64 `json:"percent"`
	Value   int64   `json:"ns"`
}

// curve are the percentiles that are kept, closer and closer to 100.
var curve = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97.5, 98, 99, 99.5, 99.75, 99.9, 99.95, 99.975, 99.99, 99.995, 99.999, 99.9999}

// latency sums a histogram up; nil if it is empty.
func latency(h *hdrhistogram.Histogram) *Latency {
	n := h.TotalCount()
	if n == 0 {
		return nil
	}
	l := &Latency{Count: n, Min: h.Min(), Mean: h.Mean(), Max: h.Max(), P50: h.ValueAtPercentile(50), P90: h.ValueAtPercentile(90),
		P99: h.ValueAtPercentile(99), P999: h.ValueAtPercentile(99.9), P9999: h.ValueAtPercentile(99.99)}
	for _, p := range curve {
		if float64(n)*(100-p)/100 < 1 { // fewer than one request lies beyond
			break
		}
		l.Curve = append(l.Curve, Quantile{p, h.ValueAtPercentile(p)})
	}
	l.Curve = append(l.Curve, Quantile{100, l.Max})
	if b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err == nil {
		l.Histogram = string(b)
	}
	return l
}
