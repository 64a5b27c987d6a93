package target

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"iserd/iscsi/pdu"
)

// DefaultPort is the iSCSI port (RFC 7143); iSER uses the same.
const DefaultPort = 3260

// RDMAMode says which RDMA provider to use.
type RDMAMode string

const (
	// RDMAAuto serves iSER by devices where there are any, and by softroce where there are none.
	RDMAAuto RDMAMode = "auto"
	// RDMAVerbs needs a device: start-up fails without one.
	RDMAVerbs RDMAMode = "verbs"
	// RDMASoftRoCE serves iSER by RoCEv2 in user space, whatever devices there are.
	RDMASoftRoCE RDMAMode = "softroce"
	// RDMAOff serves TCP alone.
	RDMAOff RDMAMode = "off"
)

// Config is the configuration of a daemon, as the YAML file has it.
type Config struct {
	RDMA    RDMAMode       `yaml:"rdma,omitempty"`
	Portals []PortalConfig `yaml:"portals,omitempty"`
	Targets []TargetConfig `yaml:"targets"`
	// QueueDepth is the command window of a session, 1 to 512; 0 is the default, 128.
	QueueDepth int `yaml:"queue_depth,omitempty"`
	// Shards is the number of cores that the RDMA side uses; 0 is all that there are.
	Shards int `yaml:"shards,omitempty"`
}

// PortalConfig is an address to listen on.
type PortalConfig struct {
	// Address is ADDR:PORT, [ADDR]:PORT or ADDR (then with port 3260). 0.0.0.0 and [::] are all addresses of their family.
	Address string `yaml:"address"`
	// Transports are "tcp" and "iser"; none means both.
	Transports []string `yaml:"transports,omitempty,flow"`
	// optional: the portal was not asked for by anyone, so failing to open it is a warning.
	optional bool
}

// TargetConfig is one target.
type TargetConfig struct {
	Name  string      `yaml:"name"`
	Alias string      `yaml:"alias,omitempty"`
	LUNs  []LUNConfig `yaml:"luns"`
}

// LUNConfig is one logical unit of a target.
type LUNConfig struct {
	LUN       *uint16 `yaml:"lun,omitempty"` // nil: the place in the list
	Store     string  `yaml:"store"`         // the one-line form of StoreSpec
	BlockSize uint32  `yaml:"block_size,omitempty"`
	ReadOnly  bool    `yaml:"read_only,omitempty"`
	Vendor    string  `yaml:"vendor,omitempty"`
	Product   string  `yaml:"product,omitempty"`
	Serial    string  `yaml:"serial,omitempty"`
	NAA       string  `yaml:"naa,omitempty"` // 32 hexadecimal digits

	spec StoreSpec
}

// ParseConfig reads YAML. Unknown keys are errors; syntax errors come with line and column.
func ParseConfig(data []byte) (cfg Config, err error) {
	// The YAML library dereferences nil on some malformed tags; a bad file is an error, not the end of the program.
	defer func() {
		if r := recover(); r != nil {
			cfg, err = Config{}, fmt.Errorf("the YAML cannot be decoded (%v): look for stray tags (!), anchors (&) and aliases (*)", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := dec.Decode(&cfg); err != nil {
		if errors.Is(err, io.EOF) {
			return cfg, errors.New("the configuration is empty")
		}
		return cfg, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return cfg, errors.New("more than one YAML document (a line of ---): only the first would be served")
	}
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		return cfg, err
	}
	var f numbers
	for _, doc := range tree.Docs {
		if doc.Body != nil {
			ast.Walk(&f, doc.Body)
		}
	}
	return cfg, f.err
}

// numbers finds the first value that the decoder would change without a word: a fraction or an exponent where a whole
// number belongs is cut, and a text that looks like a number is rewritten as one (serial 000123, octal, becomes 83).
type numbers struct{ err error }

func (f *numbers) Visit(n ast.Node) ast.Visitor {
	kv, ok := n.(*ast.MappingValueNode)
	if !ok || f.err != nil {
		return f
	}
	t := kv.Value.GetToken()
	switch key := kv.Key.GetToken().Value; key {
	case "queue_depth", "shards", "lun", "block_size":
		if kv.Value.Type() == ast.FloatType {
			f.err = fmt.Errorf("[%d:%d] %s: %s is not a whole number", t.Position.Line, t.Position.Column, key, t.Value)
		}
	case "alias", "vendor", "product", "serial", "naa":
		var v string
		switch node := kv.Value.(type) {
		case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode, *ast.BoolNode:
			v = fmt.Sprint(node.(ast.ScalarNode).GetValue())
		default:
			return f
		}
		if v != t.Value {
			f.err = fmt.Errorf("[%d:%d] %s: %s would be read as %s: put it in quotes", t.Position.Line, t.Position.Column, key, t.Value, v)
		}
	}
	return f
}

// maxConfigFile is far above what any configuration has: a file that is larger is not one.
const maxConfigFile = 16 << 20

// LoadConfig reads a file.
func LoadConfig(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return Config{}, err
	}
	if len(data) > maxConfigFile {
		return Config{}, fmt.Errorf("%s: more than %d bytes: not a configuration file", path, maxConfigFile)
	}
	cfg, err := ParseConfig(data)
	if err != nil {
		return cfg, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

// YAML prints the configuration so that ParseConfig reads it back.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }

// DefaultPortals listen on every address. They are optional: a host without IPv6 still serves IPv4.
func DefaultPortals() []PortalConfig {
	return []PortalConfig{
		{Address: fmt.Sprintf("0.0.0.0:%d", DefaultPort), optional: true},
		{Address: fmt.Sprintf("[::]:%d", DefaultPort), optional: true},
	}
}

// ParsePortal reads ADDR:PORT, [ADDR]:PORT, ADDR or :PORT (all IPv4 addresses).
func ParsePortal(s string) (netip.AddrPort, error) {
	bad := func(why string) (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("portal %q: %s; want ADDR:PORT, for example 192.0.2.1:3260 or [2001:db8::1]:3260", s, why)
	}
	bare := s
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(s, "]") {
		bare = strings.TrimSuffix(inner, "]")
	}
	// A zone may hold any character, so a bracket left over must be ruled out here.
	if a, err := netip.ParseAddr(bare); err == nil && !strings.ContainsAny(bare, "[]") {
		return netip.AddrPortFrom(a.Unmap(), DefaultPort), nil
	}
	t := s
	if strings.HasPrefix(t, ":") {
		t = "0.0.0.0" + t
	}
	ap, err := netip.ParseAddrPort(t)
	if err != nil {
		if host, _, ok := strings.Cut(s, ":"); ok && host != "" && !strings.ContainsAny(host, "[]") && strings.Count(s, ":") == 1 {
			return bad("the address is not numeric or the port is not a number up to 65535")
		}
		return bad("not an address and port")
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

func (p PortalConfig) transports() (tcp, iser bool, err error) {
	if len(p.Transports) == 0 {
		return true, true, nil
	}
	for _, t := range p.Transports {
		switch t {
		case "tcp":
			tcp = true
		case "iser":
			iser = true
		default:
			return false, false, fmt.Errorf("portal %q: unknown transport %q (known: tcp, iser)", p.Address, t)
		}
	}
	return tcp, iser, nil
}

// Validate finds everything that is wrong, as one joined error, and prepares the configuration for New.
func (c *Config) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch c.RDMA {
	case "":
		c.RDMA = RDMAAuto
	case RDMAAuto, RDMAVerbs, RDMASoftRoCE, RDMAOff:
	default:
		add("rdma: %q: want auto, verbs, softroce or off", c.RDMA)
	}
	if c.QueueDepth < 0 || c.QueueDepth > 512 {
		add("queue_depth: %d: want 1 to 512, or 0 for the default", c.QueueDepth)
	}
	if c.Shards < 0 {
		add("shards: %d: want the number of cores to use, or 0 for all", c.Shards)
	}
	if len(c.Portals) == 0 {
		c.Portals = DefaultPortals()
	} else if isDefault(c.Portals) {
		c.Portals = DefaultPortals() // written down, they are as optional as when they are left out
	}
	seenPortal := map[netip.AddrPort]bool{}
	for _, p := range c.Portals {
		ap, err := ParsePortal(p.Address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if seenPortal[ap] && ap.Port() != 0 {
			add("portal %q stands twice", p.Address)
		}
		seenPortal[ap] = true
		if _, _, err := p.transports(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(c.Targets) == 0 {
		add("no target is configured")
	}
	names := map[string]bool{}
	media := map[string]string{}
	ids := map[string]string{}
	for i := range c.Targets {
		t := &c.Targets[i]
		if !pdu.ValidName(t.Name) {
			add("target %q is not an iSCSI name: want iqn.YYYY-MM.DOMAIN[:TEXT], eui. or naa., in lower case", t.Name)
		}
		if names[t.Name] {
			add("target %q stands twice", t.Name)
		}
		names[t.Name] = true
		if len(t.LUNs) == 0 {
			add("target %q has no LUN", t.Name)
		}
		errs = append(errs, t.validateLUNs(media, ids)...)
	}
	return errors.Join(errs...)
}

func (t *TargetConfig) validateLUNs(media, ids map[string]string) []error {
	var errs []error
	numbers := map[uint16]bool{}
	for i := range t.LUNs {
		l := &t.LUNs[i]
		if l.LUN == nil {
			n := uint16(i)
			l.LUN = &n
		}
		where := fmt.Sprintf("target %q LUN %d", t.Name, *l.LUN)
		add := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf(where+": "+format, args...))
		}
		if *l.LUN > 16383 {
			add("LUN numbers end at 16383")
		}
		if numbers[*l.LUN] {
			add("the number stands twice")
		}
		numbers[*l.LUN] = true
		spec, err := ParseStore(l.Store)
		if err != nil {
			add("%w", err)
			continue
		}
		if spec.Kind == "file" {
			// The identity is made from the path, and a written configuration must mean the same file everywhere.
			if spec.Path, err = absolute(spec.Path); err != nil {
				add("%w", err)
				continue
			}
		}
		l.spec = spec
		l.merge()
		if l.BlockSize != 0 && l.BlockSize != 512 && l.BlockSize != 4096 {
			add("block_size %d: want 512 or 4096", l.BlockSize)
		} else if block := max(uint64(l.BlockSize), 512); spec.Size != 0 && spec.Size < block {
			add("store %q: %d bytes are less than one block of %d", l.Store, spec.Size, block)
		}
		if spec.Kind == "file" {
			if other, twice := media[spec.Path]; twice {
				add("file %s is the store of %s already: two logical units on one file destroy each other's data", spec.Path, other)
			}
			media[spec.Path] = where
		}
		if l.NAA != "" {
			if _, err := parseNAA(l.NAA); err != nil {
				add("%w", err)
			}
		}
		if len(l.Serial) > 36 || strings.IndexFunc(l.Serial, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
			add("serial %q: want up to 36 printable ASCII characters without spaces", l.Serial)
		}
		if len(l.Vendor) > 8 || len(l.Product) > 16 {
			add("vendor has up to 8 characters, product up to 16")
		}
		for _, id := range []string{"serial " + l.Serial, "naa " + strings.ToLower(l.NAA)} {
			if strings.HasSuffix(id, " ") {
				continue
			}
			if other, twice := ids[id]; twice {
				add("%s is that of %s already: initiators would take both for one disk", id, other)
			}
			ids[id] = where
		}
	}
	return errs
}

// merge takes over what stood in the store's line and not in keys of its own.
func (l *LUNConfig) merge() {
	if l.BlockSize == 0 {
		l.BlockSize = l.spec.BlockSize
	}
	l.ReadOnly = l.ReadOnly || l.spec.ReadOnly
	if l.Serial == "" {
		l.Serial = l.spec.Serial
	}
	if l.NAA == "" {
		l.NAA = l.spec.NAA
	}
}
