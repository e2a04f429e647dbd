package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/prometheus"
)

//go:embed testdata/attribution.yaml
var attributionYAML string

const (
	// nonsenseNS has the Deployment that asks for a name that does not exist, so that its resolver tries it with
	// the three domains of the search path. The one in orderlyNS asks for a name that exists.
	nonsenseNS, orderlyNS = "nonsense", "orderly"
	// nonsenseParent is the parent of the names that its search path makes.
	nonsenseParent = "*.nx.outside.test.nonsense.svc.cluster.local."
)

// attributionManifest returns the manifest of both Deployments.
func attributionManifest() string {
	one := func(ns, name string) string {
		return strings.NewReplacer("NAMESPACE", ns, "NAME", name).Replace(attributionYAML)
	}
	return one(nonsenseNS, "www.nx.outside.test") + "---\n" + one(orderlyNS, "kubernetes.default.svc."+cluster.Domain+".")
}

// nonsenseAlerts are the alerts that must fire for the Deployment.
func nonsenseAlerts() []string { return []string{"NodensClientNXDomainHigh", "NodensSearchWasteHigh"} }

// attributionTest is what the checks of the part attribution share.
type attributionTest struct {
	prometheus scrapeTest
	// asker is the name of the Deployment's pod, node its node, and agent the agent's pod there.
	asker, node, agent string
}

// attribution returns the checks of the part attribution.
func attribution() []check {
	a := &attributionTest{prometheus: scrapeTest{name: "prometheus-clients", change: shortenAlerts}}
	return []check{
		{"a Deployment asks for names that do not exist", a.start},
		{"nodens top names its pod, workload, namespace and names", a.checkTop},
		{"the page names it, through kubectl port-forward", a.checkPage},
		{"nodens status and plan describe the agent beside it", a.checkStatus},
		{"an annotation gives the other namespace series by workload", a.checkAnnotation},
		{"Prometheus fires the alerts about it, and about no other client", a.checkAlerts},
	}
}

// start creates the Deployments and starts Prometheus.
func (a *attributionTest) start(ctx context.Context, s *suite) (string, error) {
	if _, err := s.cluster.Kubectl(ctx, attributionManifest(), "apply", "--filename=-"); err != nil {
		return "", err
	}
	if err := a.prometheus.start(ctx, s); err != nil {
		return "", err
	}
	for _, ns := range []string{nonsenseNS, orderlyNS} {
		if _, err := s.cluster.Kubectl(ctx, "", "rollout", "status", "--namespace="+ns, "deployment/asker", "--timeout=2m"); err != nil {
			return "", err
		}
	}
	const pod = "--output=jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}"
	out, err := s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace="+nonsenseNS, pod)
	if err != nil {
		return "", err
	}
	var ok bool
	if a.asker, a.node, ok = strings.Cut(strings.TrimSpace(out), " "); !ok {
		return "", fmt.Errorf("there is no pod: %q", out)
	}
	out, err = s.cluster.Kubectl(ctx, "", "get", "pods", "--namespace="+agentNamespace, "--selector=k8s-app="+agentDaemonSet,
		"--field-selector=spec.nodeName="+a.node, "--output=jsonpath={.items[0].metadata.name}")
	a.agent = strings.TrimSpace(out)
	return "on " + a.node, err
}

// checkTop reads the tables of `nodens top` in the agent's pod.
func (a *attributionTest) checkTop(ctx context.Context, s *suite) (seen string, err error) {
	if a.agent == "" {
		return "", errors.New("there is no pod that asks")
	}
	for _, row := range [][2]string{{"namespace", nonsenseNS}, {"workload", nonsenseNS + "/asker"}, {"pod", nonsenseNS + "/" + a.asker}} {
		by, name := row[0], row[1]
		err := peer.Await(ctx, "nodens top --by "+by, func(ctx context.Context) error {
			rows, err := a.top(ctx, s, "--by", by, "--window", "10s", "--sort", "nxdomain")
			if err != nil {
				return err
			}
			seen, err = checkNonsense(rows, by, name)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return seen, peer.Await(ctx, "the parent of the names in nodens top", func(ctx context.Context) error {
		rows, err := a.top(ctx, s, "--by", "name", "--topic", "waste")
		if err == nil && !slices.ContainsFunc(rows, func(row map[string]string) bool { return row["NAME"] == nonsenseParent }) {
			err = fmt.Errorf("no row for %s: %v", nonsenseParent, rows)
		}
		return err
	})
}

// checkNonsense checks that the first row is the nonsense, and returns its numbers.
func checkNonsense(rows []map[string]string, by, name string) (seen string, err error) {
	if len(rows) == 0 || rows[0][strings.ToUpper(by)] != name {
		return "", fmt.Errorf("the first row is not %s: %v", name, rows)
	}
	first := rows[0]
	for column, least := range map[string]float64{"NXDOMAIN": 99, "WASTE": 70} {
		share, err := strconv.ParseFloat(strings.TrimSuffix(first[column], "%"), 64)
		if err != nil || share < least {
			return "", fmt.Errorf("%s is %q, want %v%% or more (%w)", column, first[column], least, err)
		}
	}
	if !strings.Contains(first["TOP-NAME"], "nx.outside.test.") {
		return "", fmt.Errorf("the name that is asked for most is %q", first["TOP-NAME"])
	}
	for _, row := range rows[1:] {
		if strings.HasPrefix(row[strings.ToUpper(by)], orderlyNS) && row["NXDOMAIN"] != "0.0%" {
			return "", fmt.Errorf("the orderly client has NXDOMAIN: %v", row)
		}
	}
	return fmt.Sprintf("%s: %s queries/s, NXDOMAIN %s, WASTE %s", name, first["QPS"], first["NXDOMAIN"], first["WASTE"]), nil
}

// top runs `nodens top` in the agent's pod, and returns the rows by the columns' titles.
func (a *attributionTest) top(ctx context.Context, s *suite, args ...string) (rows []map[string]string, err error) {
	out, err := s.cluster.Exec(ctx, agentNamespace, a.agent, append([]string{"nodens", "top"}, args...)...)
	if err != nil {
		return nil, err
	}
	_, table, _ := strings.Cut(out, "\n\n")
	titles, table, _ := strings.Cut(table, "\n")
	columns := gap.Split(titles, -1)
	for line := range strings.Lines(table) {
		fields := gap.Split(strings.TrimSpace(line), -1)
		if len(fields) != len(columns) {
			continue // how many more there are
		}
		row := make(map[string]string)
		for i, column := range columns {
			row[column] = fields[i]
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// gap is what is between two columns.
var gap = regexp.MustCompile(` {2,}`)

// shortenAlerts makes alerts fire after seconds: rates are of the last ten seconds instead of five minutes, and an
// alert waits for two seconds before it fires. Its condition stays.
func shortenAlerts(groups []prometheus.Group) {
	for _, g := range groups {
		for i := range g.Rules {
			r := &g.Rules[i]
			r.Expr = strings.ReplaceAll(r.Expr, "[5m]", "[10s]")
			if r.For != "" {
				r.For = "2s"
			}
		}
	}
}

// checkAlerts waits until Prometheus itself fires the alerts. It is the last check: Prometheus and the
// Deployments end with it.
func (a *attributionTest) checkAlerts(ctx context.Context, s *suite) (seen string, err error) {
	defer func() {
		_, gone := s.cluster.Kubectl(context.WithoutCancel(ctx), attributionManifest(), "delete", "--filename=-", "--wait=false")
		err = errors.Join(err, gone)
	}()
	p := &a.prometheus
	if p.process == nil || a.node == "" {
		return "", errors.New("there is no Prometheus, or no pod that asks")
	}
	defer p.process.Stop()
	for _, alert := range nonsenseAlerts() {
		err := p.process.Await(ctx, alert, func(ctx context.Context) error {
			samples, err := p.server.Query(ctx, fmt.Sprintf("ALERTS{alertname=%q, alertstate=%q}", alert, "firing"))
			switch {
			case err != nil:
				return err
			case len(samples) != 1 || samples[0].Labels["namespace"] != nonsenseNS || samples[0].Labels["node"] != a.node:
				return fmt.Errorf("it fires for %v", samples)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s fire for namespace %s on %s", strings.Join(nonsenseAlerts(), " and "), nonsenseNS, a.node), nil
}
