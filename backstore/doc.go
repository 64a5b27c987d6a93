// Package backstore states what a store is: bytes at offsets. The stores are in the packages below it.
//
// A store answers a request at once, on the caller's goroutine, where the data is in memory (null, ram), and later, from
// its own fixed set of workers, where it may block (file). It never makes a goroutine per request.
//
// # Durability
//
// A write that completed with FUA, and every write that completed before an OpFlush was submitted that completed, is on
// the medium. An error of the medium is reported to the request that met it; a flush that failed says so.
package backstore
