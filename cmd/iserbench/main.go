// Command iserbench drives a LUN over iSER or iSCSI and measures it. See docs/iserbench.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

// version is stamped by the Makefile.
var version = "unknown"

// Exit statuses beside 0.
const (
	exitFailed = 1 // a request failed, data was wrong, or the target could not be reached
	exitUsage  = 2
)

// usage is an error of the command line: nothing was done.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next one ends the program at once.
	context.AfterFunc(ctx, stop)
	err := app().RunContext(ctx, flagsFirst(os.Args))
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "iserbench:", err)
	if errors.As(err, new(usage)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func app() *cli.App {
	cli.VersionPrinter = printVersion
	a := &cli.App{
		Name:                      "iserbench",
		Usage:                     "drive a LUN over iSER or iSCSI, verify it, and measure throughput and latency",
		Version:                   version,
		DisableSliceFlagSeparator: true,
		EnableBashCompletion:      true,
		Suggest:                   true,
		OnUsageError:              usageError,
		Commands: []*cli.Command{
			runCommand(),
			reportCommand(),
			{Name: "version", Usage: "print the version", Action: func(c *cli.Context) error { printVersion(c); return nil }},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("unknown command %q; see iserbench --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		ExitErrHandler: func(*cli.Context, error) {},
	}
	for _, cmd := range a.Commands {
		cmd.OnUsageError = usageError
		cmd.HideHelpCommand = true
	}
	return a
}

// usageError says what is wrong with a flag in one line: a page of help would push it off the screen.
func usageError(c *cli.Context, err error, sub bool) error {
	name, flags := "iserbench", c.App.Flags
	if sub {
		name, flags = "iserbench "+c.Command.Name, c.Command.Flags
	}
	hint := ""
	if flag, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		if len(flag) > 1 {
			flag = "-" + flag
		}
		err = fmt.Errorf("there is no flag -%s", flag)
		if near := cli.SuggestFlag(flags, strings.TrimLeft(flag, "-"), false); near != "" {
			hint = " (did you mean " + near + "?)"
		}
	}
	return usagef("%w%s; see %s --help", err, hint, name)
}

func printVersion(c *cli.Context) {
	fmt.Fprintf(c.App.Writer, "iserbench %s, %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// flagsFirst moves flags before the other arguments of a command, because the URL is more naturally given first and the
// parser stops at it. What follows "--" stays.
func flagsFirst(args []string) []string {
	if len(args) < 3 {
		return args
	}
	var cmd *cli.Command
	for _, c := range app().Commands {
		if c.HasName(args[1]) {
			cmd = c
		}
	}
	if cmd == nil {
		return args
	}
	boolean := map[string]bool{"help": true, "h": true}
	for _, f := range cmd.Flags {
		if b, ok := f.(*cli.BoolFlag); ok {
			for _, n := range b.Names() {
				boolean[n] = true
			}
		}
	}
	var flags, rest []string
	for i := 2; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			rest = append(rest, a)
			continue
		}
		flags = append(flags, a)
		if name := strings.TrimLeft(a, "-"); !strings.Contains(name, "=") && !boolean[name] {
			if i++; i == len(args) {
				rest = nil // so that the parser sees that the flag lacks its value
				break
			}
			flags = append(flags, args[i])
		}
	}
	return append(append([]string{args[0], args[1]}, flags...), rest...)
}
