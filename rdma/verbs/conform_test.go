//go:build linux && cgo && !nordma

package verbs_test

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"iserd/rdma"
	"iserd/rdma/rdmaconform"
)

// TestConform runs what every provider must do. Both ends are this provider on one machine.
func TestConform(t *testing.T) {
	addr := labAddr(t)
	p := newProvider(t)
	env := rdmaconform.Env{Target: p, Initiator: p, CanResize: true, Quiet: 50 * time.Millisecond, Rounds: 500}
	if addr.Is4() {
		env.Addr4 = addr
	} else {
		env.Addr6 = addr
	}
	info := device(t, p).Info()
	env.PadsPrivateData = info.Transport == rdma.TransportIB
	if !onRealDevice() {
		env.Addr6 = netip.IPv6Loopback()
		env.Invalidates, env.ExactDepths = true, true
		env.PeerDisconnectFlushes = os.Getenv("HOSTVERBS_DREQ_FLUSH") != "0"
	}
	skip := map[string]string{}
	switch info.Driver {
	case "soft-RoCE":
		env.NoFlushAfterError = true
		env.NoRetry = true // seen to retry for more than a minute
		skip["BadLocalKey"] = "rxe reports WR_FLUSH_ERR for a bad local key"
		skip["ShortReceive"] = "rxe reports LOC_QP_OP_ERR for a message that is too long"
	case "iWARP", "soft-iWARP":
		t.Skip("written for InfiniBand and RoCE, whose statuses iWARP does not have; the other tests of this package run on iWARP")
	}
	for _, name := range slices.Sorted(maps.Keys(rdmaconform.Tests)) {
		t.Run(name, func(t *testing.T) {
			if why := skip[name]; why != "" {
				t.Skip(why)
			}
			rdmaconform.RunOne(t, name, env)
		})
	}
}
