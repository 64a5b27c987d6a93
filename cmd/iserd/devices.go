package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"iserd/rdma"
)

func devicesCommand() *cli.Command {
	return &cli.Command{
		Name:  "devices",
		Usage: "list the RDMA devices: netdev, addresses, GIDs, link layer, state, NUMA node",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q", c.Args().First())
			}
			infos, err := deviceInfos()
			if err != nil && !errors.Is(err, rdma.ErrNoDevice) {
				return err
			}
			if c.Bool("json") {
				if infos == nil {
					infos = []rdma.DeviceInfo{}
				}
				enc := json.NewEncoder(c.App.Writer)
				enc.SetIndent("", "  ")
				return enc.Encode(infos)
			}
			if len(infos) == 0 {
				fmt.Fprintln(c.App.Writer, "No RDMA device: iserd serve then uses softroce, RoCEv2 in user space. For the kernel's soft-RoCE on a netdev: scripts/rxe up NETDEV (needs the rdma_rxe module).")
				return nil
			}
			return printDevices(c.App.Writer, infos)
		},
	}
}

func deviceInfos() ([]rdma.DeviceInfo, error) {
	p, err := newVerbs(zap.NewNop())
	if err != nil {
		return nil, err
	}
	devs, err := p.Devices()
	infos := make([]rdma.DeviceInfo, len(devs))
	for i, d := range devs {
		infos[i] = d.Info()
	}
	return infos, errors.Join(err, p.Close())
}

func printDevices(w io.Writer, infos []rdma.DeviceInfo) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tKIND\tPORT\tSTATE\tLINK\tMTU\tNETDEV\tADDRESSES\tNUMA")
	for _, d := range infos {
		numa := "-"
		if d.NUMANode >= 0 {
			numa = fmt.Sprint(d.NUMANode)
		}
		for _, p := range d.Ports {
			addrs := make([]string, len(p.Addrs))
			for i, a := range p.Addrs {
				addrs[i] = a.String()
			}
			fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\n", d.Name, d.Driver, p.Number, p.State, p.LinkLayer, p.MTU,
				dash(p.NetDevs), dash(addrs), numa)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, d := range infos {
		for _, p := range d.Ports {
			for i, g := range p.GIDs {
				if i == 0 {
					fmt.Fprintf(w, "\n%s port %d GIDs:\n", d.Name, p.Number)
				}
				fmt.Fprintf(w, "  %s\n", g)
			}
		}
	}
	return nil
}

func dash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ",")
}
