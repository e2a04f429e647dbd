package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/peer"
)

// runForm brings the cluster into the form and runs the tests.
func (s *suite) runForm(ctx context.Context, r *release, f form) error {
	if err := s.set(ctx, r, f); err != nil {
		return err
	}
	began := time.Now()
	before, err := r.count(ctx)
	if err != nil {
		return err
	}
	got, err := s.runTests(ctx, r)
	if err != nil {
		return err
	}
	after, err := r.count(ctx)
	if err != nil {
		return err
	}
	result := result{
		version: r.version, form: f, report: got, took: time.Since(began),
		agentQueries: after.agents - before.agents, kernelQueries: after.kernel - before.kernel,
	}
	s.results = append(s.results, result)
	fmt.Println(result)
	return errors.Join(got.check(), r.checkAgents(ctx, f), result.checkQueries())
}

func (r result) String() string {
	return fmt.Sprintf("Kubernetes %s, %s: %d of %d tests passed, %d skipped, %.0f s; %.0f queries to the agents, %.0f answered in the kernel",
		r.version, r.form, r.report.passed, r.report.total()-len(r.report.skipped), len(r.report.skipped), r.took.Seconds(), r.agentQueries, r.kernelQueries)
}

// checkQueries returns an error if the tests did not ask the agents, so that something else was
// tested, or if the kernel answered with the kernel path off.
func (r result) checkQueries() error {
	if r.agentQueries <= 0 {
		return errors.New("the tests asked the agents nothing")
	}
	if !r.form.kernelPath && r.kernelQueries > 0 {
		return fmt.Errorf("the kernel answered %.0f queries with the kernel path off", r.kernelQueries)
	}
	return nil
}

// set brings CoreDNS and the agents into the form.
func (s *suite) set(ctx context.Context, r *release, f form) error {
	steps := [][]string{
		{"scale", "--namespace=kube-system", "deployment/coredns", "--replicas=0"},
		{"wait", "--namespace=kube-system", "--for=delete", "pod", "--selector=k8s-app=kube-dns", "--timeout=5m"},
	}
	if f.coreDNS {
		steps = [][]string{
			{"scale", "--namespace=kube-system", "deployment/coredns", "--replicas=2"},
			{"rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=5m"},
		}
	}
	overlay := "base"
	if f.kernelPath {
		overlay = "overlays/kernel-path"
	}
	steps = append(steps,
		[]string{"apply", "--kustomize=" + filepath.Join(s.manifests, overlay)},
		[]string{"rollout", "status", "--namespace=kube-system", "daemonset/node-local-dns", "--timeout=5m"},
	)
	for _, args := range steps {
		if _, err := r.cluster.Kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	// The tests wait for every pod of the namespace, and an agent that has handed over needs a
	// moment to end.
	return peer.Await(ctx, "the agents", func(ctx context.Context) error { return r.checkAgents(ctx, f) })
}

// checkAgents returns an error unless each node has one agent, with the form's kernel path.
func (r *release) checkAgents(ctx context.Context, f form) error {
	names, err := r.cluster.Kubectl(ctx, "", "get", "pods", "--namespace=kube-system", "--selector=k8s-app=node-local-dns", "--output=name")
	if err != nil {
		return err
	}
	nodes := r.cluster.Nodes()
	if n := len(strings.Fields(names)); n != len(nodes) {
		return fmt.Errorf("%d agents for %d nodes", n, len(nodes))
	}
	for _, n := range nodes {
		active, err := r.cluster.MetricSum(ctx, n, metricsPort, "nodens_kernel_path_active")
		if err != nil {
			return err
		}
		if on := active == 1; on != f.kernelPath {
			return fmt.Errorf("%s: kernel path active: %t, want %t", n.Name, on, f.kernelPath)
		}
	}
	return nil
}

// counts are queries that pods of all nodes have asked.
type counts struct{ agents, kernel float64 }

// count returns the counters of all agents.
func (r *release) count(ctx context.Context) (c counts, err error) {
	for _, n := range r.cluster.Nodes() {
		agent, err := r.cluster.MetricSum(ctx, n, metricsPort, "coredns_dns_requests_total")
		if err != nil {
			return c, err
		}
		kernel, err := r.cluster.MetricSum(ctx, n, metricsPort, "nodens_kernel_path_queries_total", `result="answered"`)
		if err != nil {
			return c, err
		}
		c.agents += agent
		c.kernel += kernel
	}
	return c, nil
}

// metricsPort is where the agents are scraped.
const metricsPort = 9253
