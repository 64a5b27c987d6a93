package main

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"iserd/bench"
)

// maxDepth is more than any target's command window, and few enough for the tasks of a session.
const maxDepth = 2048

func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "rw", Value: "randread", Usage: "`LOAD`: read, write, randread, randwrite or randrw; several with commas"},
		&cli.IntFlag{Name: "read-percent", Value: 70, Usage: "`PERCENT` of reads in randrw"},
		&cli.StringFlag{Name: "size", Aliases: []string{"s"}, Value: "4KiB", Usage: "`SIZE` of a request; several with commas are measured one after the other: 4K,64K,1M"},
		&cli.StringFlag{Name: "depth", Aliases: []string{"d"}, Value: "32", Usage: "`NUMBER` of requests that each session keeps under way; several with commas"},
		&cli.DurationFlag{Name: "time", Aliases: []string{"t"}, Value: 5 * time.Second, Usage: "measure each point for `TIME`"},
		&cli.DurationFlag{Name: "warmup", Value: 300 * time.Millisecond, Usage: "drive each point for `TIME` before measuring it"},
		&cli.Uint64Flag{Name: "count", Aliases: []string{"n"}, Usage: "do `NUMBER` requests per point, however long it takes, in place of --time"},
		&cli.Float64Flag{Name: "rate", Usage: "start `IOPS` requests per second in all, whether the target keeps up or not (open loop); latency then counts from when a request was due"},
		&cli.IntFlag{Name: "sessions", Value: 1, Usage: "log in `NUMBER` times, each with its own connection and thread"},
		&cli.BoolFlag{Name: "verify", Usage: "write the whole region with a pattern, read all of it back and compare; --rw rand… does it in random order"},
		&cli.StringFlag{Name: "offset", Value: "0", Usage: "leave the first `SIZE` of the LUN alone"},
		&cli.StringFlag{Name: "region", Usage: "use `SIZE` of the LUN (default: up to its end)"},
		&cli.BoolFlag{Name: "destroy", Usage: "overwrite data on the LUN; whatever writes needs this"},
		&cli.StringFlag{Name: "rdma", Value: "auto", Usage: "`PROVIDER` of RDMA for iser:// URLs: verbs (an RDMA device), softroce (RoCEv2 in user space, needs no device) or auto (verbs where a device reaches the target)"},
		&cli.StringFlag{Name: "local", Usage: "connect from `ADDRESS`"},
		&cli.StringFlag{Name: "initiator-name", Usage: "log in as `IQN` (default: one made from the host's name)"},
		&cli.Uint64Flag{Name: "seed", Usage: "`NUMBER` that random order and patterns follow from (default: another each time; reports have it)"},
		&cli.BoolFlag{Name: "keep-going", Usage: "go on after a request has failed (default: the first failure ends the run)"},
		&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "give up when nothing is answered for `TIME`"},
		&cli.StringFlag{Name: "json", Usage: "write everything to `FILE`: machine, command line, parameters, histograms"},
		&cli.StringFlag{Name: "csv", Usage: "write the table to `FILE`"},
		&cli.StringFlag{Name: "html", Usage: "write a page with plots to `FILE`"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the table alone"},
	}
}

// plan is a command line that makes sense.
type plan struct {
	options bench.Options
	loads   []bench.Load
	seed    uint64
}

// newPlan reads the command line. Its errors are errors of usage.
func newPlan(c *cli.Context) (p plan, err error) {
	defer func() {
		if err != nil {
			err = usage{err}
		}
	}()
	if c.NArg() != 1 {
		return p, usagef("want one URL, like iser://192.0.2.1/iqn.2026-12.lab.iserd:host/0, not %d; see iserbench run --help", c.NArg())
	}
	o := &p.options
	if o.Target, err = bench.ParseURL(c.Args().First()); err != nil {
		return p, err
	}
	if o.RDMA, err = bench.ParseRDMA(c.String("rdma")); err != nil {
		return p, usagef("--rdma: %w", err)
	}
	if s := c.String("local"); s != "" {
		if o.Local, err = netip.ParseAddr(s); err != nil {
			return p, usagef("--local %q is no address", s)
		}
	}
	if o.Sessions = c.Int("sessions"); o.Sessions < 1 || o.Sessions > 1024 {
		return p, usagef("--sessions %d: want 1 to 1024", o.Sessions)
	}
	o.Initiator = c.String("initiator-name")
	p.seed = c.Uint64("seed")
	if !c.IsSet("seed") {
		p.seed = rand.Uint64() >> 11 // so that JSON's numbers hold it
	}
	base, err := baseLoad(c)
	if err != nil {
		return p, err
	}
	base.Seed = p.seed
	if p.loads, err = sweep(c, base); err != nil {
		return p, err
	}
	for i := range p.loads {
		l := &p.loads[i]
		if writes := l.Verify == bench.VerifyWrite || l.Verify == bench.VerifyOff && l.RW.Writes(); writes && !c.Bool("destroy") {
			what := "--rw " + string(l.RW)
			if l.Verify != bench.VerifyOff {
				what = "--verify"
			}
			return p, usagef("%s overwrites data on LUN %d of %s: add --destroy if nothing there is needed", what, o.Target.LUN, o.Target)
		}
		need := l.Depth
		if l.Verify == bench.VerifyOff && l.RW == bench.RandRW {
			need *= 2 // it holds tasks of both kinds
		}
		o.Depth = max(o.Depth, need)
	}
	return p, nil
}

// baseLoad is what all points have in common.
func baseLoad(c *cli.Context) (l bench.Load, err error) {
	l = bench.Load{ReadPercent: c.Int("read-percent"), Duration: c.Duration("time"), Warmup: c.Duration("warmup"), Count: c.Uint64("count"), Rate: c.Float64("rate"),
		KeepGoing: c.Bool("keep-going"), Timeout: c.Duration("timeout")}
	switch {
	case l.ReadPercent < 0 || l.ReadPercent > 100:
		return l, usagef("--read-percent %d: want 0 to 100", l.ReadPercent)
	case l.Duration <= 0:
		return l, usagef("--time %v: want more than 0", l.Duration)
	case l.Warmup < 0:
		return l, usagef("--warmup %v: want 0 or more", l.Warmup)
	case l.Timeout <= 0:
		return l, usagef("--timeout %v: want more than 0", l.Timeout)
	case l.Rate < 0 || c.IsSet("rate") && l.Rate == 0:
		return l, usagef("--rate %g: want more than 0", l.Rate)
	case c.IsSet("count") && l.Count == 0:
		return l, usagef("--count 0: want at least 1")
	case c.IsSet("count") && c.IsSet("time"):
		return l, usagef("--count and --time both say when a point ends: give one")
	case c.Bool("verify") && (c.IsSet("count") || c.IsSet("time")):
		return l, usagef("--verify goes over the whole region once: leave --count and --time out, and bound it by --region")
	}
	if l.Offset, err = bench.ParseSize(c.String("offset")); err != nil {
		return l, usagef("--offset: %w", err)
	}
	if s := c.String("region"); s != "" {
		if l.Region, err = bench.ParseSize(s); err != nil {
			return l, usagef("--region: %w", err)
		}
		if l.Region == 0 {
			return l, usagef("--region 0: want more than 0")
		}
	}
	return l, nil
}

// sweep makes the points: every load with every size at every depth.
func sweep(c *cli.Context, base bench.Load) (out []bench.Load, err error) {
	for _, word := range list(c.String("rw")) {
		rw, err := bench.ParseRW(word)
		if err != nil {
			return nil, usagef("--rw: %w", err)
		}
		for _, word := range list(c.String("depth")) {
			depth, err := strconv.Atoi(word)
			if err != nil || depth < 1 || depth > maxDepth {
				return nil, usagef("--depth %q: want 1 to %d", word, maxDepth)
			}
			for _, word := range list(c.String("size")) {
				size, err := bench.ParseSize(word)
				if err != nil {
					return nil, usagef("--size: %w", err)
				}
				if size == 0 {
					return nil, usagef("--size 0: want at least one block")
				}
				l := base
				l.RW, l.Depth, l.Size = rw, depth, size
				if !c.Bool("verify") {
					out = append(out, l)
					continue
				}
				l.Generation = uint64(len(out)/2) + 1
				l.Verify, l.RW = bench.VerifyWrite, bench.Write
				if rw.Random() && c.IsSet("rw") {
					l.RW = bench.RandWrite
				}
				out = append(out, l)
				l.Verify, l.RW = bench.VerifyRead, bench.Read
				if rw.Random() && c.IsSet("rw") {
					l.RW = bench.RandRead
				}
				out = append(out, l)
			}
		}
	}
	return out, nil
}

func list(s string) []string {
	words := strings.Split(s, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return words
}

// create opens the files that were asked for before time is spent on measuring.
func create(c *cli.Context, flags ...string) (files map[string]*os.File, err error) {
	files = map[string]*os.File{}
	for _, name := range flags {
		if path := c.String(name); path != "" {
			if files[name], err = os.Create(path); err != nil {
				delete(files, name)
				for _, f := range files {
					_ = f.Close()
				}
				return nil, usagef("--%s: %w", name, err)
			}
		}
	}
	return files, nil
}
