package rdmaconform

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"iserd/rdma"
)

// Env is what a test runs on: two providers, which may be one and the same, on one network.
type Env struct {
	Target, Initiator rdma.Provider
	// Addr4 and Addr6 are addresses of the target. One of them may be invalid: no such family here.
	Addr4, Addr6 netip.Addr

	// PadsPrivateData: private data comes padded with zeros to 56, 196 and 148 bytes, as on InfiniBand and RoCE.
	// Otherwise it has the length that was sent.
	PadsPrivateData bool
	// NoDepths: the provider does not carry responder resources and initiator depth to the peer.
	NoDepths bool
	// PeerDisconnectFlushes: a queue pair goes to error when its peer disconnects, as on iWARP.
	PeerDisconnectFlushes bool
	// NoInline: the device takes no inline data.
	NoInline bool
	// NoWildcard: wildcard listeners cannot be tested here.
	NoWildcard bool
	// Invalidates: SEND_WITH_INV works on a region that RegMR made. Where it does not (adapters take memory windows and
	// fast-registered regions only), it must kill the peer's queue pair like a wrong key.
	Invalidates bool
	// NoInvalidate: SEND_WITH_INV must not be tried at all.
	NoInvalidate bool
	// ExactDepths: a queue takes exactly as many requests as were asked for; otherwise at least.
	ExactDepths bool
	// NoRNR: a message without a receive is not answered as reliable connections do, as on iWARP.
	NoRNR bool
	// NoAccessChecks: the provider does not check the keys of remote accesses.
	NoAccessChecks bool
	// NoRetry: a peer that is gone is not noticed by retries that are in vain.
	NoRetry bool
	// NoTimewait: there is no TIMEWAIT_EXIT.
	NoTimewait bool
	// NoFlushAfterError: a receive posted after the queue pair went to error may never complete, as on soft-RoCE.
	NoFlushAfterError bool
	// VagueStatus: a request that failed for its own fault completes with an error, but not with the status that says
	// which, as on soft-RoCE.
	VagueStatus bool
	// CanResize: the depth of a completion queue can change.
	CanResize bool

	// Patience is how long a test waits for what must come; default 10 s.
	Patience time.Duration
	// Quiet is how long it waits to see that nothing comes; default 20 ms.
	Quiet time.Duration
	// Rounds scales the stress tests; default 2000.
	Rounds int
	// Leaks, if not nil, names what is open after a test.
	Leaks func() []string
}

func (e Env) withDefaults() Env {
	if e.Patience == 0 {
		e.Patience = 10 * time.Second
	}
	if e.Quiet == 0 {
		e.Quiet = 20 * time.Millisecond
	}
	if e.Rounds == 0 {
		e.Rounds = 2000
	}
	return e
}

// Tests are all tests by name.
var Tests = map[string]func(t *testing.T, env Env){
	"Devices": testDevices, "Limits": testLimits, "Lifetime": testLifetime, "Regions": testRegions,
	"ConnectV4": testConnectV4, "ConnectV6": testConnectV6, "Wildcard": testWildcard, "ListenErrors": testListenErrors,
	"ResolveErrors": testResolveErrors, "Reject": testReject, "NobodyListens": testNobodyListens, "PrivateData": testPrivateData,
	"Depths": testDepths, "Disconnect": testDisconnect, "DisconnectByBoth": testDisconnectByBoth, "CloseInAnyState": testCloseInAnyState,
	"ClosedConnEvents": testClosedConnEvents, "ListenerTakesRequests": testListenerTakesRequests, "ChannelClose": testChannelClose,
	"TimewaitExit": testTimewaitExit, "ManyConnections": testManyConnections,
	"Send": testSend, "SendPieces": testSendPieces, "SendOrder": testSendOrder, "ZeroLength": testZeroLength, "Inline": testInline,
	"RDMAWrite": testRDMAWrite, "RDMAWritePieces": testRDMAWritePieces, "RDMARead": testRDMARead, "RDMAReadPieces": testRDMAReadPieces,
	"LongMessages": testLongMessages, "WriteThenSend": testWriteThenSend, "Fence": testFence, "ReadDepth": testReadDepth,
	"Unsignaled": testUnsignaled, "SignalAll": testSignalAll, "Batch": testBatch, "SendWithInv": testSendWithInv, "BothWays": testBothWays,
	"QueueFull": testQueueFull, "BadPosts": testBadPosts, "ShortReceive": testShortReceive, "BadLocalKey": testBadLocalKey,
	"BadRemote": testBadRemote, "WrongInvalidate": testWrongInvalidate, "RNRWaits": testRNRWaits, "RNRFails": testRNRFails,
	"FlushInOrder": testFlushInOrder, "PostAfterError": testPostAfterError, "PeerGone": testPeerGone, "PostNotConnected": testPostNotConnected,
	"WaitTimeout": testWaitTimeout, "Wake": testWake, "ArmThenWait": testArmThenWait, "CloseWakesWaiter": testCloseWakesWaiter,
	"NoLostWakeup": testNoLostWakeup, "WakeStress": testWakeStress, "ManyQueuesOneChannel": testManyQueuesOneChannel,
	"PollAtMost": testPollAtMost, "Resize": testResize,
}

// Run runs every test.
func Run(t *testing.T, env Env) {
	for _, name := range slices.Sorted(maps.Keys(Tests)) {
		t.Run(name, func(t *testing.T) { RunOne(t, name, env) })
	}
}

// RunOne runs one test and sees to it that nothing is left open.
func RunOne(t *testing.T, name string, env Env) {
	t.Cleanup(func() { // after the test's own
		if env.Leaks == nil || t.Failed() {
			return
		}
		if l := env.Leaks(); len(l) > 0 {
			t.Errorf("left open: %q", l)
		}
	})
	Tests[name](t, env.withDefaults())
}
