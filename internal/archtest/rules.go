package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// module is the module's path.
const module = "iserd"

// arrows is the map: for each room, the rooms that it may import. "room/..." stands for the room and all below it. A
// package that is in no room breaks the map.
var arrows = map[string][]string{
	"internal/serial":      {},
	"rdma":                 {},
	"rdma/verbs":           {"rdma"},
	"rdma/softroce":        {"rdma"},
	"rdma/rdmatest":        {"rdma"},
	"rdma/rdmaconform":     {"rdma"},
	"iscsi/pdu":            {"internal/serial"},
	"iscsi/login":          {"iscsi/pdu", "internal/serial"},
	"iscsi":                {"iscsi/pdu", "iscsi/login", "internal/serial", "scsi"},
	"iscsi/tcp":            {"iscsi", "iscsi/pdu", "iscsi/login", "internal/serial"},
	"iser":                 {"rdma", "iscsi", "iscsi/pdu", "iscsi/login", "internal/serial"},
	"scsi":                 {"backstore"},
	"backstore":            {},
	"backstore/null":       {"backstore"},
	"backstore/ram":        {"backstore"},
	"backstore/file":       {"backstore"},
	"backstore/faultstore": {"backstore"},
	"target":               {"rdma/...", "iser", "iscsi/...", "scsi", "backstore/..."},
	"bench":                {"rdma/...", "iscsi/pdu", "iscsi/login", "internal/serial", "internal/initiator", "internal/iserclient", "internal/tcpclient"},
	"cmd/...":              {"target", "rdma/...", "iser", "iscsi/...", "bench/..."},
	"internal/archtest":    {},
	// Clients that tests and the load generator drive the target with.
	"internal/initiator":                {"iscsi/pdu", "iscsi/login", "internal/serial"},
	"internal/initiator/sessionconform": {"internal/initiator"},
	"internal/tcpclient":                {"internal/initiator", "iscsi/pdu", "iscsi/login", "internal/serial"},
	"internal/iserclient":               {"internal/initiator", "rdma", "iscsi/pdu", "iscsi/login", "internal/serial"},
}

// banned are package names that say nothing of what is in them.
var banned = map[string]bool{"util": true, "utils": true, "common": true, "types": true, "helpers": true, "misc": true}

func covers(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	return pattern == pkg
}

func roomOf(pkg string) (allowed []string, ok bool) {
	if a, ok := arrows[pkg]; ok {
		return a, true
	}
	for room, a := range arrows {
		if strings.HasSuffix(room, "/...") && covers(room, pkg) {
			return a, true
		}
	}
	return nil, false
}

// Check says what breaks the rules in one file. name is its path from the module's root, with slashes.
func Check(name string, src []byte) []string {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", name, err)}
	}
	var bad []string
	add := func(format string, args ...any) { bad = append(bad, name+": "+fmt.Sprintf(format, args...)) }
	pkg, base := path.Dir(name), path.Base(name)
	allowed, known := roomOf(pkg)
	if !known {
		add("package %s is not on the map", pkg)
	}
	if banned[f.Name.Name] {
		add("a package named %s says nothing", f.Name.Name)
	}
	inVerbs := pkg == "rdma/verbs"
	for _, imp := range f.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			add("import %s", imp.Path.Value)
			continue
		}
		switch {
		case p == "C":
			if !inVerbs || !strings.HasSuffix(base, "_cgo.go") {
				add(`import "C" belongs to rdma/verbs/*_cgo.go`)
			}
		case p == "unsafe":
			if !inVerbs && !strings.HasSuffix(base, "_unsafe.go") {
				add("unsafe belongs to files named *_unsafe.go and to rdma/verbs")
			}
		case strings.HasPrefix(p, "go.uber.org/zap"):
			if !strings.HasPrefix(pkg, "cmd/") {
				add("the logger belongs to cmd")
			}
		case p == module || strings.HasPrefix(p, module+"/"):
			to := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
			if !anyCovers(allowed, to) {
				add("%s must not import %s", pkg, to)
			}
		}
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			add("nothing registers itself in init()")
		}
	}
	return bad
}

func anyCovers(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if covers(p, pkg) {
			return true
		}
	}
	return false
}

// Walk checks every Go file under root that is not a test, and returns what breaks the rules and how many files it read.
func Walk(root fs.FS) (bad []string, files int, err error) {
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); name != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "out" || n == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		files++
		bad = append(bad, Check(name, src)...)
		return nil
	})
	return bad, files, err
}
