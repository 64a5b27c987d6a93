// Package faultstore is a test double: a store around another one that fails, delays, holds or runs out of space when
// it is told to.
package faultstore
