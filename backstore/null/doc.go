// Package null is a store without a medium: writes are discarded, reads return zeros. It shows the speed of everything
// above it.
package null
