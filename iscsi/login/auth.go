package login

import "iserd/iscsi/pdu"

// KeyValue is one key=value pair.
type KeyValue struct{ Key, Value string }

// Authenticator proves the initiator in the security stage, and the target to it where the method can. It serves one
// login. Login without a proof is refused when the [Decision] has one.
type Authenticator interface {
	// Supports says that the authenticator can do a method of AuthMethod, by its name on the wire ("CHAP"). The first
	// supported one of the initiator's list is taken. "None" is asked too: an authenticator that says yes makes proof
	// optional.
	Supports(method string) bool
	// Step gets the security keys of one complete request, without AuthMethod, and answers them. It is called for the
	// first time with the method chosen and the keys that came with it (mostly none).
	Step(method string, keys []KeyValue) AuthStep
}

// AuthStep is the answer of an [Authenticator].
type AuthStep struct {
	// Answer goes out with the response.
	Answer []KeyValue
	// Done: the initiator is proven, and so is the target once Answer is out.
	Done bool
	// Status other than success refuses the login; Cause is for the log.
	Status Status
	Cause  string
}

const authNone = "None"

// authState is the security stage's part of a machine.
type authState struct {
	with Authenticator
	// method is the one agreed on, empty before.
	method string
	// done: nothing has to be proven any more.
	done bool
}

func (a *authState) begin(with Authenticator) {
	a.with = with
	a.done = with == nil || with.Supports(authNone)
}

// running says that a method has been agreed on and goes on.
func (a *authState) running() bool { return a.method != "" && a.method != authNone && !a.done }

// choose takes the first method of the initiator's list that can be done.
func (a *authState) choose(list string) bool {
	optional := a.done
	found := false
	pdu.EachValue([]byte(list), func(member []byte) bool {
		method := string(member)
		switch {
		case method == authNone && optional:
			a.method, found = method, true
		case method != authNone && a.with != nil && a.with.Supports(method):
			a.method, a.done, found = method, false, true
		}
		return !found
	})
	return found
}

// authenticate answers the security keys of a request.
func (m *Machine) authenticate(keys []KeyValue) *Result {
	rest := keys[:0:0]
	for _, kv := range keys {
		if kv.Key != "AuthMethod" {
			rest = append(rest, kv)
			continue
		}
		switch {
		case m.auth.method != "":
			// A repeat of the same list; note has refused another one.
			m.put(kv.Key, m.auth.method)
		case m.auth.choose(kv.Value) && (m.stage == pdu.StageSecurity || m.auth.method == authNone):
			m.put(kv.Key, m.auth.method)
		default:
			return m.failf(StatusAuthFailure, "AuthMethod=%s has no method that %s can be proven with", clip(kv.Value), m.names.InitiatorName)
		}
	}
	if !m.auth.running() {
		for _, kv := range rest {
			m.put(kv.Key, irrelevant)
		}
		return nil
	}
	step := m.auth.with.Step(m.auth.method, rest)
	if step.Status != StatusSuccess {
		return m.failf(step.Status, "%s", step.Cause)
	}
	m.auth.done = step.Done
	for _, kv := range step.Answer {
		m.put(kv.Key, kv.Value)
	}
	return nil
}

// leaveSecurity grants or withholds the way out of the security stage.
func (m *Machine) leaveSecurity() *Result {
	if !m.transit || m.auth.done {
		return nil
	}
	if m.auth.method == "" {
		return m.failf(StatusAuthFailure, "%s must prove itself and offers no AuthMethod", m.names.InitiatorName)
	}
	m.transit = false
	return nil
}
