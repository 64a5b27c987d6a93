package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"iserd/bench"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "drive a LUN and measure it",
		ArgsUsage: "URL",
		Description: "URL is iser://HOST[:PORT]/IQN/LUN, or iscsi:// for TCP. With iser://HOST alone the only target there is taken, LUN 0.\n\n" +
			"    iserbench run iser://192.0.2.1/iqn.2026-12.lab.iserd:host/0                         random reads of 4 KiB, depth 32, 5 s\n" +
			"    iserbench run iser://192.0.2.1 --rw read,randread --size 4K,64K,1M --html out.html  a sweep, with plots\n" +
			"    iserbench run iser://192.0.2.1 --verify --destroy --region 1G                       write, read back, compare\n" +
			"    iserbench run iser://127.0.0.1 --rdma softroce --local 127.0.0.2                    no RDMA device at all\n\n" +
			"Exit status: 0, 1 when a request failed or data was wrong, 2 for a wrong command line. SIGINT ends the run and prints\n" +
			"what was measured until then.",
		Flags:  runFlags(),
		Action: runBench,
	}
}

func runBench(c *cli.Context) error {
	p, err := newPlan(c)
	if err != nil {
		return err
	}
	files, err := create(c, "json", "csv", "html")
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	out, live := c.App.Writer, newDisplay(os.Stderr, c.Bool("quiet"))
	r := &bench.Report{Tool: bench.ToolName, Version: version, Started: time.Now(), Command: os.Args, Machine: bench.ThisMachine(), Seed: p.seed}
	p.options.Notice = live.note
	runErr := measure(c.Context, &p, r, live, func() {
		if !c.Bool("quiet") {
			printLink(out, &r.Link)
		}
	})
	if runErr != nil {
		r.Error = runErr.Error()
	}
	if len(r.Points) > 0 {
		if err := r.WriteTable(out); err != nil {
			return err
		}
	}
	printTroubles(out, r)
	if err := save(files, r); err != nil {
		return errors.Join(runErr, err)
	}
	return runErr
}

// measure connects and does every load. What was measured is in r, also after an error.
func measure(ctx context.Context, p *plan, r *bench.Report, live *display, connected func()) error {
	client, err := bench.Connect(ctx, p.options)
	if err != nil {
		return err
	}
	r.Link = client.Link
	connected()
	if w := r.Link.Window; w > 0 && p.options.Depth > w {
		live.note(fmt.Sprintf("the target's command window is %d: what goes beyond it waits here, and its latency includes that", w))
	}
	var failed error
	for i, l := range p.loads {
		live.begin(&l, p.loads[i+1:])
		res, err := client.Run(ctx, l, live.progress)
		live.end(&res)
		if res.Launched > 0 {
			r.Points = append(r.Points, res)
		}
		if failed = err; failed == nil {
			failed = verdict(&res)
		}
		r.Interrupted = ctx.Err() != nil
		if r.Interrupted || failed != nil && !(l.KeepGoing && err == nil) {
			break
		}
	}
	r.Counters = client.Counters()
	if err := client.Close(); failed == nil && err != nil {
		failed = err
	}
	for i := range r.Points {
		if failed == nil {
			failed = verdict(&r.Points[i])
		}
	}
	return failed
}

// verdict is an error if not all went well.
func verdict(r *bench.Result) error {
	var errs []error
	if n := r.Failed + r.Lost; n > 0 {
		err := fmt.Errorf("%s, %s: %d of %d requests failed", r.Label, bench.FormatSize(r.Size), n, r.Launched)
		if len(r.Failures) > 0 {
			err = fmt.Errorf("%w; the first: %s", err, r.Failures[0])
		}
		errs = append(errs, err)
	}
	if r.BadBlocks > 0 {
		err := fmt.Errorf("%s, %s: %d blocks do not hold what was written", r.Label, bench.FormatSize(r.Size), r.BadBlocks)
		if len(r.Mismatches) > 0 {
			err = fmt.Errorf("%w; the first: %s", err, r.Mismatches[0])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func printLink(w io.Writer, l *bench.Link) {
	fmt.Fprintf(w, "%s, %s → %s\n", l.Carrier(), l.Local, l.Remote)
	fmt.Fprintf(w, "LUN %d of %s: %s %s, %s in blocks of %d bytes\n\n", l.LUN, l.Target, l.Disk.Vendor, l.Disk.Product, bench.FormatSize(l.Disk.Bytes()), l.Disk.BlockSize)
}

// printTroubles prints what went wrong, under the table.
func printTroubles(w io.Writer, r *bench.Report) {
	verified, bad := uint64(0), false
	for i := range r.Points {
		p := &r.Points[i]
		for _, f := range p.Failures {
			fmt.Fprintln(w, "FAILED", f)
		}
		for _, m := range p.Mismatches {
			fmt.Fprintln(w, "WRONG DATA", m)
		}
		bad = bad || !p.OK()
		if p.Verify && p.RW.Reads() {
			verified += p.Bytes
		}
	}
	switch {
	case verified > 0 && !bad:
		fmt.Fprintf(w, "verified: %s read back, every byte as written\n", bench.FormatSize(verified))
	case bad:
		fmt.Fprintln(w, "FAILED: not every request ended well, or not every block was right")
	}
	if s := r.Counters.Repairs(); s != "" {
		fmt.Fprintln(w, s)
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted: the last point is as far as it came")
	}
}

// save writes the files.
func save(files map[string]*os.File, r *bench.Report) error {
	var errs []error
	for name, f := range files {
		var err error
		switch name {
		case "json":
			err = r.WriteJSON(f)
		case "csv":
			err = r.WriteCSV(f)
		case "html":
			err = bench.WriteHTML(f, r)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			errs = append(errs, fmt.Errorf("--%s %s: %w", name, f.Name(), err))
		}
		delete(files, name)
	}
	return errors.Join(errs...)
}

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "make one page of the JSON reports of several runs",
		ArgsUsage: "FILE.json...",
		Description: "Runs are shown in the order given, in the same plots:\n\n" +
			"    iserbench report --html both.html iser.json tcp.json",
		Flags: []cli.Flag{&cli.StringFlag{Name: "html", Usage: "write the page to `FILE`"}},
		Action: func(c *cli.Context) error {
			if c.String("html") == "" {
				return usagef("no page to write: give --html FILE")
			}
			if !c.Args().Present() {
				return usagef("no report given: name the files that iserbench run --json wrote")
			}
			var reports []*bench.Report
			for _, path := range c.Args().Slice() {
				r, err := readReport(path)
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				reports = append(reports, r)
			}
			files, err := create(c, "html")
			if err != nil {
				return err
			}
			return errors.Join(bench.WriteHTML(files["html"], reports...), files["html"].Close())
		},
	}
}

func readReport(path string) (*bench.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bench.ReadReport(f)
}
