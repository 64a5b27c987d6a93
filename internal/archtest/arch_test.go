package archtest

import (
	"os"
	"strings"
	"testing"
)

func TestTheHouse(t *testing.T) {
	bad, files, err := Walk(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("read only %d files: is this the module's root?", files)
	}
	for _, b := range bad {
		t.Error(b)
	}
}

// Every rule must be able to fail.
func TestRulesBite(t *testing.T) {
	for name, c := range map[string]struct{ file, src, want string }{
		"arrow":           {"scsi/x.go", `package scsi; import _ "iserd/iscsi"`, "must not import iscsi"},
		"leaf":            {"rdma/x.go", `package rdma; import _ "iserd/rdma/verbs"`, "must not import"},
		"arrow under tag": {"iser/x.go", "//go:build never\n\npackage iser\n\nimport _ \"iserd/target\"", "must not import target"},
		"cgo elsewhere":   {"rdma/x.go", `package rdma; import "C"`, "import \"C\""},
		"cgo file name":   {"rdma/verbs/x.go", `package verbs; import "C"`, "import \"C\""},
		"unsafe":          {"iser/x.go", `package iser; import _ "unsafe"`, "unsafe"},
		"zap":             {"target/x.go", `package target; import _ "go.uber.org/zap"`, "logger"},
		"zap below":       {"iscsi/x.go", `package iscsi; import _ "go.uber.org/zap/zapcore"`, "logger"},
		"init":            {"scsi/x.go", `package scsi; func init() {}`, "init()"},
		"unknown package": {"stuff/x.go", `package stuff`, "not on the map"},
		"banned name":     {"scsi/x.go", `package util`, "says nothing"},
		"does not parse":  {"scsi/x.go", `pakage scsi`, "expected"},
	} {
		bad := strings.Join(Check(c.file, []byte(c.src)), "\n")
		if !strings.Contains(bad, c.want) {
			t.Errorf("%s: %q; want %q", name, bad, c.want)
		}
	}
	for name, c := range map[string]struct{ file, src string }{
		"cgo in its place": {"rdma/verbs/x_cgo.go", `package verbs; import "C"; import _ "iserd/rdma"`},
		"unsafe in place":  {"rdma/addr_unsafe.go", `package rdma; import _ "unsafe"`},
		"zap in cmd":       {"cmd/iserd/x.go", `package main; import _ "go.uber.org/zap"`},
		"the top":          {"target/x.go", `package target; import (_ "iserd/rdma/verbs"; _ "iserd/backstore/ram"; _ "iserd/iser")`},
	} {
		if bad := Check(c.file, []byte(c.src)); bad != nil {
			t.Errorf("%s: %v", name, bad)
		}
	}
}
