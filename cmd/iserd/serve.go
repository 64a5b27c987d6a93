package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"iserd/rdma"
	"iserd/target"
)

// shutdownTime bounds the end of sessions after SIGTERM; a second signal does not wait for it.
const shutdownTime = 2 * time.Second

// sameSignal is how close a second signal still counts as the first: timeout(1) and others send to the process and to its
// group at once, and nobody is impatient that fast.
const sameSignal = 250 * time.Millisecond

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "serve LUNs over iSER and iSCSI until SIGTERM",
		Description: "Needs no configuration file:\n\n" +
			"    iserd serve --lun ram:1GiB                                a gigabyte of memory, on every address, port 3260\n" +
			"    iserd serve --listen 192.0.2.1:3260 --lun file:/srv/a.img,size=10G --lun null:1T\n\n" +
			"iSER is served by an RDMA device where there is one, and else by softroce: RoCEv2 in user space, which is slower. Where\n" +
			"UDP port 4791 of an address is taken (another softroce, the kernel's rdma_rxe), that address serves TCP only, with a\n" +
			"warning; with --rdma softroce it is an error. The log says what is used and why. SIGUSR1 logs counters.",
		Flags: append(configFlags(), append(logFlags(),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "do not print what is served and how to use it"})...),
		Action: serve,
	}
}

func serve(c *cli.Context) error {
	log, err := newLogger(c)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }()
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	// Signals count from here on, so that one during start-up ends it.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)

	host, err := target.HostID(machineIDFile, c.String("state-dir"))
	if err != nil {
		return err
	}
	opt := target.Options{
		HostID:       host,
		Revision:     revision(),
		Provider:     func() (rdma.Provider, error) { return newVerbs(log) },
		SoftProvider: newSoftRoCE,
		Node:         nodeEvents(log),
		ISER:         iserEvents(log),
		TCP:          tcpEvents(log),
		StoreFailed:  storeFailed(log),
		Warn:         func(m string) { log.Warn(m) },
	}
	started := time.Now()
	sys, err := target.New(cfg, opt)
	if err != nil {
		return err
	}
	if err := sys.Listen(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		_ = sys.Shutdown(ctx)
		return err
	}
	announce(log, sys, cfg)
	if !c.Bool("quiet") {
		printBanner(c.App.Writer, sys)
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("telling the service manager failed", zap.Error(err))
	}
	log.Info("ready", zap.Duration("after", time.Since(started).Round(time.Millisecond)))
	return waitAndStop(log, sys, signals)
}

func waitAndStop(log *zap.Logger, sys *target.System, signals <-chan os.Signal) error {
	for sig := range signals {
		switch sig {
		case syscall.SIGUSR1:
			logStats(log, sys)
			continue
		case syscall.SIGHUP:
			log.Warn("SIGHUP: a running daemon does not reload its configuration yet; restart it")
			continue
		}
		log.Info("stopping", zap.Stringer("signal", sig))
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
		break
	}
	first := time.Now()
	go func() {
		for sig := range signals {
			if time.Since(first) < sameSignal {
				continue
			}
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				log.Warn("second signal: not waiting for sessions", zap.Stringer("signal", sig))
				_ = log.Sync()
				os.Exit(1)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	if err := sys.Shutdown(ctx); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	log.Info("stopped")
	return nil
}

// revision is what INQUIRY shows: up to four characters of the version.
func revision() string {
	v := version
	if len(v) > 0 && v[0] == 'v' {
		v = v[1:]
	}
	if len(v) == 0 || v[0] < '0' || v[0] > '9' {
		return "0000"
	}
	if len(v) > 4 {
		v = v[:4]
	}
	return v
}
