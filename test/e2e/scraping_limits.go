package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/prometheus"
)

const (
	// limitedNS has the Deployment that asks for more than limitedCorefile allows.
	limitedNS = "limited"
	// limitedRate is the rate of client_limit, and budgetRate the one of max_rate, which is not reached.
	limitedRate, budgetRate = 5, 900
)

// limitedCorefile returns the agents' Corefile with a limit for each client that asks for names outside of the
// cluster, and with a budget for their upstreams.
func limitedCorefile(corefile string) (string, error) {
	const line = "    forward . __PILLAR__UPSTREAM__SERVERS__\n"
	if strings.Count(corefile, line) != 1 {
		return "", fmt.Errorf("the agents' Corefile is not the one of daemonset/nodens.yaml:\n%s", corefile)
	}
	limits := fmt.Sprintf("    client_limit %d\n    forward . __PILLAR__UPSTREAM__SERVERS__ {\n        max_rate %d\n    }\n", limitedRate, budgetRate)
	return strings.Replace(corefile, line, limits, 1), nil
}

// limitClients changes the agents' Corefile, starts the Deployment, and waits until it is limited and the agents have
// the budget.
func (p *scrapeTest) limitClients(ctx context.Context, s *suite) (string, error) {
	if err := p.start(ctx, s); err != nil {
		return "", err
	}
	h := new(chaosTest)
	if err := h.connect(ctx, s); err != nil {
		return "", err
	}
	corefile, err := limitedCorefile(h.corefile)
	if err != nil {
		return "", err
	}
	p.restore = func(ctx context.Context) error { return h.setCorefile(ctx, h.corefile) }
	deployment := strings.NewReplacer("NAMESPACE", limitedNS, "NAME", "www.outside.test.").Replace(attributionYAML)
	if _, err = s.cluster.Kubectl(ctx, deployment, "apply", "--filename=-"); err == nil {
		err = h.setCorefile(ctx, corefile)
	}
	if err != nil {
		return "", err
	}
	if err := p.awaitBudgets(ctx, s, len(s.cluster.Nodes())); err != nil {
		return "", err
	}
	return p.waitForLimited(ctx)
}

// refreshInterval is the time between two requests to reload the agents.
const refreshInterval = 2 * time.Second

// awaitBudgets waits until n agents have the budget, and makes them reload meanwhile.
func (p *scrapeTest) awaitBudgets(ctx context.Context, s *suite, n int) error {
	expr := fmt.Sprintf(`max by (node) (nodens_upstream_budget_limit{job=%q}) == %d`, prometheus.Job, budgetRate)
	var refreshed time.Time
	return p.process.Await(ctx, fmt.Sprintf("%d agents with a budget", n), func(ctx context.Context) error {
		samples, err := p.server.Query(ctx, expr)
		if err == nil && len(samples) != n {
			err = fmt.Errorf("there are %v", samples)
		}
		if err != nil && time.Since(refreshed) >= refreshInterval {
			refreshed = time.Now()
			err = errors.Join(err, s.reloadAgents(ctx))
		}
		return err
	})
}

// reloadAgents makes the kubelets refresh the volumes of the agents' pods, which they otherwise do once a minute: they
// do it when the annotations of a pod change. Then it makes the agents check their Corefiles, which they otherwise do
// every 30 to 45 seconds; the part names waits for that.
func (s *suite) reloadAgents(ctx context.Context) error {
	_, err := s.cluster.Kubectl(ctx, "", "annotate", "pods", "--namespace="+agentNamespace, "--selector=k8s-app="+agentDaemonSet,
		"--overwrite", "refreshed="+time.Now().UTC().Format("150405.000"))
	for _, n := range s.cluster.Nodes() {
		err = errors.Join(err, signalAgent(ctx, n, "USR1"))
	}
	return err
}

// waitForLimited waits until Prometheus has limited queries of the Deployment's namespace, and of no other one.
func (p *scrapeTest) waitForLimited(ctx context.Context) (seen string, err error) {
	const limited = `sum by (namespace) (increase(nodens_client_limited_total{job=%q, reason="client_limit"}[1m])) > 0`
	err = p.process.Await(ctx, "limited queries of "+limitedNS, func(ctx context.Context) error {
		samples, err := p.server.Query(ctx, fmt.Sprintf(limited, prometheus.Job))
		switch {
		case err != nil:
			return err
		case len(samples) != 1 || samples[0].Labels["namespace"] != limitedNS:
			return fmt.Errorf("limited are %v", samples)
		}
		seen = fmt.Sprintf("%.0f queries of %s in a minute", samples[0].Value, limitedNS)
		return nil
	})
	return seen, err
}

// endLimits restores the Corefile, and waits until the agents have no budget any more.
func (p *scrapeTest) endLimits(ctx context.Context, s *suite) (string, error) {
	if p.restore == nil {
		return "", errors.New("the Corefile was not changed")
	}
	_, err := s.cluster.Kubectl(ctx, "", "delete", "namespace", limitedNS, "--wait=false")
	if err = errors.Join(err, p.restore(ctx)); err != nil {
		return "", err
	}
	return "", p.awaitBudgets(ctx, s, 0)
}
