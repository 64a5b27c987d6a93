//go:build linux && cgo && !nordma

package verbs

// Built says that this build has the provider.
const Built = true
