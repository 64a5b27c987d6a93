package login

import (
	"slices"

	"iserd/iscsi/pdu"
)

// KeyValue is one key=value pair.
type KeyValue struct{ Key, Value string }

// Authenticator proves the initiator in the security stage, and the target to it where the method can. It serves one
// login. Login without a proof is refused when the [Decision] has one.
type Authenticator interface {
	// Methods are the values of AuthMethod that will do, by their names on the wire ("CHAP"). The first of the
	// initiator's list that is among them is taken. With "None" among them proof is optional.
	Methods() []string
	// Step gets the security keys of one complete request, AuthMethod left out, and answers them. The first call comes
	// with the choice of the method and mostly has no keys. done says that the initiator is proven, and the target too
	// once the answer is out. A status other than success refuses the login, with a cause for the log.
	Step(method string, keys []KeyValue) (answer []KeyValue, done bool, status Status, cause string)
}

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
	a.done = a.supports(none)
}

// supports says that a method will do for this login.
func (a *authState) supports(method string) bool {
	if a.with == nil {
		return method == none
	}
	return slices.Contains(a.with.Methods(), method)
}

// running says that a method has been agreed on and goes on.
func (a *authState) running() bool { return a.method != "" && a.method != none && !a.done }

// choose takes the first method of the initiator's list that can be done.
func (a *authState) choose(list string) bool {
	found := false
	pdu.EachValue([]byte(list), func(member []byte) bool {
		if method := string(member); a.supports(method) {
			a.method, a.done, found = method, method == none, true
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
		case m.auth.choose(kv.Value) && (m.stage == pdu.StageSecurity || m.auth.method == none):
			m.put(kv.Key, m.auth.method)
		default:
			return m.failf(StatusAuthenticationFailure, "AuthMethod=%s has no method that %s can be proven with", clip(kv.Value), m.names.InitiatorName)
		}
	}
	if !m.auth.running() {
		for _, kv := range rest {
			m.put(kv.Key, irrelevant)
		}
		return nil
	}
	answer, done, status, cause := m.auth.with.Step(m.auth.method, rest)
	if status != StatusSuccess {
		return m.failf(status, "%s", cause)
	}
	m.auth.done = done
	for _, kv := range answer {
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
		return m.failf(StatusAuthenticationFailure, "%s must prove itself and offers no AuthMethod", m.names.InitiatorName)
	}
	m.transit = false
	return nil
}
