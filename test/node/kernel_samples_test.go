package node

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/server/kernelpath"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

// TestKernelSamples: answers in the kernel are counted for their client exactly, by result and search
// waste, and its names within what a sample of one in 64 leaves open, also if names alternate.
func TestKernelSamples(t *testing.T) {
	t.Parallel()
	l := newKernelNetwork(t)
	socket := filepath.Join(l.dir, "admin.sock")
	p := l.startInKernel("-admin-socket=" + socket)
	names := []string{"web.shop.svc.cluster.local.", "www.example.com.shop.svc.cluster.local."}
	c := l.client(l.pod, local4)
	const each = 6400 // a hundred samples
	for range each {
		for _, name := range names {
			c.ask(pack(question(name, dns.TypeA)), false)
		}
	}
	p.Must(t, "the agent to count all queries", func(ctx context.Context) error {
		var clients report.Clients
		if err := report.Ask(ctx, socket, http.MethodGet, "/clients", url.Values{"window": {"1h"}}, &clients); err != nil {
			return err
		}
		at := slices.IndexFunc(clients.Clients, func(c report.Client) bool { return slices.Contains(c.Addresses, testbed.PodIP4) })
		if at < 0 {
			return fmt.Errorf("no row of the pod: %+v", clients)
		}
		if n := clients.Clients[at].Total; n.NoError != each || n.NXDomain != each || n.Waste != each || n.Kernel < each/10 {
			return fmt.Errorf("counts of the pod: %+v", n)
		}
		return checkSampledNames(ctx, socket, names, each)
	})
}

// checkSampledNames checks that the pod has asked for each name about so often, by the agent's tables of names.
func checkSampledNames(ctx context.Context, socket string, names []string, each int) error {
	var r report.Names
	if err := report.Ask(ctx, socket, http.MethodGet, "/names", url.Values{"topic": {"client"}, "window": {"1h"}}, &r); err != nil {
		return err
	}
	count := make(map[string]int)
	for _, n := range r.Names {
		if n.Client.Address == testbed.PodIP4 {
			count[n.Name] = int(n.Queries)
		}
	}
	for _, name := range names {
		// The standard deviation is a tenth.
		if n := count[name]; r.KernelSample != kernelpath.SampleWeight || n < each*4/10 || n > each*16/10 {
			return fmt.Errorf("%d queries for %s, want about %d, of a sample of one in %d: %v", n, name, each, r.KernelSample, count)
		}
	}
	return nil
}
