package main

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"iserd/iscsi"
	"iserd/iscsi/login"
)

// known-faults B138: a daemon without descriptors says so, and does not fill the log with it.
func TestB138_AcceptErrorsAreLoggedQuietly(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	told := tcpEvents(zap.New(core)).AcceptError
	for range 1000 {
		told(errors.New("accept4: too many open files"), time.Second)
	}
	if n := logs.Len(); n < 1 || n > 30 {
		t.Errorf("%d lines for 1000 errors; want some and few", n)
	}
	if l := logs.All(); len(l) > 0 && l[0].Level != zap.ErrorLevel {
		t.Errorf("logged as %v", l[0].Level)
	}
}

// known-faults B139: a full disk is in the log, a few times.
func TestB139_StoreFailuresAreLoggedQuietly(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	told := storeFailed(zap.New(core))
	for range 1000 {
		told(errors.New("no space left on device"))
	}
	if n := logs.Len(); n < 1 || n > 30 {
		t.Errorf("%d lines for 1000 errors; want some and few", n)
	}
}

// A login that was given up has no status; "success" in its line would mislead.
func TestRefusalWithoutStatus(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	refused := nodeEvents(zap.New(core)).Refused
	refused(iscsi.RefusedEvent{Status: login.StatusSuccess, Cause: "given up"})
	refused(iscsi.RefusedEvent{Status: login.StatusNotFound, Cause: "no such target"})
	for i, want := range []bool{false, true} {
		if _, has := logs.All()[i].ContextMap()["status"]; has != want {
			t.Errorf("line %d has a status: %v", i, has)
		}
	}
}
