package main

import (
	"go.uber.org/zap"

	"iserd/rdma"
	"iserd/rdma/softroce"
	"iserd/rdma/verbs"
)

// newVerbs opens the provider; in a build without it the error says what the build lacks.
func newVerbs(log *zap.Logger) (rdma.Provider, error) {
	return verbs.New(verbs.Options{Trace: verbs.Trace{
		DeviceAdded:   func(name string) { log.Debug("RDMA device found", zap.String("device", name)) },
		DeviceRemoved: func(name string) { log.Debug("RDMA device gone", zap.String("device", name)) },
		Warning:       func(err error) { log.Warn("RDMA", zap.Error(err)) },
	}})
}

// newSoftRoCE opens the provider that needs no device.
func newSoftRoCE(warn func(string)) (rdma.Provider, error) {
	return softroce.New(softroce.Options{Warn: warn}), nil
}
