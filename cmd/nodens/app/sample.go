package app

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// sampleFiles are a Corefile and the manifests it serves: what `make run` shows.
//
//go:embed sample
var sampleFiles embed.FS

// sampleText is what a newcomer sees. Each line works when pasted, without a
// network.
const sampleText = `nodens answers on 127.0.0.1:5353, its metrics are on http://127.0.0.1:9253/metrics. Try:

  dig @127.0.0.1 -p 5353 +noall +answer web.shop.svc.cluster.local
  dig @127.0.0.1 -p 5353 +noall +answer _sql._tcp.db.shop.svc.cluster.local SRV
  dig @127.0.0.1 -p 5353 +noall +answer mirror.shop.svc.cluster.local AAAA

`

// sample runs the agent on the bundled files: without root, without a cluster.
func sample(ctx context.Context, opts *options, stdout, stderr io.Writer) error {
	dir, err := os.MkdirTemp("", "nodens-sample-")
	if err != nil {
		return fmt.Errorf("laying the sample out: %w; set TMPDIR to a folder that can be written to", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	files, err := fs.Sub(sampleFiles, "sample")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, files); err != nil {
		return fmt.Errorf("laying the sample out in %s: %w", dir, err)
	}
	// The Corefile names its manifests by this variable.
	if err := os.Setenv("NODENS_SAMPLE", filepath.Join(dir, "manifests")); err != nil {
		return err
	}
	opts.conf, opts.baseConf = filepath.Join(dir, "Corefile"), ""
	opts.localIPs, opts.metricsAddr = nil, ""
	fmt.Fprint(stdout, sampleText)
	return serve(ctx, opts, stderr)
}
