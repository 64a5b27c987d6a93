package softroce

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestIdentTrack: which identifications are believed.
func TestIdentTrack(t *testing.T) {
	const busy, day = time.Duration(0), 24 * time.Hour
	type step struct {
		id   ident
		idle time.Duration
		want bool
	}
	for name, steps := range map[string][]step{
		"first":           {{ident{id: 40000}, busy, true}},
		"counting":        {{ident{id: 65530}, busy, true}, {ident{id: 65535}, busy, true}, {ident{id: 3}, busy, true}},
		"a cut message":   {{ident{}, busy, true}, {ident{id: 47}, busy, true}, {ident{}, busy, true}},
		"out of order":    {{ident{id: 100}, busy, true}, {ident{id: 99}, busy, true}, {ident{id: 101}, busy, true}},
		"jump":            {{ident{id: 10}, busy, true}, {ident{id: 30000}, busy, false}, {ident{id: 30001}, busy, true}},
		"damage":          {{ident{id: 10}, busy, true}, {ident{id: 30000}, busy, false}, {ident{id: 11}, busy, false}, {ident{id: 11}, busy, true}},
		"other flag":      {{ident{}, busy, true}, {ident{mayFragment: true}, day, false}},
		"after a pause":   {{ident{id: 10}, busy, true}, {ident{id: 5000}, 2 * time.Second, true}},
		"too far":         {{ident{id: 10}, busy, true}, {ident{id: 9000}, 2 * time.Second, false}},
		"after long":      {{ident{id: 10}, busy, true}, {ident{id: 50000}, day, true}},
		"far back, pause": {{ident{id: 1000}, busy, true}, {ident{id: 10}, time.Second, false}},
	} {
		var tr identTrack
		for i, s := range steps {
			if got := tr.fits(s.id, func() time.Duration { return s.idle }); got != s.want {
				t.Errorf("%s: step %d: %+v: %t", name, i, s.id, got)
			}
		}
	}
}

// TestIdentTrackRandom: a peer with identifications at random is understood after a few packets, and for good.
func TestIdentTrackRandom(t *testing.T) {
	var tr identTrack
	rnd := rand.New(rand.NewPCG(3, 4))
	dropped := 0
	for range 10000 {
		if !tr.fits(ident{id: uint16(rnd.Uint32())}, func() time.Duration { return 0 }) {
			dropped++
		}
	}
	if dropped == 0 || dropped > 8 {
		t.Errorf("%d of 10000 dropped", dropped)
	}
}
