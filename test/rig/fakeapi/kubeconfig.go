package fakeapi

import (
	"fmt"
	"os"
)

// WriteKubeconfig writes a kubeconfig file to path, for a server at the URL with a certificate of the CA
// in the file root.
func WriteKubeconfig(path, url, root string) error {
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, url, root)
	return os.WriteFile(path, []byte(text), 0o600)
}
