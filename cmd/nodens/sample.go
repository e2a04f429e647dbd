package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
)

// sampleFiles are a Corefile and the manifests it serves, for `make run`.
//
//go:embed sample
var sampleFiles embed.FS

// sampleText lists commands to try. Each works when pasted, without a network.
const sampleText = `nodens answers on 127.0.0.1:5353, its metrics are on http://127.0.0.1:9253/metrics. Try:

  dig @127.0.0.1 -p 5353 +noall +answer web.shop.svc.cluster.local
  dig @127.0.0.1 -p 5353 +noall +answer _sql._tcp.db.shop.svc.cluster.local SRV
  dig @127.0.0.1 -p 5353 +noall +answer mirror.shop.svc.cluster.local AAAA

`

func newSampleCommand() *cobra.Command {
	f := newAgentFlags()
	cmd := &cobra.Command{
		Use:     "sample",
		Short:   "Run the agent on a sample cluster, without root and without Kubernetes",
		Example: "  nodens sample",
		Args:    cli.NoArgs,
		RunE:    f.runE(runSample),
	}
	f.registerOnly(cmd.Flags(), "dns.port", "log-format", "admin-socket", "cache-size", "handover-dir")
	return cmd
}

// runSample runs the agent on the embedded files, without root and without a cluster.
func runSample(ctx context.Context, f *agentFlags, stdout, stderr io.Writer) error {
	dir, err := os.MkdirTemp("", "nodens-sample-")
	if err != nil {
		return fmt.Errorf("copying the sample: %w; set TMPDIR to a writable directory", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	files, err := fs.Sub(sampleFiles, "sample")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, files); err != nil {
		return fmt.Errorf("copying the sample to %s: %w", dir, err)
	}
	// The Corefile names its manifests by this variable.
	if err := os.Setenv("NODENS_SAMPLE", filepath.Join(dir, "manifests")); err != nil {
		return err
	}
	f.Conf, f.BaseConf, f.PreferBaseConf = filepath.Join(dir, "Corefile"), "", false
	f.LocalIPs, f.MetricsAddr = nil, ""
	fmt.Fprint(stdout, sampleText)
	return runAgent(ctx, f, stdout, stderr)
}
