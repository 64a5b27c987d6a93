package target

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// StoreSpec is a store in one line: null:SIZE, ram:SIZE or file:PATH, each with ,key=value options after it.
type StoreSpec struct {
	Kind string // "null", "ram", "file"
	Path string // file
	Size uint64 // bytes; 0 for a file that exists: its own size
	// Options of the logical unit that may stand in the line.
	BlockSize uint32
	ReadOnly  bool
	Serial    string
	NAA       string
}

// storeOptions are the keys that may follow a store; everything else with a comma belongs to the path.
var storeOptions = map[string]bool{"size": true, "block": true, "ro": true, "serial": true, "naa": true}

// ParseStore reads the one-line form. A path may hold commas: only trailing words that are known options are split off.
func ParseStore(s string) (StoreSpec, error) {
	kind, rest, ok := strings.Cut(s, ":")
	spec := StoreSpec{Kind: kind}
	if !ok || rest == "" {
		return spec, fmt.Errorf("store %q: want null:SIZE, ram:SIZE or file:PATH[,size=SIZE]", s)
	}
	var options []string
	for {
		i := strings.LastIndexByte(rest, ',')
		if i < 0 {
			break
		}
		key, _, _ := strings.Cut(rest[i+1:], "=")
		if !storeOptions[key] {
			if kind != "file" {
				return spec, fmt.Errorf("store %q: unknown option %q (known: size, block, ro, serial, naa)", s, key)
			}
			break
		}
		options = append(options, rest[i+1:])
		rest = rest[:i]
	}
	seen := map[string]bool{}
	for _, o := range options {
		key, value, has := strings.Cut(o, "=")
		if seen[key] {
			return spec, fmt.Errorf("store %q: option %q stands twice", s, key)
		}
		seen[key] = true
		if err := spec.option(key, value, has); err != nil {
			return spec, fmt.Errorf("store %q: %w", s, err)
		}
	}
	switch kind {
	case "null", "ram":
		if seen["size"] {
			return spec, fmt.Errorf("store %q: the size of a %s store stands after the colon, as in %s:64MiB", s, kind, kind)
		}
		n, err := ParseSize(rest)
		if err != nil {
			return spec, fmt.Errorf("store %q: %w", s, err)
		}
		spec.Size = n
	case "file":
		if rest == "" {
			return spec, fmt.Errorf("store %q: the path is empty", s)
		}
		spec.Path = rest
	default:
		return spec, fmt.Errorf("store %q: unknown kind %q (known: null, ram, file)", s, kind)
	}
	return spec, nil
}

func (spec *StoreSpec) option(key, value string, has bool) error {
	if key == "ro" {
		if has && value != "true" && value != "false" {
			return fmt.Errorf("option ro=%q: want ro, ro=true or ro=false", value)
		}
		spec.ReadOnly = !has || value == "true"
		return nil
	}
	if value == "" {
		return fmt.Errorf("option %q needs a value", key)
	}
	switch key {
	case "size":
		n, err := ParseSize(value)
		if err != nil {
			return err
		}
		spec.Size = n
	case "block":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n != 512 && n != 4096 {
			return fmt.Errorf("option block=%s: the logical block size is 512 or 4096", value)
		}
		spec.BlockSize = uint32(n)
	case "serial":
		spec.Serial = value
	case "naa":
		spec.NAA = value
	}
	return nil
}

// absolute is the whole path of a store's file, cleaned where it still reads back as the same path: in a/b,ro/ the slash
// keeps ",ro" from being an option.
func absolute(path string) (string, error) {
	clean, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("file %s: %w", path, err)
	}
	if back, err := ParseStore("file:" + clean); err == nil && back.Path == clean {
		return clean, nil
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	dir, err := os.Getwd()
	return dir + "/" + path, err
}

// String is the one-line form of the store itself, without the options of the logical unit.
func (spec StoreSpec) String() string {
	if spec.Kind != "file" {
		return spec.Kind + ":" + strconv.FormatUint(spec.Size, 10)
	}
	if spec.Size != 0 {
		return "file:" + spec.Path + ",size=" + strconv.FormatUint(spec.Size, 10)
	}
	return "file:" + spec.Path
}
