package counting

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/bench/harness"
	"github.com/nodens-dns/nodens/test/rig/testbed"
)

const (
	// policyCount is the number of DNSPolicies, and policyNames the number of names that each of them allows. They bind all pods of the node:
	// policyCount/podCount of them each.
	policyCount = 1000
	policyNames = 100
)

// comparison is two servers that differ in what they decide about a query: off decides nothing.
type comparison struct {
	name    string
	off, on harness.Server
	// bound is how many DNSPolicies bind a pod of the node.
	bound int
}

// The comparisons.
const (
	noPolicy    = "nodens, no policy"
	allPolicies = "nodens, 1,000 policies"
	oneRule     = "CoreDNS, acl with one rule"
	podRules    = "CoreDNS, acl with a pod's names"
)

// comparisons returns what is compared, with files in the folder.
func comparisons(dir string) []comparison {
	pods, policies := filepath.Join(dir, "pods.json"), filepath.Join(dir, "policies.json")
	agent := func(name, mode string, manifests ...string) harness.Server {
		return harness.Server{
			Name: name, Program: "nodens", Conf: "policies", Flags: []string{"-node-name", nodeName, "-dns-policies", mode},
			Scope: "kubernetes cluster.local {\n        manifests " + strings.Join(manifests, " ") + "\n    }",
		}
	}
	coreDNS := func(name, acl string) harness.Server {
		return harness.Server{Name: name, Program: "coredns", Conf: "policies", Scope: acl}
	}
	return []comparison{
		{noPolicy, agent("nodens", "off", pods), agent(noPolicy, "open", pods), 0},
		{allPolicies, agent("nodens", "off", pods), agent(allPolicies, "open", pods, policies), policyCount},
		{oneRule, coreDNS(harness.CoreDNS, ""), coreDNS(oneRule, "acl {\n        allow net 127.0.0.0/8\n        block\n    }"), 0},
		{podRules, coreDNS(harness.CoreDNS, ""), coreDNS(podRules, podACL()), 0},
	}
}

// allowed returns the names that the policy with the number i allows. The last policy of each pod has those that are asked for.
func allowed(i int) (names []string) {
	for j := range policyNames {
		names = append(names, fmt.Sprintf("n%d-%d.other.example", i, j))
	}
	if i >= policyCount-podCount {
		names[policyNames-2], names[policyNames-1] = "*.bench.example", "*."+testbed.Zone
	}
	return names
}

// podACL returns what the policies of one pod are in CoreDNS's words.
func podACL() string {
	var text strings.Builder
	for i := 0; i < policyCount; i += podCount {
		names := slices.Clone(allowed(i))
		for j, name := range names {
			names[j] = strings.TrimPrefix(name, "*.")
		}
		fmt.Fprintf(&text, "acl %s {\n        allow net 127.0.0.0/8\n    }\n    ", strings.Join(names, " "))
	}
	return text.String() + "acl {\n        block\n    }"
}

// policyObjects writes the manifests of the pods and the policies. Each pod has a label of its own. Of the pod that asks a node with the kernel
// path there is one more.
func policyObjects(dir string) error {
	write := func(name string, n int, object func(i int) any) error {
		var text strings.Builder
		for i := range n {
			line, err := json.Marshal(object(i))
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "%s\n---\n", line)
		}
		return os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o644)
	}
	type object = map[string]any
	err := write("pods.json", podCount+1, func(i int) any {
		addr, label := podAddr(i), i
		if i == podCount {
			addr, label = netip.MustParseAddr(testbed.PodIP4), 0
		}
		return object{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": object{"name": podName(i), "namespace": harness.Namespace, "labels": object{"pod": fmt.Sprint(label)}},
			"spec":     object{"nodeName": nodeName},
			"status":   object{"podIPs": []object{{"ip": addr.String()}}},
		}
	})
	if err != nil {
		return err
	}
	return write("policies.json", policyCount, func(i int) any {
		return object{
			"apiVersion": "nodens.dev/v1alpha1", "kind": "DNSPolicy",
			"metadata": object{"name": fmt.Sprint("policy-", i), "namespace": harness.Namespace},
			"spec":     object{"podSelector": object{"matchLabels": object{"pod": fmt.Sprint(i % podCount)}}, "allow": allowed(i)},
		}
	})
}

// policyWorkloads are what is asked, by all pods in turn: names that readers of sockets keep the replies of, more names than they keep, and
// at a rate at which times tell something.
func policyWorkloads() []harness.Workload {
	many, few := workloads()[0], workloads()[0]
	few.Size, few.QuerySet.Name = 100, "few names"
	many.Name, few.Name = "10,000 names, at saturation", "100 names, at saturation"
	steady := workloads()[2]
	steady.Name = steadyName
	return []harness.Workload{few, many, steady}
}

// steadyName is the workload whose times are in a table.
const steadyName = "10,000 names, 1,000 qps"

// policyRun measures pairs of servers that differ in policies.
type policyRun struct {
	*run
	out *PolicyReport
}

// PolicyReport is the result of the section about policies.
type PolicyReport struct {
	*harness.Report                               // the cells have the workload with the name of the comparison
	memory          harness.Results[memorySample] // by comparison
}

// cell returns where the samples of a comparison are.
func (c comparison) cell(row, workload string) harness.Cell {
	return harness.Cell{Server: row, Workload: c.name + ": " + workload}
}

// MeasurePolicies measures what it costs to decide which names a client may ask for. Nothing that it started runs when it returns.
func MeasurePolicies(ctx context.Context, p harness.Plan) (*PolicyReport, error) {
	var rows []harness.Server
	for _, c := range comparisons("") {
		rows = append(rows, c.off, c.on)
	}
	b, err := harness.New(p, slices.CompactFunc(rows, func(a, b harness.Server) bool { return a.Name == b.Name }))
	if err != nil {
		return nil, err
	}
	defer b.Close()
	b.Cluster, b.OwnClient = false, true
	m := &policyRun{&run{Run: b}, &PolicyReport{b.Report, harness.Results[memorySample]{}}}
	b.Choose(policyWorkloads())
	write := func(context.Context) error { return policyObjects(b.Dir) }
	queries := func(context.Context) error { return b.WriteQueries() }
	err = b.Steps(ctx, b.Build, write, b.SettleBesideServers, queries, m.rounds)
	b.Report.Workloads = nil // they have a table of their own
	return m.out, err
}

// rounds measures everything again and again.
func (b *policyRun) rounds(ctx context.Context) error {
	k, err := b.openKernel(ctx)
	if err != nil {
		return err
	}
	if k != nil {
		defer k.close()
	}
	for n := range b.Plan.Rounds {
		for _, c := range comparisons(b.Dir) {
			if !b.Only.Server(c.on) {
				continue
			}
			start := func(ctx context.Context, at int) (*harness.RunningServer, error) {
				return b.Start(ctx, []harness.Server{c.on, c.off}[at], true)
			}
			if err := b.withPair(ctx, n, start, func(ctx context.Context, p *pair) error { return b.measureComparison(ctx, p, c) }); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if k != nil && c.on.Program == "nodens" {
				if err := b.measureInKernel(ctx, k, n, c); err != nil {
					return fmt.Errorf("%s, inside the kernel: %w", c.name, err)
				}
			}
		}
	}
	return nil
}

// measures reports whether a workload is measured. CoreDNS is measured at the fixed rate only: at saturation the pods send more queries at once than its
// socket keeps.
func (c comparison) measures(w harness.Workload) bool {
	return c.on.Program == "nodens" || w.Name == steadyName
}

// measureComparison measures the workloads, and then the memory.
func (b *policyRun) measureComparison(ctx context.Context, p *pair, c comparison) error {
	if err := checkBound(ctx, p.agents[0], c); err != nil {
		return err
	}
	for _, w := range b.Workloads {
		if !c.measures(w) {
			continue
		}
		samples, err := b.sample(ctx, p, w)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", w.Name, err)
		}
		for i, row := range []string{onRow, offRow} {
			b.Add(c.cell(row, w.Name), p.round, samples[i], fmt.Sprintf("%.3f µs, p50 %.1f µs, p99 %.1f µs", samples[i].CPUPerQuery(), samples[i].P50(), samples[i].P99()))
		}
	}
	if c.on.Program != "nodens" {
		return nil
	}
	for i, row := range []string{onRow, offRow} {
		m, err := readMemory(ctx, p.agents[i].Any())
		if err != nil {
			return err
		}
		at := c.cell(row, "")
		b.out.memory[at] = append(b.out.memory[at], m)
	}
	return nil
}

// checkBound waits until the policies of a comparison bind the pods, and holds that they deny what they don't allow.
func checkBound(ctx context.Context, r *harness.RunningServer, c comparison) error {
	if c.bound == 0 {
		return nil
	}
	err := r.Any().Await(ctx, "the policies to bind the pods", func(ctx context.Context) error {
		text, err := get(ctx, r.Any().Metrics, "/metrics")
		if want := fmt.Sprintf("nodens_dns_policies{state=\"bound\"} %d\n", c.bound); err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("the metrics lack %q", want)
		}
		return err
	})
	if err != nil {
		return err
	}
	pod := dns.Client{Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: podAddr(0).AsSlice()}}}
	m, _, err := pod.ExchangeContext(ctx, new(dns.Msg).SetQuestion("denied.example.", dns.TypeA), harness.LoopbackAddr(r.Any().Port).String())
	if err == nil && m.Rcode != dns.RcodeRefused {
		err = fmt.Errorf("a name that no policy allows gets %s", dns.RcodeToString[m.Rcode])
	}
	return err
}

// measureInKernel measures the programs in the kernel.
func (b *policyRun) measureInKernel(ctx context.Context, k *kernelPair, round int, c comparison) error {
	servers := [2]harness.Server{c.on, c.off}
	for i := range servers {
		servers[i].Flags = append(slices.Clone(servers[i].Flags), "-kernel-path", "on")
	}
	sums, err := b.measurePrograms(ctx, k, round, servers)
	if err != nil {
		return err
	}
	for i, row := range []string{onRow, offRow} {
		b.Add(c.cell(row, kernelWorkload.Name), round, sums[i], fmt.Sprintf("%.3f µs", sums[i].CPUPerQuery()))
	}
	return nil
}
