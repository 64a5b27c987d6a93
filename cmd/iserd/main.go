package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"

	"iserd/rdma/verbs"
)

// version is stamped by the Makefile.
var version = "unknown"

func main() {
	if err := app().Run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "iserd:", err)
		os.Exit(1)
	}
}

func app() *cli.App {
	cli.VersionPrinter = func(c *cli.Context) { printVersion(c) }
	a := &cli.App{
		Name:    "iserd",
		Usage:   "an iSCSI target server whose home is RDMA (iSER)",
		Version: version,
		// Store options hold commas; each --lun is one store.
		DisableSliceFlagSeparator: true,
		EnableBashCompletion:      true,
		Suggest:                   true,
		OnUsageError:              usageError,
		Commands: []*cli.Command{
			serveCommand(),
			configCommand(),
			devicesCommand(),
			{
				Name:   "version",
				Usage:  "print the version, what it was built with and what it was built without",
				Action: func(c *cli.Context) error { printVersion(c); return nil },
			},
		},
		// An unknown command is an error, not a page of help and exit 0.
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				word := c.Args().First()
				return fmt.Errorf("unknown command %q%s; see iserd --help", word, didYouMean(nearestCommand(c.App.Commands, word)))
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
	name, flags := "iserd", c.App.Flags
	if sub {
		name, flags = "iserd "+c.Command.Name, c.Command.Flags
	}
	hint := ""
	if flag, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		if len(flag) > 1 {
			flag = "-" + flag
		}
		err = fmt.Errorf("there is no flag -%s", flag)
		hint = didYouMean(cli.SuggestFlag(flags, strings.TrimLeft(flag, "-"), false))
	}
	return fmt.Errorf("%w%s; see %s --help", err, hint, name)
}

func didYouMean(word string) string {
	if word == "" {
		return ""
	}
	return " (did you mean " + word + "?)"
}

// nearestCommand is the command that word looks like, or empty; the library has it in a sentence, between quotes.
func nearestCommand(commands []*cli.Command, word string) string {
	_, rest, _ := strings.Cut(cli.SuggestCommand(commands, word), `"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

func printVersion(c *cli.Context) {
	rdmaBuild := "RDMA by libibverbs and librdmacm"
	if !verbs.Built {
		rdmaBuild = "RDMA by softroce alone (built without cgo or with the nordma tag)"
	}
	fmt.Fprintf(c.App.Writer, "iserd %s, %s %s/%s, %s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, rdmaBuild)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "CGO_ENABLED" || s.Key == "-tags" {
				fmt.Fprintf(c.App.Writer, "  %s=%s\n", s.Key, s.Value)
			}
		}
	}
}
