package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/cli"
	"github.com/nodens-dns/nodens/internal/report"
)

// sampleFiles are a Corefile and the manifests it serves, for `make run`.
//
//go:embed sample
var sampleFiles embed.FS

const (
	// samplePort is the default port of the sample: 53 needs root, and 5353 is mDNS's.
	samplePort = 1053
	// samplePage is the default address of the sample's page.
	samplePage = "127.0.0.1:8353"
	// sampleMetrics is the default address of the sample's metrics.
	sampleMetrics = "127.0.0.1:9253"
)

// sampleNames are the questions of the commands to try. README.md has the same commands.
var sampleNames = []string{
	"web.shop.svc.cluster.local",
	"db-0.db.shop.svc.cluster.local",
	"mirror.shop.svc.cluster.local",
	"dual.shop.svc.cluster.local AAAA",
}

// sampleCommands show what the agent knows of the pods that ask. --handover-dir follows each.
var sampleCommands = []string{"top", "advise", "explain api.example.test --from shop/checkout-5f6b7c8d9-m4q7z", "status"}

// sampleText returns what is printed when the sample serves: commands that work when pasted,
// without a network. program is the path of nodens, dir the hand-over directory with the admin socket; page may be "".
func sampleText(program string, port uint16, metrics, page, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "nodens answers on 127.0.0.1:%d, its metrics are on http://%s/metrics. Try:\n\n", port, metrics)
	for _, name := range sampleNames {
		fmt.Fprintf(&b, "  dig @127.0.0.1 -p %d +noall +answer %s\n", port, name)
	}
	b.WriteString("\nThree pods of the sample ask it, too. See who asks what, why, and what could be saved:\n\n")
	for _, command := range sampleCommands {
		fmt.Fprintf(&b, "  %s %s --handover-dir %s\n", program, command, dir)
	}
	if page != "" {
		fmt.Fprintf(&b, "\nor in a browser: http://%s/\n", page)
	}
	return b.String() + "\n"
}

func newSampleCommand() *cobra.Command {
	f := newAgentFlags()
	f.DNSPort, f.PrometheusAddr, f.Page = samplePort, sampleMetrics, netip.MustParseAddrPort(samplePage)
	cmd := &cobra.Command{
		Use:   "sample",
		Short: "Run the agent on a sample cluster, without root and without Kubernetes",
		Long: `Run the agent on 127.0.0.1 with a sample cluster, without root and without Kubernetes. When it
serves, it prints commands to try.`,
		Example: "  nodens sample\n  nodens sample --dns.port 1054 --prometheus-listen-address 127.0.0.1:9254",
		Args:    cli.NoArgs,
		RunE:    f.runE(runSample),
	}
	f.registerOnly(cmd.Flags(), "dns.port", "prometheus-listen-address", "log-format", "admin-socket", "cache-size", "handover-dir", "page")
	cmd.Flags().Lookup("dns.port").DefValue = strconv.Itoa(samplePort)
	cmd.Flags().Lookup("page").DefValue = samplePage
	return cmd
}

// runSample runs the agent on the embedded files, without root and without a cluster. It
// prints what to try once the agent serves.
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
	if f.HandoverDir == "" {
		f.HandoverDir = filepath.Join(dir, "handover")
		f.AdminSocket = cmp.Or(f.AdminSocket, filepath.Join(f.HandoverDir, report.DefaultSocketName))
	}
	f.NodeName = sampleNode
	ctx, stop := context.WithCancel(ctx)
	var pods sync.WaitGroup
	f.OnServing = func() {
		page := ""
		if f.Page.IsValid() {
			page = f.Page.String()
		}
		fmt.Fprint(stdout, sampleText(os.Args[0], f.DNSPort, f.PrometheusAddr, page, f.HandoverDir))
		pods.Go(func() { runSamplePods(ctx, f.DNSPort) })
		pods.Go(func() { runSampleNode(ctx, dir, stdout, stderr) })
	}
	err = runAgent(ctx, f, stdout, stderr)
	stop()
	pods.Wait()
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; the sample listens on port %d and on %s: choose others with --dns.port PORT and --prometheus-listen-address 127.0.0.1:PORT", err, f.DNSPort, f.PrometheusAddr)
	}
	return err
}

// sampleNode is the node of the sample's pods.
const sampleNode = "sample"

// samplePods are the sample's pods (sample/manifests/pods.yaml) and what they ask, so that `top`, `explain` and `advise`
// have something to show: a quiet pod, one whose search path makes four queries of one, and one that never asks twice
// for the same name.
var samplePods = []struct {
	addr  string
	every time.Duration
	// names are those of round n, fully qualified.
	names func(n int) []string
}{
	{"127.0.0.11", time.Second, func(int) []string {
		return []string{"db-0.db.shop.svc.cluster.local.", "db-1.db.shop.svc.cluster.local."}
	}},
	{"127.0.0.12", 300 * time.Millisecond, func(int) []string {
		const name = "api.example.test."
		return []string{name + "shop.svc.cluster.local.", name + "svc.cluster.local.", name + "cluster.local.", name}
	}},
	{"127.0.0.13", 100 * time.Millisecond, func(n int) []string { return []string{fmt.Sprintf("page-%d.crawl.example.test.", n)} }},
}

// runSamplePods asks as the sample's pods do, until ctx ends. It returns when all have stopped.
func runSamplePods(ctx context.Context, port uint16) {
	var pods sync.WaitGroup
	for _, p := range samplePods {
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(p.addr), 0))}
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "udp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
		}}
		pods.Go(func() {
			tick := time.NewTicker(p.every)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				for _, name := range p.names(n) {
					_, _ = resolver.LookupHost(ctx, name) // a denial is as good as an answer
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	pods.Wait()
}
