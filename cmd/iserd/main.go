package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

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
	return &cli.App{
		Name:            "iserd",
		Usage:           "an iSCSI target server whose home is RDMA (iSER)",
		Version:         version,
		HideHelpCommand: true,
		// Store options hold commas; each --lun is one store.
		DisableSliceFlagSeparator: true,
		EnableBashCompletion:      true,
		Suggest:                   true,
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
				return fmt.Errorf("unknown command %q; see iserd --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		ExitErrHandler: func(*cli.Context, error) {},
	}
}

func printVersion(c *cli.Context) {
	rdmaBuild := "RDMA by libibverbs and librdmacm"
	if !verbs.Built {
		rdmaBuild = "no RDMA (built without cgo or with the nordma tag)"
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
