package softroce

import "time"

// ident is what the ICRC tells of a packet's IPv4 header: zero is identification 0, not to be fragmented.
type ident struct {
	id          uint16
	mayFragment bool
}

// identTrack makes the check of the ICRC over IPv4 as strong as a peer allows. Senders count the identification up: Linux
// within a message that it cuts, and by no more than a tick each and the time that has passed in between for others. A
// packet whose identification fits nothing before it is most likely a damaged one, whose ICRC can be explained by chance,
// and is dropped; if it was a jump after all, the peer repeats it, and goes on from there. A peer that keeps jumping is
// believed.
type identTrack struct {
	last  ident
	known bool
	jumps uint8 // rises with each jump, falls with each packet that fits
}

const (
	identBack    = 64   // packets that came out of order
	identAhead   = 1024 // packets that took another way
	identTicks   = 4    // per millisecond, at most
	jumpCost     = 8
	jumpBelieved = 4 * jumpCost
)

// fits says whether a packet with that identification is to be believed. idle is for how long nothing was heard, at
// least; it is asked for only when it matters.
func (t *identTrack) fits(i ident, idle func() time.Duration) bool {
	ahead := i.id - t.last.id
	near := ahead < identAhead || -ahead <= identBack
	ok := !t.known || i.mayFragment == t.last.mayFragment && (near || time.Duration(ahead) < identTicks*idle()/time.Millisecond)
	t.last, t.known = i, true
	if ok {
		if t.jumps > 0 {
			t.jumps--
		}
		return true
	}
	t.jumps = min(t.jumps+jumpCost, 2*jumpBelieved)
	return t.jumps > jumpBelieved
}
