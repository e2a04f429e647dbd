package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// roleManifest returns daemonset/kubectl-nodens.yaml.
func roleManifest(s *suite) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.root, "daemonset", "kubectl-nodens.yaml"))
	return string(text), err
}

// checkRights applies the Role. Its user sees all nodes, another one is told what is missing.
func (t *incidentTest) checkRights(ctx context.Context, s *suite) (string, error) {
	role, err := roleManifest(s)
	if err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, role, "apply", "--filename=-"); err != nil {
		return "", err
	}
	if err := t.awaitStatus(ctx, s, func(*report.ClusterStatus) error { return nil }); err != nil {
		return "", err
	}
	for _, n := range s.cluster.Nodes() {
		if err := t.showWith(ctx, s, "status", "\n"+n.Name+" "); err != nil {
			return "", err
		}
	}
	return "both nodes; without it: " + refusal, t.checkRefused(ctx, s)
}

// refusal is what kubectl says to a user without the Role.
const refusal = `User "` + cluster.Developer + `" cannot list resource "pods"`

// checkRefused checks what a user without the Role is told.
func (t *incidentTest) checkRefused(ctx context.Context, s *suite) error {
	cmd := t.command(ctx, s, s.cluster.KubeconfigOf(cluster.Developer), "nodens", "status")
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), refusal) {
		return fmt.Errorf("want exit code 1 and a line with %s: %w\n%s", refusal, err, out)
	}
	return nil
}

// awaitStatus waits until the agents of all nodes reply to kubectl nodens status, and good returns nil.
func (t *incidentTest) awaitStatus(ctx context.Context, s *suite, good func(*report.ClusterStatus) error) error {
	return peer.Await(ctx, "kubectl nodens status", func(ctx context.Context) error {
		var st report.ClusterStatus
		if err := t.ask(ctx, s, &st, "status"); err != nil {
			return err
		}
		if st.Nodes != len(s.cluster.Nodes()) || len(st.Unanswered) > 0 {
			return fmt.Errorf("%d nodes; not answered: %v", st.Nodes, st.Unanswered)
		}
		return good(&st)
	})
}

// advised returns the advice for a workload, nil if there is none.
func advised(a *report.AdviceCounts, w askingWorkload) *report.AdvisedWorkload {
	for i := range a.Workloads {
		if x := &a.Workloads[i]; x.Namespace == w.namespace && x.Workload == w.name && x.WorkloadKind == "Deployment" {
			return x
		}
	}
	return nil
}

// checkNamed waits until the workloads that waste look-ups are named.
func (t *incidentTest) checkNamed(ctx context.Context, s *suite) (seen string, err error) {
	err = peer.Await(ctx, "kubectl nodens top", func(ctx context.Context) error {
		var c report.ClusterClients
		if err := t.ask(ctx, s, &c, "top", "--by", "workload", "--sort", "waste", "--window", "10s"); err != nil {
			return err
		}
		if len(c.Clients) == 0 || c.Clients[0].Label("workload") != checkout.String() || c.Clients[0].Nodes != len(s.cluster.Nodes()) {
			return fmt.Errorf("the first row is not %s: %v", &checkout, c.Clients)
		}
		n := &c.Clients[0].Window
		if n.Queries < leastQueries || float64(n.Waste) < 0.7*float64(n.Queries) {
			return fmt.Errorf("%s: %d of %d queries are waste", &checkout, n.Waste, n.Queries)
		}
		seen = fmt.Sprintf("%s: %.0f %% of %.0f queries/s", &checkout, 100*float64(n.Waste)/float64(n.Queries), c.Clients[0].QueriesPerSecond)
		return nil
	})
	if err != nil {
		return "", err
	}
	err = awaitPage(ctx, s, t.words["agent"], "waste", checkout.String(), "*.exchange.example.shop.svc.cluster.local.")
	return seen, errors.Join(err, t.showWith(ctx, s, "top", "\n"+checkout.String()+" "), t.showWith(ctx, s, "advise", "\n"+checkout.String()+" "))
}

// leastQueries is the number of queries from which a share of them says something.
const leastQueries = 100

// makeChanges makes exactly the changes that kubectl nodens advise prints: in the pod template of one
// workload, and in the name that the other one looks up.
func (t *incidentTest) makeChanges(ctx context.Context, s *suite) (string, error) {
	var ndots, dot *report.Change
	err := peer.Await(ctx, "kubectl nodens advise", func(ctx context.Context) error {
		var a report.ClusterAdvice
		if err := t.ask(ctx, s, &a, "advise"); err != nil {
			return err
		}
		ndots, dot = findChange(advised(&a.AdviceCounts, checkout), report.ChangeNdots), findChange(advised(&a.AdviceCounts, fraud), report.ChangeTrailingDot)
		if ndots == nil || dot == nil {
			return fmt.Errorf("there is no such advice: %+v", a.Workloads)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	t.words["change"] = "spec: {template: {spec: {" + ndots.Text + "}}}"
	if _, err := t.show(ctx, s, "patch"); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "set", "env", "--namespace="+fraud.namespace, "deployment/"+fraud.name, "NAME="+dot.Text); err != nil {
		return "", err
	}
	for _, w := range []askingWorkload{checkout, fraud} {
		if err := t.awaitWorkload(ctx, s, w); err != nil {
			return "", err
		}
	}
	pods, err := podsByNode(ctx, s, checkout.namespace, "app="+checkout.name)
	t.pods[checkout.String()], t.words["checkout"] = pods, pods[t.words["node"]]
	return fmt.Sprintf("%s: %s; %s: %s", &checkout, ndots.Text, &fraud, dot.Text), err
}

// findChange returns the first change of this kind, nil if there is none.
func findChange(w *report.AdvisedWorkload, kind string) *report.Change {
	if w == nil {
		return nil
	}
	for i := range w.Changes {
		if w.Changes[i].Kind == kind {
			return &w.Changes[i]
		}
	}
	return nil
}

// checkWasteGone waits until the counts have nothing from before the change. Both workloads still look
// up their names, and waste nothing.
func (t *incidentTest) checkWasteGone(ctx context.Context, s *suite) (seen string, err error) {
	err = peer.Await(ctx, "the waste to be gone", func(ctx context.Context) error {
		var c report.ClusterClients
		if err := t.ask(ctx, s, &c, "top", "--by", "workload", "--window", "10s"); err != nil {
			return err
		}
		if seen, err = wasteSeen(c.Clients, checkout, fraud); err != nil {
			return err
		}
		// The advice is of each node alone.
		var a report.ClusterAdvice
		if err := t.ask(ctx, s, &a, "advise", "--window", "10s"); err != nil {
			return err
		}
		if advised(&a.AdviceCounts, checkout) != nil || advised(&a.AdviceCounts, fraud) != nil {
			return fmt.Errorf("there still is advice: %+v", a.Workloads)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return seen, errors.Join(t.showWith(ctx, s, "advise-after", "\nnothing to advise"), t.showWith(ctx, s, "top-after", "\n"+checkout.String()+" "))
}

// wasteSeen returns the share of waste of the workloads, and an error if one of them wastes enough for advice or
// makes few queries.
func wasteSeen(rows []report.ClusterClient, workloads ...askingWorkload) (string, error) {
	var list []string
	for _, w := range workloads {
		var n report.ClientCounts
		for i := range rows {
			if rows[i].Label("workload") == w.String() {
				n = rows[i].Window
			}
		}
		if n.Queries < leastQueries || float64(n.Waste) >= report.LeastWaste*float64(n.Queries) {
			return "", fmt.Errorf("%s: %d of %d queries are waste", &w, n.Waste, n.Queries)
		}
		list = append(list, fmt.Sprintf("%s: %d of %d queries are waste", &w, n.Waste, n.Queries))
	}
	return strings.Join(list, "; "), nil
}
