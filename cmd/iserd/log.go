package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func logFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "log-level", Value: "info", Usage: "least `LEVEL` that is logged: debug, info, warn, error"},
		&cli.StringFlag{Name: "log-format", Value: "console", Usage: "`FORMAT` of the log on standard error: console or json"},
	}
}

func newLogger(c *cli.Context) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(c.String("log-level"))
	if err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", c.String("log-level"))
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	var encoder zapcore.Encoder
	switch c.String("log-format") {
	case "json":
		encoder = zapcore.NewJSONEncoder(enc)
	case "console":
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.EncodeDuration = zapcore.StringDurationEncoder // "7ms" to people; a number of seconds to programs
		encoder = zapcore.NewConsoleEncoder(enc)
	default:
		return nil, fmt.Errorf("--log-format %q: want console or json", c.String("log-format"))
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level)), nil
}
