package target

import (
	"fmt"

	"iserd/backstore"
	"iserd/backstore/file"
	"iserd/backstore/null"
	"iserd/backstore/ram"
)

// openStore opens the store of a specification.
func openStore(spec StoreSpec, readOnly bool) (backstore.Store, error) {
	switch spec.Kind {
	case "null":
		return null.New(spec.Size)
	case "ram":
		return ram.New(spec.Size)
	case "file":
		return file.Open(file.Config{Path: spec.Path, Size: spec.Size, ReadOnly: readOnly})
	}
	return nil, fmt.Errorf("unknown store kind %q", spec.Kind)
}
