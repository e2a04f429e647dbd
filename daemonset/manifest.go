package daemonset

import _ "embed"

// Manifest is nodens.yaml, as it is applied to a cluster.
//
//go:embed base/nodens.yaml
var Manifest []byte
