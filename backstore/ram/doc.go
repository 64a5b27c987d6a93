// Package ram is a store in memory outside the Go heap. The contents live as long as the store. Reads can be served in
// place: see [backstore.Mapper].
package ram
