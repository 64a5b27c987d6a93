package softroce_test

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iserd/internal/iserclient"
	"iserd/rdma/rdmaconform"
	"iserd/rdma/softroce"
)

// network is a bad one.
type network struct {
	loss, twice, damage float64
	down                atomic.Bool
	mu                  sync.Mutex
	rnd                 *rand.Rand
	lost, damaged       int
}

func newNetwork(loss, twice, damage float64) *network {
	return &network{loss: loss, twice: twice, damage: damage, rnd: rand.New(rand.NewPCG(7, 7))}
}

func (n *network) arrive(b []byte) int {
	if n.down.Load() {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch x := n.rnd.Float64(); {
	case x < n.loss:
		n.lost++
		return 0
	case x < n.loss+n.twice:
		return 2
	case x < n.loss+n.twice+n.damage:
		n.damaged++
		b[n.rnd.IntN(len(b))] ^= byte(1 + n.rnd.IntN(255))
	}
	return 1
}

// badPair is a pair with the network between them, in both directions.
func badPair(t testing.TB, n *network) (tgt, ini *softroce.Provider, addr netip.Addr) {
	tgt, ini, addr = pair(t, 4096)
	softroce.SetNetwork(tgt, n.arrive)
	softroce.SetNetwork(ini, n.arrive)
	return tgt, ini, addr
}

// TestLoss: packets get lost, come twice and come damaged, and every byte is right all the same.
func TestLoss(t *testing.T) {
	for name, n := range map[string]*network{
		"loss 0.1 %": newNetwork(0.001, 0, 0), "loss 1 %": newNetwork(0.01, 0, 0), "loss 5 %": newNetwork(0.05, 0, 0),
		"twice 10 %": newNetwork(0, 0.1, 0), "damage 2 %": newNetwork(0, 0, 0.02), "all": newNetwork(0.01, 0.05, 0.01),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tgt, ini, addr := badPair(t, n)
			s := newStack(t, tgt, addr)
			c := s.open(ini, iserclient.Options{Timeout: time.Minute})
			verify(t, c)
			many(t, c)
			check(t, c.Logout())
			t.Logf("%d lost, %d damaged; target: %s; initiator: %s", n.lost, n.damaged, softroce.Counters(tgt), softroce.Counters(ini))
			if n.damaged > 20 && softroce.BadICRC(tgt)+softroce.BadICRC(ini) == 0 {
				t.Error("no ICRC was found wrong")
			}
		})
	}
}

// TestDisorder: packets overtake others, few or most of them, some are lost as well, and every byte is right.
func TestDisorder(t *testing.T) {
	for name, x := range map[string]struct{ late, loss float64 }{"few": {0.01, 0}, "many": {0.3, 0}, "most": {0.9, 0}, "with losses": {0.1, 0.01}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, from := loopback(), loopback()
			tgt := newProvider(t, softroce.Options{Addrs: []netip.Addr{addr}, MTU: 1024})
			ini := newProvider(t, softroce.Options{Addrs: []netip.Addr{from}, MTU: 1024})
			rnd := rand.New(rand.NewPCG(3, 3))
			var mu sync.Mutex
			share := func(part float64) func() bool {
				return func() bool {
					mu.Lock()
					defer mu.Unlock()
					return rnd.Float64() < part
				}
			}
			softroce.SetDisorder(tgt, addr, share(x.late), share(x.loss))
			softroce.SetDisorder(ini, from, share(x.late), share(x.loss))
			s := newStack(t, tgt, addr)
			c := s.open(ini, iserclient.Options{Timeout: time.Minute})
			began := time.Now()
			verify(t, c)
			many(t, c)
			check(t, c.Logout())
			t.Logf("%s; target: %s; initiator: %s", time.Since(began), softroce.Counters(tgt), softroce.Counters(ini))
			if x.late > 0.1 && tgt.Stats().Early+ini.Stats().Early == 0 {
				t.Error("no packet was kept for its turn")
			}
		})
	}
}

// TestConformLoss: what a program sees of operations does not change with losses. Behaviours that end in a NAK are not
// among them: the NAK may be lost, the queue pair that sent it is in error and says nothing more, and the peer sees
// silence.
func TestConformLoss(t *testing.T) {
	n := newNetwork(0.02, 0.02, 0)
	tgt, ini, addr := badPair(t, n)
	env := conformEnv(tgt, ini, addr)
	env.Rounds = 200
	for _, name := range []string{"Send", "SendPieces", "SendOrder", "RDMAWrite", "RDMARead", "LongMessages", "WriteThenSend", "Fence", "ReadDepth", "Unsignaled",
		"Batch", "BothWays", "RNRWaits", "NoLostWakeup", "ManyConnections"} {
		t.Run(name, func(t *testing.T) { rdmaconform.RunOne(t, name, env) })
	}
}

// TestOutage: a network that is down for two seconds is waited for.
func TestOutage(t *testing.T) {
	t.Parallel()
	n := newNetwork(0, 0, 0)
	tgt, ini, addr := badPair(t, n)
	s := newStack(t, tgt, addr)
	c := s.open(ini, iserclient.Options{Timeout: time.Minute})
	n.down.Store(true)
	time.AfterFunc(2*time.Second, func() { n.down.Store(false) })
	began := time.Now()
	verify(t, c)
	if d := time.Since(began); d < 1900*time.Millisecond || d > 15*time.Second {
		t.Errorf("took %s", d)
	}
	if softroce.Timeouts(ini) == 0 {
		t.Error("nothing was sent again")
	}
	check(t, c.Logout())
}

// TestOutageWithoutEnd: a peer that is gone is given up.
func TestOutageWithoutEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes fourteen seconds")
	}
	t.Parallel()
	n := newNetwork(0, 0, 0)
	tgt, ini, addr := badPair(t, n)
	s := newStack(t, tgt, addr)
	c := s.open(ini, iserclient.Options{Timeout: time.Minute})
	n.down.Store(true)
	began := time.Now()
	if _, err := c.Do(&iserclient.Command{CDB: make([]byte, 6)}); err == nil {
		t.Fatal("an answer without a network")
	}
	if d := time.Since(began); d < 5*time.Second || d > 40*time.Second {
		t.Errorf("given up after %s", d)
	}
}
