// Package sessionconform holds the tests that every [initiator.Session] must pass, over whatever target the transport's
// own tests bring.
package sessionconform
