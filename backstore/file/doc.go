// Package file is a store on a regular file or a block device, through the page cache.
//
// What may block runs on the store's own workers: a few when the medium is fast, more when it is slow, never one per
// request. Reads that are wholly in the page cache are answered at once (preadv2 with RWF_NOWAIT); on tmpfs, which has no
// slower medium below, everything is.
//
// # Durability
//
// FUA is RWF_DSYNC, a flush is fdatasync. When writing back fails, the kernel says so once per open file and then
// calls the lost pages clean. The store therefore gives the error to every flush that was submitted before it was
// found, and, if a FUA write found it, to the next flush as well.
//
// # Exclusion
//
// A regular file is locked (open file description lock: exclusive, or shared when read-only) and a block device is
// opened with O_EXCL, so that one medium is not exported twice, or mounted while it is exported.
package file
