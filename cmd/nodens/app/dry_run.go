package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/report"
)

// DryRun explains queries with an agent that is not started: it listens nowhere, asks no upstream and no API server, and changes
// nothing on the node.
type DryRun struct{ agent *agent }

// NewDryRun returns a DryRun of an agent with those flags and cfg, which is not changed. manifests are the files and folders that
// the cluster's names come from. If cfg was read on another machine ([config.Options.OffNode]), offNode says so: hosts files have
// no names then, and only plain DNS is served.
func NewDryRun(opts options.Agent, cfg *config.Config, manifests []string, offNode bool) (*DryRun, error) {
	opts.SetupInterface, opts.SetupIptables, opts.KernelPath = false, false, options.KernelPathOff
	opts.HandoverDir, opts.ClientMetrics, opts.NodeName = "", options.ClientMetricsNamespace, dryNode
	log, err := openLog(opts.LogFormat, io.Discard, new(slog.LevelVar))
	if err != nil {
		return nil, err
	}
	defer log.queue.Close(flushTimeout)
	a, err := newAgent(&opts, &log, new(slog.LevelVar))
	if err != nil {
		return nil, err
	}
	a.dry = true
	with := *cfg
	with.Blocks = dryBlocks(cfg.Blocks, manifests, offNode)
	if len(with.Blocks) == 0 {
		return nil, errors.New("no server block takes plain DNS")
	}
	g, err := a.builder.build(&with, nil)
	if err != nil {
		return nil, fmt.Errorf("%w; give --conf on a machine that has the file", err)
	}
	a.current.Store(g)
	return &DryRun{a}, nil
}

// dryNode is the name of the node of a DryRun.
const dryNode = "dry-run"

// dryBlocks returns copies of blocks that need neither an API server nor files of another machine.
func dryBlocks(blocks []*config.Block, manifests []string, offNode bool) (list []*config.Block) {
	for _, block := range blocks {
		b := *block
		if k := b.Kubernetes; k != nil {
			local := *k
			local.Endpoint, local.TLS, local.Kubeconfig, local.Context, local.Save, local.Multicluster = "", nil, "", "", "", nil
			if len(k.Manifests) == 0 || offNode {
				local.Manifests = slices.Clone(manifests)
			}
			b.Kubernetes = &local
		}
		if offNode && b.Transport != config.PlainDNS {
			continue
		}
		if h := b.Hosts; h != nil && offNode {
			local := *h
			local.File = "" // no file
			b.Hosts = &local
		}
		list = append(list, &b)
	}
	return list
}

// Explain returns what the agent would do with a query. values are the parameters of /explain on the admin socket.
func (d *DryRun) Explain(values url.Values) (*report.Explanation, error) {
	q, err := d.agent.parseExplain(values)
	if err != nil {
		return nil, err
	}
	return d.agent.explain(context.Background(), q), nil
}
