//go:build !linux || !cgo || nordma

package verbs

import (
	"fmt"

	"iserd/rdma"
)

// New says that this build has no RDMA.
func New(Options) (rdma.Provider, error) {
	return nil, fmt.Errorf("%w: built without RDMA: rebuild on Linux with cgo and libibverbs-dev librdmacm-dev, without the tag nordma",
		rdma.ErrUnsupported)
}
