package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/report"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// checkHanging stops the agent's processes on the last node for a moment.
func (t *incidentTest) checkHanging(ctx context.Context, s *suite) (seen string, err error) {
	nodes := s.cluster.Nodes()
	hangs := nodes[len(nodes)-1]
	if err := signalAgent(ctx, hangs, "STOP"); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, signalAgent(context.WithoutCancel(ctx), hangs, "CONT"))
		if err == nil {
			err = t.awaitStatus(ctx, s, func(*report.ClusterStatus) error { return nil })
		}
	}()
	seen = fmt.Sprintf("node %s, pod %s: no answer in 2s", hangs.Name, t.agents[hangs.Name])
	err = peer.Await(ctx, "only the agent that hangs to be without an answer", func(ctx context.Context) error {
		out, err := t.show(ctx, s, "hanging")
		if err == nil || !strings.Contains(out, "\nnot shown: "+seen+"\n") || !strings.Contains(out, "\n"+nodes[0].Name+" ") {
			return fmt.Errorf("want %s, the other node, and an error (%w):\n%s", seen, err, out)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return seen, t.awaitWithout(ctx, s, hangs.Name)
}

// awaitWithout waits until kubectl nodens top succeeds with all nodes but this one.
func (t *incidentTest) awaitWithout(ctx context.Context, s *suite, node string) error {
	return peer.Await(ctx, "kubectl nodens top", func(ctx context.Context) error {
		var c report.ClusterClients
		if err := t.ask(ctx, s, &c, "top", "--timeout", "2s"); err != nil {
			return err
		}
		if c.Nodes != len(s.cluster.Nodes())-1 || len(c.Unanswered) != 1 || c.Unanswered[0].Node != node {
			return fmt.Errorf("%d nodes, not answered: %v", c.Nodes, c.Unanswered)
		}
		return nil
	})
}

// checkService creates a Service that a pod looks up before.
func (t *incidentTest) checkService(ctx context.Context, s *suite) (string, error) {
	const service = "billing"
	if err := t.showWith(ctx, s, "service", "there is no Service "+service+" in the namespace "+checkout.namespace); err != nil {
		return "", err
	}
	if _, err := s.cluster.Kubectl(ctx, "", "create", "service", "clusterip", service, "--namespace="+checkout.namespace, "--tcp=80"); err != nil {
		return "", err
	}
	address, err := s.cluster.Kubectl(ctx, "", "get", "service", service, "--namespace="+checkout.namespace, "--output=jsonpath={.spec.clusterIP}")
	if err != nil {
		return "", err
	}
	err = peer.Await(ctx, "the pod to find the Service", func(ctx context.Context) error {
		return t.expectLookup(ctx, s, t.words["checkout"], service, address)
	})
	if err != nil {
		return "", err
	}
	return service + " " + address, t.compareExplained(ctx, s, t.words["node"], t.words["checkout"], service)
}

// restartOutsideDNS restarts the world outside, with further zones, and waits until the nodes' agents get
// answers from it.
func restartOutsideDNS(ctx context.Context, s *suite, zones ...string) error {
	s.cluster.StopOutsideDNS()
	if err := s.cluster.StartOutsideDNS(zones...); err != nil {
		return err
	}
	return awaitOutside(ctx, s)
}

// awaitOutside waits until the agents of all nodes get answers from the world outside.
func awaitOutside(ctx context.Context, s *suite) error {
	for _, n := range s.cluster.Nodes() {
		names := 0
		err := peer.Await(ctx, "the world outside to answer on "+n.Name, func(ctx context.Context) error {
			names++
			name := fmt.Sprintf("up-%d.outside.test.", names) // in no cache
			out, err := n.Command(ctx, "dig", "@"+localDNS, "+short", "+tries=1", name).CombinedOutput()
			if err == nil && strings.TrimSpace(string(out)) != cluster.Outside4 {
				err = fmt.Errorf("%s is %q", name, out)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkOutage stops the agents' upstream outside of the cluster.
func (t *incidentTest) checkOutage(ctx context.Context, s *suite) (seen string, err error) {
	s.cluster.StopOutsideDNS()
	defer func() {
		err = errors.Join(err, s.cluster.StartOutsideDNS(), awaitOutside(context.WithoutCancel(ctx), s))
	}()
	err = t.awaitStatus(ctx, s, func(st *report.ClusterStatus) error {
		for i := range st.Agents {
			if a := &st.Agents[i]; a.Upstreams.Down != 1 {
				return fmt.Errorf("the agent on %s has no upstream that is down: %+v", a.Node, a.Upstreams)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	err = peer.Await(ctx, "kubectl nodens top --sort servfail", func(ctx context.Context) error {
		var c report.ClusterClients
		if err := t.ask(ctx, s, &c, "top", "--by", "workload", "--sort", "servfail", "--window", "10s"); err != nil {
			return err
		}
		if len(c.Clients) == 0 || c.Clients[0].Label("workload") != indexer.String() || c.Clients[0].Window.Servfail < leastFailed {
			return fmt.Errorf("the first row is not %s with SERVFAIL: %+v", &indexer, c.Clients)
		}
		seen = fmt.Sprintf("%s is down; SERVFAIL for %d queries of %s", cluster.Upstream, c.Clients[0].Window.Servfail, &indexer)
		return nil
	})
	if err != nil {
		return "", err
	}
	return seen, t.showOutage(ctx, s)
}

// leastFailed is the number of failed queries that are awaited.
const leastFailed = 20

// showOutage checks what the commands show while the upstream is down.
func (t *incidentTest) showOutage(ctx context.Context, s *suite) error {
	err := peer.Await(ctx, "the problem of each agent", func(ctx context.Context) error {
		out, err := t.show(ctx, s, "status-outage")
		if err == nil || strings.Count(out, "all upstreams of . are down\n") != len(t.agents) {
			return fmt.Errorf("want an error, and the problem of each agent (%w):\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, show := range [][2]string{
		{"top-outage", indexer.String()}, {"failing", ".index.example."}, {"upstreams", " down "}, {"cached", "NOERROR"},
	} {
		if err := t.showWith(ctx, s, show[0], show[1]); err != nil {
			return err
		}
	}
	var e report.Explanation
	if err := t.ask(ctx, s, &e, "explain", "shard-0.index.example.", "--from", indexer.namespace+"/"+t.words["indexer"]); err != nil {
		return err
	}
	if f := e.Questions[0].Forward; f == nil || len(f.Upstreams) != 1 || !f.Upstreams[0].Down {
		return fmt.Errorf("kubectl nodens explain has no upstream that is down: %+v", e.Questions)
	}
	return nil
}

// lateName is a name that does not exist until the world outside has the zone lateZone.
const lateZone, lateName = "partner.test", "api.partner.test"

// checkDenial: a pod looks up a name before it exists, and again afterwards. The denial is cached for 30
// seconds, as the world outside says.
func (t *incidentTest) checkDenial(ctx context.Context, s *suite) (string, error) {
	pod := t.words["checkout"]
	err := peer.Await(ctx, "a denial of a name that exists", func(ctx context.Context) error {
		// If the denial was not cached any more at the last try, the name is there now.
		if err := t.expectLookup(ctx, s, pod, lateName); err != nil {
			_, failed := t.show(ctx, s, "flush")
			return errors.Join(err, failed, restartOutsideDNS(ctx, s))
		}
		if err := restartOutsideDNS(ctx, s, lateZone); err != nil {
			return err
		}
		if err := t.expectLookup(ctx, s, pod, lateName); err != nil {
			return err
		}
		return t.showWith(ctx, s, "denial", "NXDOMAIN")
	})
	if err != nil {
		return "", err
	}
	if _, err := t.show(ctx, s, "flush"); err != nil {
		return "", err
	}
	return lateName + ": NXDOMAIN, then " + cluster.Outside4, t.expectLookup(ctx, s, pod, lateName, cluster.Outside4)
}

// expectLookup returns an error unless the pod gets these addresses; without addresses, if there is such a name.
func (t *incidentTest) expectLookup(ctx context.Context, s *suite, pod, name string, want ...string) error {
	got, err := t.lookup(ctx, s, pod, name)
	if err == nil && !slices.Equal(got, want) {
		err = fmt.Errorf("pod %s gets %v for %s, want %v", pod, got, name, want)
	}
	return err
}
