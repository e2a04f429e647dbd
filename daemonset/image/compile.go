package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nodens-dns/nodens/daemonset/image/oci"
)

const (
	agentPath   = "usr/local/bin/nodens"
	licensePath = "usr/share/doc/nodens/LICENSE"
)

// compile returns the agent's layer and the modules linked into it. It blocks while the
// compiler runs: seconds, or a minute the first time.
func (s *settings) compile(ctx context.Context, a architecture) (oci.Layer, []module, error) {
	dir, err := os.MkdirTemp("", "nodens-image-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "nodens")
	// Without cgo the agent needs no libc. Without paths and VCS state the build is
	// reproducible.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", fmt.Sprintf("-s -w -X main.version=%s -X main.revision=%s", s.version, s.revision),
		"-o", out, "./cmd/nodens")
	cmd.Dir = s.top
	// The user's own settings of these variables would change the binary.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+a.name, "GOFLAGS=", "GOWORK=off",
		"GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("compiling the agent: %w\n%s", err, text)
	}
	binary, err := os.ReadFile(out)
	if err != nil {
		return nil, nil, err
	}
	modules, err := s.modules(ctx, binary, cmd.Env)
	if err != nil {
		return nil, nil, err
	}
	license, err := os.ReadFile(filepath.Join(s.top, "LICENSE"))
	if err != nil {
		return nil, nil, err
	}
	layer := oci.Layer{
		{Path: agentPath, Mode: 0o755, Body: binary},
		{Path: licensePath, Mode: 0o644, Body: license},
	}
	for _, m := range modules {
		layer = append(layer, m.licenseFiles...)
	}
	return layer, modules, nil
}
