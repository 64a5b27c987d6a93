package target

import (
	"encoding/hex"
	"strconv"
	"strings"

	"iserd/scsi"
)

// Effective fills in every identity that the configuration leaves out, from hostID, and reports how many it filled in.
// The result says the same on every host: what was derived is then part of the configuration.
func (c Config) Effective(hostID string) (Config, int) {
	out := c
	out.Targets = make([]TargetConfig, len(c.Targets))
	derived := 0
	for i, t := range c.Targets {
		luns := make([]LUNConfig, len(t.LUNs))
		for j, l := range t.LUNs {
			// The medium's path is part of the name: another file is another disk.
			id := scsi.NewIdentity(derive(hostID, t.Name, strconv.Itoa(int(*l.LUN)), l.spec.Kind, l.spec.Path))
			if l.NAA == "" || l.Serial == "" {
				derived++
			}
			if l.NAA == "" {
				l.NAA = hex.EncodeToString(id.NAA[:])
			}
			if l.Serial == "" {
				l.Serial = id.Serial
			}
			l.Store = l.spec.String()
			l.NAA = strings.ToLower(l.NAA)
			luns[j] = l
		}
		t.LUNs = luns
		out.Targets[i] = t
	}
	return out, derived
}
