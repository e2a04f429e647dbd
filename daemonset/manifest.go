package daemonset

import _ "embed"

// Manifest is the content of nodens.yaml.
//
//go:embed base/nodens.yaml
var Manifest []byte
