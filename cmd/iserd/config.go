package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"iserd/target"
)

// configFlags say what to serve; serve and config share them.
func configFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "read the configuration from `FILE` (YAML); then --listen, --target and --lun are not allowed"},
		&cli.StringSliceFlag{Name: "listen", Aliases: []string{"l"}, Usage: "listen on `ADDR:PORT`, TCP and iSER both; repeatable (default: all addresses, port 3260)"},
		&cli.StringFlag{Name: "target", Aliases: []string{"t"}, Usage: "name the target `IQN` (default: one made from the host's name)"},
		&cli.StringSliceFlag{Name: "lun", Usage: "serve `STORE` as the next LUN, from 0: null:SIZE, ram:SIZE or file:PATH[,size=SIZE]; more options: ,block=4096 ,ro ,serial=… ,naa=…; repeatable"},
		&cli.StringFlag{Name: "rdma", Usage: "`MODE` of RDMA: auto (a device where there is one, else softroce), verbs (fail without a device), softroce (RoCEv2 in user space, needs no device and UDP port 4791) or off (TCP only) (default: auto, or what FILE says)"},
		&cli.StringFlag{Name: "state-dir", Value: "/var/lib/iserd", Usage: "`DIR` that keeps the host's identity where there is no /etc/machine-id"},
	}
}

func loadConfig(c *cli.Context) (target.Config, error) {
	var cfg target.Config
	if c.Args().Present() {
		return cfg, fmt.Errorf("unexpected argument %q: everything to serve is given by flags, see iserd %s --help", c.Args().First(), c.Command.Name)
	}
	if c.IsSet("config") {
		path := c.String("config")
		if path == "" {
			return cfg, errors.New("--config names no file")
		}
		for _, f := range []string{"listen", "target", "lun"} {
			if c.IsSet(f) {
				return cfg, fmt.Errorf("--%s cannot stand beside --config: write it into %s", f, path)
			}
		}
		var err error
		if cfg, err = target.LoadConfig(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("--config: %w (iserd config --lun STORE prints one to start from)", err)
			}
			return cfg, err
		}
	} else {
		luns := c.StringSlice("lun")
		if len(luns) == 0 {
			return cfg, errors.New("nothing to serve: give --lun STORE (for example --lun ram:1GiB) or --config FILE")
		}
		name := c.String("target")
		if name == "" {
			name = defaultTarget()
		}
		t := target.TargetConfig{Name: name}
		for _, s := range luns {
			t.LUNs = append(t.LUNs, target.LUNConfig{Store: s})
		}
		cfg.Targets = []target.TargetConfig{t}
		for _, a := range c.StringSlice("listen") {
			cfg.Portals = append(cfg.Portals, target.PortalConfig{Address: a})
		}
	}
	if c.IsSet("rdma") {
		cfg.RDMA = target.RDMAMode(c.String("rdma"))
	}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("configuration: %w", err)
	}
	return cfg, nil
}

func defaultTarget() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	host, _, _ = strings.Cut(host, ".")
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, host)
	return "iqn.2026-12.lab.iserd:" + host
}

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "check a configuration and print it whole, identities included",
		Description: "Prints the YAML that would be served, with the serial number and NAA name of every LUN filled in. Keep it as the\n" +
			"configuration file: initiators then see the same disks from whichever host serves it.",
		Flags: configFlags(),
		Action: func(c *cli.Context) error {
			cfg, err := loadConfig(c)
			if err != nil {
				return err
			}
			host, err := target.HostID(machineIDFile, c.String("state-dir"))
			if err != nil {
				return err
			}
			eff, _ := cfg.Effective(host)
			text, err := eff.YAML()
			if err != nil {
				return err
			}
			_, err = c.App.Writer.Write(text)
			return err
		},
	}
}

const machineIDFile = "/etc/machine-id"
