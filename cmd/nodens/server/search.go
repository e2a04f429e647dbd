package server

import "github.com/nodens-dns/nodens/internal/config"

// Search finishes the search path of a client here, in place of one query from it
// for each domain on the path.
type Search struct {
	cfg *config.Autopath
}

// NewSearch makes the search of cfg.
func NewSearch(cfg *config.Autopath) *Search { return &Search{cfg: cfg} }
