package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/daemonset/monitoring"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/prometheus"
)

// scrapeTest is what the checks of this part share: a Prometheus in the control plane's
// network that is told of pods and endpoints as they are in the cluster.
type scrapeTest struct {
	// name is the name of its directory. change, if it is not nil, changes the rules.
	name    string
	change  func([]prometheus.Group)
	server  prometheus.Prometheus
	process *peer.Process
	alerts  []prometheus.Rule
	// restore puts the agents' Corefile back; nil if it was not changed.
	restore func(context.Context) error
}

// scraping returns the checks of the part scraping.
func scraping() []check {
	p := &scrapeTest{name: "prometheus"}
	return []check{
		{"the API server accepts the PodMonitor and the rules", p.checkResources},
		{"Prometheus discovers the agents by annotations", p.checkAnnotations},
		{"Prometheus discovers the agents by the PodMonitor", p.checkPodMonitor},
		{"ports 9253 and 9353 serve the setup metrics", p.checkSetupMetrics},
		{"rules load, and no alert fires for healthy agents", p.checkNoAlerts},
		{"a pod over client_limit is counted, and upstreams have a budget", p.limitClients},
		{"every panel of the dashboard has data", p.checkDashboard},
		{"CoreDNS and NodeLocal DNSCache dashboards have data", p.checkKnownDashboards},
		{"the agents' Corefile is restored", p.endLimits},
		{"alerts fire for a hanging agent and resolve", p.checkAlerts},
	}
}

// setupPortJob is the scrape job of the port 9353.
const setupPortJob = "port-9353"

// prometheusPort is where Prometheus is, in the control plane's network, in which nobody else
// has this port.
const prometheusPort = 9090

// start starts Prometheus, once.
func (p *scrapeTest) start(ctx context.Context, s *suite) error {
	if p.process != nil {
		return nil
	}
	dir := filepath.Join(s.dir, p.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config, err := p.configure(ctx, s, dir)
	if err != nil {
		return err
	}
	at := fmt.Sprintf("127.0.0.1:%d", prometheusPort)
	p.server = prometheus.Prometheus{URL: "http://" + at, Client: &http.Client{Transport: &http.Transport{DialContext: s.cluster.Dial}}}
	p.process, err = s.cluster.Spawn("prometheus", "prometheus", prometheus.PrometheusArgs(config, filepath.Join(dir, "data"), at)...)
	return err
}

// configure writes Prometheus' configuration and rules to dir.
func (p *scrapeTest) configure(ctx context.Context, s *suite, dir string) (file string, err error) {
	groups, err := prometheus.Rules(monitoring.PrometheusRule)
	if err != nil {
		return "", err
	}
	if p.change != nil {
		p.change(groups)
	}
	for _, g := range groups {
		p.alerts = append(p.alerts, slices.DeleteFunc(slices.Clone(g.Rules), func(r prometheus.Rule) bool { return r.Alert == "" })...)
	}
	jobs, err := scrapeJobs(ctx, s, dir)
	if err != nil {
		return "", err
	}
	file, rules := filepath.Join(dir, "prometheus.json"), filepath.Join(dir, "rules.json")
	config, err := prometheus.PrometheusConfig(jobs, rules)
	if err != nil {
		return "", err
	}
	text, err := prometheus.RuleFile(groups)
	return file, errors.Join(err, os.WriteFile(rules, text, 0o644), os.WriteFile(file, config, 0o644))
}

// scrapeJobs are those of the PodMonitor and of the annotations, and one of the port 9353.
func scrapeJobs(ctx context.Context, s *suite, dir string) ([]prometheus.ScrapeConfig, error) {
	jobs, err := prometheus.OperatorScrapeConfigs(monitoring.PodMonitor)
	if err != nil {
		return nil, err
	}
	jobs = append(jobs, prometheus.AnnotationScrapeConfigs()...)
	for i := range jobs {
		jobs[i].Interval = "" // the checks would wait for a minute
		if err := writeTargets(ctx, s, dir, &jobs[i]); err != nil {
			return nil, err
		}
	}
	setup := prometheus.ScrapeConfig{Name: setupPortJob, Static: []prometheus.StaticConfig{{}}}
	for _, n := range s.cluster.Nodes() {
		setup.Static[0].Targets = append(setup.Static[0].Targets, net.JoinHostPort(n.Addr, "9353"))
	}
	return append(jobs, setup), nil
}

// waitForSamples waits until the expression has a sample for each node, and returns them. Each value
// must be good.
func (p *scrapeTest) waitForSamples(ctx context.Context, s *suite, expr string, good func(float64) bool) (samples []prometheus.Sample, err error) {
	if err := p.start(ctx, s); err != nil {
		return nil, err
	}
	want := len(s.cluster.Nodes())
	err = p.process.Await(ctx, expr, func(ctx context.Context) error {
		samples, err = p.server.Query(ctx, expr)
		switch {
		case err != nil:
			return err
		case len(samples) != want:
			return fmt.Errorf("it has %d samples, not %d: %v", len(samples), want, samples)
		}
		for _, v := range samples {
			if !good(v.Value) {
				return fmt.Errorf("it is %v", samples)
			}
		}
		return nil
	})
	return samples, err
}

func isOne(v float64) bool { return v == 1 }

// checkResources asks the API server what it thinks of what users of the operator apply.
func (p *scrapeTest) checkResources(ctx context.Context, s *suite) (string, error) {
	if _, err := s.cluster.Kubectl(ctx, definitions, "apply", "--filename=-"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "wait", "--for=condition=Established", "customresourcedefinition", "--all", "--timeout=1m"); err != nil {
		return "", err
	}
	dir := filepath.Join(s.root, "daemonset", "monitoring")
	out, err := s.cluster.Kubectl(ctx, "", "apply", "--dry-run=server", "--validate=strict",
		"--filename="+filepath.Join(dir, "podmonitor.yaml"), "--filename="+filepath.Join(dir, "rules.yaml"))
	if n := strings.Count(out, "(server dry run)"); err == nil && n != 2 {
		err = fmt.Errorf("%d objects were taken, not 2:\n%s", n, out)
	}
	return "a PodMonitor, a PrometheusRule", err
}

func (p *scrapeTest) checkAnnotations(ctx context.Context, s *suite) (string, error) {
	var seen []string
	for _, job := range []string{"kubernetes-pods", "kubernetes-service-endpoints"} {
		samples, err := p.waitForSamples(ctx, s, fmt.Sprintf(`up{job=%q, pod=~"node-local-dns-.*"}`, job), isOne)
		if err != nil {
			return "", err
		}
		seen = append(seen, fmt.Sprintf("%d up in %s", len(samples), job))
	}
	return strings.Join(seen, ", "), nil
}

func (p *scrapeTest) checkPodMonitor(ctx context.Context, s *suite) (string, error) {
	samples, err := p.waitForSamples(ctx, s, fmt.Sprintf(`up{job=%q, namespace="kube-system"}`, prometheus.Job), isOne)
	if err != nil {
		return "", err
	}
	var seen []string
	for _, n := range s.cluster.Nodes() {
		at := net.JoinHostPort(n.Addr, "9253")
		if !slices.ContainsFunc(samples, func(v prometheus.Sample) bool { return v.Labels["node"] == n.Name && v.Labels["instance"] == at }) {
			return "", fmt.Errorf("no target is that of %s at %s: %v", n.Name, at, samples)
		}
		seen = append(seen, n.Name+" "+at)
	}
	return strings.Join(seen, ", "), nil
}

func (p *scrapeTest) checkSetupMetrics(ctx context.Context, s *suite) (string, error) {
	for _, job := range []string{prometheus.Job, setupPortJob} {
		const expr = `sum by (instance) (coredns_nodecache_setup_errors_total{job=%q})`
		if _, err := p.waitForSamples(ctx, s, fmt.Sprintf(expr, job), func(v float64) bool { return v == 0 }); err != nil {
			return "", err
		}
	}
	if _, err := p.waitForSamples(ctx, s, fmt.Sprintf(`nodens_netsetup_fail_open{job=%q}`, prometheus.Job), isOne); err != nil {
		return "", err
	}
	return "no setup error, rules fail open", nil
}

// checkNoAlerts evaluates what alerts are about, whatever time they wait before they fire.
func (p *scrapeTest) checkNoAlerts(ctx context.Context, s *suite) (string, error) {
	if err := p.start(ctx, s); err != nil {
		return "", err
	}
	if err := p.process.Await(ctx, "recorded series", func(ctx context.Context) error {
		if err := p.queryAgents(ctx, s, queriedNames...); err != nil {
			return err
		}
		samples, err := p.server.Query(ctx, "node:nodens_dns_servfail:ratio_rate5m == 0")
		if err == nil && len(samples) != len(s.cluster.Nodes()) {
			err = fmt.Errorf("no rate of failures for every node: %v", samples)
		}
		return err
	}); err != nil {
		return "", err
	}
	for _, r := range p.alerts {
		samples, err := p.server.Query(ctx, r.Expr)
		if err != nil {
			return "", err
		}
		// A busy machine has agents wait for a core, which is no fault of theirs and what this alert says.
		if len(samples) > 0 && r.Alert != "NodensSocketWaitHigh" {
			return "", fmt.Errorf("%s is about %v", r.Alert, samples)
		}
	}
	return fmt.Sprintf("%d alerts do not fire", len(p.alerts)), nil
}

func (p *scrapeTest) checkDashboard(ctx context.Context, s *suite) (string, error) {
	queries, err := prometheus.Queries(monitoring.Dashboard)
	if err != nil {
		return "", err
	}
	return p.waitForData(ctx, s, queries)
}

func (p *scrapeTest) checkKnownDashboards(ctx context.Context, s *suite) (string, error) {
	return p.waitForData(ctx, s, prometheus.CommunityQueries)
}

// headlessService is a Service whose endpoints come and go while the agents are scraped: how soon
// they are answered is one of the metrics.
const headlessService = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "e2e-scraping", "namespace": "kube-system"},
"spec": {"clusterIP": "None", "selector": {"k8s-app": "kube-dns"}, "ports": [{"port": 53}]}}`

// waitForData has the agents do what panels are about until all queries have data.
func (p *scrapeTest) waitForData(ctx context.Context, s *suite, queries []prometheus.Query) (seen string, err error) {
	if err := p.start(ctx, s); err != nil {
		return "", err
	}
	defer func() {
		_, gone := s.cluster.Kubectl(context.WithoutCancel(ctx), headlessService, "delete", "--filename=-", "--ignore-not-found")
		err = errors.Join(err, gone)
	}()
	left, verb, next := queries, "apply", "delete"
	err = p.process.Await(ctx, "all queries to have data", func(ctx context.Context) error {
		_, err := s.cluster.Kubectl(ctx, headlessService, verb, "--filename=-")
		if err == nil {
			verb, next = next, verb
			err = p.queryAgents(ctx, s, append(queriedNames, "fail.outside.test")...)
		}
		if err == nil {
			left, err = p.server.WithoutData(ctx, left)
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d of %d have none: %v", len(left), len(queries), left)
		}
		return err
	})
	return fmt.Sprintf("%d queries", len(queries)), err
}

// queriedNames are names that pods ask for: of the cluster and others, those that exist and
// those that don't.
var queriedNames = []string{"kubernetes.default.svc.cluster.local", "gone.default.svc.cluster.local", "www.outside.test", "nx.outside.test"}

// queryAgents has each agent answer over UDP and TCP, with the DO bit.
func (p *scrapeTest) queryAgents(ctx context.Context, s *suite, names ...string) error {
	for _, n := range s.cluster.Nodes() {
		for _, protocol := range []string{"+notcp", "+tcp"} {
			args := []string{"@" + localDNS, "+dnssec", "+noall", "+tries=1", protocol}
			if out, err := n.Command(ctx, "dig", append(args, names...)...).CombinedOutput(); err != nil {
				return fmt.Errorf("dig on %s: %w\n%s", n.Name, err, out)
			}
		}
	}
	return nil
}

// checkAlerts stops the process of an agent for a moment. It is the last check: Prometheus ends
// with it.
func (p *scrapeTest) checkAlerts(ctx context.Context, s *suite) (seen string, err error) {
	if p.process == nil {
		return "", errors.New("there is no Prometheus")
	}
	defer p.process.Stop()
	n := s.cluster.Nodes()[0]
	began := time.Now()
	if err := signalAgent(ctx, n, "STOP"); err != nil {
		return "", err
	}
	err = errors.Join(p.waitForAlerts(ctx, n.Name), signalAgent(context.WithoutCancel(ctx), n, "CONT"))
	hung := time.Since(began)
	if err == nil {
		err = p.waitForAlerts(ctx, "")
	}
	return fmt.Sprintf("NodensAgentDown and NodensFailOpenActive fired for %s, which hung for %.0f s", n.Name, hung.Seconds()), err
}

// signalAgent sends a signal to all processes of nodens on a node.
func signalAgent(ctx context.Context, n *cluster.Node, name string) error {
	out, err := n.Command(ctx, "sh", "-c", "kill -"+name+" $(pidof nodens)").CombinedOutput()
	if err != nil {
		return fmt.Errorf("sending %s to the agent of %s: %w\n%s", name, n.Name, err, out)
	}
	return nil
}

// waitForAlerts waits until the alerts on an agent that is away are about that node, or about
// none if it is empty.
func (p *scrapeTest) waitForAlerts(ctx context.Context, node string) error {
	return p.process.Await(ctx, "alerts about "+node, func(ctx context.Context) error {
		for _, r := range p.alerts {
			if r.Alert != "NodensAgentDown" && r.Alert != "NodensFailOpenActive" {
				continue
			}
			samples, err := p.server.Query(ctx, r.Expr)
			if err != nil {
				return err
			}
			if node == "" && len(samples) > 0 || node != "" && (len(samples) != 1 || samples[0].Labels["node"] != node) {
				return fmt.Errorf("%s is about %v", r.Alert, samples)
			}
		}
		return nil
	})
}
