package target

import (
	"fmt"

	"iserd/backstore"
	"iserd/backstore/file"
	"iserd/backstore/null"
	"iserd/backstore/ram"
)

// openStore opens the store of a specification. failed is told of what its medium fails, see [file.Config].
func openStore(spec StoreSpec, readOnly bool, failed func(error)) (backstore.Store, error) {
	switch spec.Kind {
	case "null":
		return null.New(spec.Size)
	case "ram":
		return ram.New(spec.Size)
	case "file":
		return file.Open(file.Config{Path: spec.Path, Size: spec.Size, ReadOnly: readOnly, Failed: failed})
	}
	return nil, fmt.Errorf("unknown store kind %q", spec.Kind)
}
