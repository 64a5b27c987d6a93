// Package archtest holds the map of the house against the import lines of every file: who may import whom, where cgo,
// unsafe and the logger may stand. It opens the files itself, for every build tag, so that no build constraint hides an
// arrow and no test cache a change. Test files are left out: they may use whatever they test with.
package archtest
