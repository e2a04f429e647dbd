package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/peer"
)

// checkStatus reads `nodens status` and `nodens plan` in the agent's pod.
func (a *attributionTest) checkStatus(ctx context.Context, s *suite) (string, error) {
	if a.agent == "" {
		return "", errors.New("there is no pod that asks")
	}
	out, err := s.cluster.Exec(ctx, agentNamespace, a.agent, "nodens", "status", "-o", "json")
	if err != nil {
		return "", err
	}
	var st report.Status
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	for _, x := range []struct {
		what string
		ok   bool
	}{
		{"healthy", st.Healthy},
		{"its node", st.Node == a.node},
		{"served by the agent", len(st.ServedBy) > 0 && st.ServedBy[0].By == report.ServedByAgent},
		{"fail-open active", st.FailOpen.Capable && st.FailOpen.Active},
		{"limits", len(st.Limits) > 0},
		{"a synced view without gaps", st.View != nil && st.View.Synced && len(st.View.Gaps.Unlisted)+len(st.View.Gaps.Failing) == 0},
	} {
		if !x.ok {
			return "", fmt.Errorf("not %s: %s", x.what, out)
		}
	}
	return fmt.Sprintf("fail-open active (%s), %d limits, the fullest %s", st.FailOpen.Rules, len(st.Limits), st.Limits[0].Name),
		a.checkPlan(ctx, s, st.FailOpen.Rules)
}

// checkPlan reads `nodens plan` in the agent's pod.
func (a *attributionTest) checkPlan(ctx context.Context, s *suite, backend string) error {
	out, err := s.cluster.Exec(ctx, agentNamespace, a.agent, "nodens", "plan")
	if err != nil {
		return err
	}
	for _, want := range []string{"running on " + a.node, "address   169.254.20.10/32", "rules     " + backend} {
		if !strings.Contains(out, want) {
			return fmt.Errorf("%q is not in\n%s", want, out)
		}
	}
	return nil
}

// checkAnnotation gives the other Deployment's namespace series by workload, and takes them back.
func (a *attributionTest) checkAnnotation(ctx context.Context, s *suite) (seen string, err error) {
	if a.prometheus.process == nil {
		return "", errors.New("there is no Prometheus")
	}
	const annotation = "nodens.dev/client-metrics"
	annotate := func(ctx context.Context, arg string) error {
		_, err := s.cluster.Kubectl(ctx, "", "annotate", "namespace", orderlyNS, arg)
		return err
	}
	defer func() { err = errors.Join(err, annotate(context.WithoutCancel(ctx), annotation+"-")) }()
	if err := annotate(ctx, annotation+"=workload"); err != nil {
		return "", err
	}
	const workload = "Deployment/asker"
	return "workload " + workload, peer.Await(ctx, "the series of the workload", func(ctx context.Context) error {
		samples, err := a.prometheus.server.Query(ctx, fmt.Sprintf("nodens_client_queries_total{job=%q, workload=%q}", "node-local-dns", workload))
		switch {
		case err != nil:
			return err
		case len(samples) == 0:
			return errors.New("no series has a workload")
		}
		for _, x := range samples {
			if x.Labels["namespace"] != orderlyNS {
				return fmt.Errorf("a series of another namespace: %v", x.Labels)
			}
		}
		return nil
	})
}
