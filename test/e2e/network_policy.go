package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// The DaemonSets of the load clients that may not, and that may, query DNS by their policies.
const (
	forbiddenApp = "forbidden"
	allowedApp   = "allowed"
)

// policyChecks returns the checks of policies, with kill while one forbids DNS.
func (t *networkTest) policyChecks(mode string, row *networkRow, kill check) []check {
	return []check{
		row.policyCheck(mode+"a policy forbids DNS, another allows it", t.applyPolicies),
		row.policyCheck(mode+"agent killed while a policy forbids DNS", func(ctx context.Context, s *suite) (string, error) {
			return t.checkForbidden(ctx, s, kill)
		}),
		row.policyCheck(mode+"DNS is no longer forbidden", t.deletePolicies),
	}
}

// startRestricted starts the load clients that get policies.
func (t *networkTest) startRestricted(ctx context.Context) error {
	list := objectList{loadDaemonSet(forbiddenApp), loadDaemonSet(allowedApp)}
	if _, err := t.cluster.Kubectl(ctx, list.String(), "create", "-f", "-"); err != nil {
		return err
	}
	t.restricted = make(map[string]map[string]netip.Addr)
	for _, app := range []string{forbiddenApp, allowedApp} {
		_, err := t.cluster.Kubectl(ctx, "", "-n", chaosNamespace, "rollout", "status", "daemonset/"+app, "--timeout=90s")
		if err != nil {
			return err
		}
		if t.restricted[app], err = t.findPods(ctx, app); err != nil {
			return err
		}
	}
	return nil
}

// policies returns the NetworkPolicies. The allowed pods get the one that operators install, and take
// no connections but those of this test: replies to their queries are untracked packets.
func (t *networkTest) policies() (string, error) {
	text, err := os.ReadFile(filepath.Join(t.root, "daemonset", "network-policy.yaml"))
	if err != nil {
		return "", err
	}
	const selector, addresses = "  podSelector: {}\n", "            cidr: " + localDNS + "/32\n"
	allow := string(text)
	if strings.Count(allow, selector) != 1 || strings.Count(allow, addresses) != 1 {
		return "", fmt.Errorf("daemonset/network-policy.yaml is another one:\n%s", allow)
	}
	allow = strings.NewReplacer(selector, "  podSelector: {matchLabels: {app: "+allowedApp+"}}\n",
		addresses, addresses+"        - ipBlock:\n            cidr: "+cluster.DNS+"/32\n").Replace(allow)
	if t.network.OwnServices {
		allow += allowAtNode
	}
	return allow + fmt.Sprintf(`---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: take-jobs-only}
spec:
  podSelector: {matchLabels: {app: %s}}
  policyTypes: [Ingress]
  ingress: [{ports: [{port: %d, protocol: TCP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: forbid-dns}
spec:
  podSelector: {matchLabels: {app: %s}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 443, protocol: TCP}]}]
`, allowedApp, loadPort, forbiddenApp), nil
}

// allowAtNode allows DNS at the node's addresses on Cilium, for which an ipBlock does not count there.
const allowAtNode = `---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: allow-dns-at-node}
spec:
  endpointSelector: {matchLabels: {app: ` + allowedApp + `}}
  egress: [{toEntities: [host], toPorts: [{ports: [{port: "53", protocol: ANY}]}]}]
`

// kubectlPolicies applies or deletes the policies.
func (t *networkTest) kubectlPolicies(ctx context.Context, verb string) error {
	text, err := t.policies()
	if err == nil {
		_, err = t.cluster.Kubectl(ctx, text, verb, "--namespace="+chaosNamespace, "--filename=-")
	}
	return err
}

// policyJob queries the addresses that policies apply to, over UDP and TCP. Its answers may come from the cluster DNS.
func (t *networkTest) policyJob(d time.Duration) load.Job {
	j := t.serviceJob()
	if t.network.ClusterIPsOpen {
		j.Servers = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(localDNS), 53)}
	}
	j.Rate, j.Sockets, j.Streams, j.OneShots, j.Duration, j.Timeout = 100, 4, 1, 10, d, 2*time.Second
	return j
}

// answered returns the number of replies of any kind that the pods of a DaemonSet get, and the number
// of their queries, in a run that ends after d or with the event, if there is one.
func (t *networkTest) answered(ctx context.Context, app string, d time.Duration, event func() error) (replies, asked uint64, err error) {
	var clients []*load.Client
	for _, pod := range t.restricted[app] {
		c, failed := t.startJobIn(ctx, pod, t.policyJob(d))
		if failed != nil {
			return 0, 0, errors.Join(failed, stopClients([][]*load.Client{clients}))
		}
		clients = append(clients, c)
	}
	wait := (*load.Client).Wait
	if event != nil {
		err, wait = event(), (*load.Client).Stop
	}
	for _, c := range clients {
		r, failed := wait(c)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all := r.All()
		replies, asked = replies+all.Asked-all.Lost, asked+all.Asked
	}
	return replies, asked, err
}

// briefRun is the length of a run that finds out whether a policy applies.
const briefRun = 200 * time.Millisecond

// waitPermitted waits until the DaemonSet's pods get a reply to each query of a run, or, if permitted
// is false, to none.
func (t *networkTest) waitPermitted(ctx context.Context, app string, permitted bool) error {
	return peer.Await(ctx, fmt.Sprintf("queries of the %s pods to be permitted: %t", app, permitted), func(ctx context.Context) error {
		replies, asked, err := t.answered(ctx, app, briefRun, nil)
		if err == nil && (asked == 0 || permitted && replies != asked || !permitted && replies != 0) {
			err = fmt.Errorf("%d of %d queries are answered", replies, asked)
		}
		return err
	})
}

// applyPolicies applies the policies when all pods get answers, and waits until they are enforced.
func (t *networkTest) applyPolicies(ctx context.Context, _ *suite) (string, error) {
	if t.restricted == nil {
		return "", errNoLoadPods
	}
	for app := range maps.Keys(t.restricted) {
		if err := t.waitPermitted(ctx, app, true); err != nil {
			return "", fmt.Errorf("before the policies: %w", err)
		}
	}
	if err := t.kubectlPolicies(ctx, "apply"); err != nil {
		return "", err
	}
	began := time.Now()
	if err := t.waitPermitted(ctx, forbiddenApp, false); err != nil {
		return "", err
	}
	took := time.Since(began)
	// Other pods' queries keep the answers in the kernel.
	_, asked, err := t.noneAnswered(ctx, func() error { return t.waitPermitted(ctx, allowedApp, true) })
	return fmt.Sprintf("forbidden after %.1f s, then 0 of %d queries answered; the others' all", took.Seconds(), asked), err
}

// noneAnswered returns an error if the forbidden pods get a reply during the event.
func (t *networkTest) noneAnswered(ctx context.Context, event func() error) (replies, asked uint64, err error) {
	replies, asked, err = t.answered(ctx, forbiddenApp, time.Minute, event)
	if err == nil && (asked == 0 || replies != 0) {
		err = fmt.Errorf("%d of %d queries that a policy forbids were answered", replies, asked)
	}
	return replies, asked, err
}

// checkForbidden runs the check while the forbidden pods query, who must get no reply.
func (t *networkTest) checkForbidden(ctx context.Context, s *suite, c check) (seen string, err error) {
	if t.restricted == nil {
		return "", errNoLoadPods
	}
	_, asked, err := t.noneAnswered(ctx, func() (err error) {
		seen, err = c.run(ctx, s)
		return err
	})
	return fmt.Sprintf("%s; 0 of %d forbidden queries answered", seen, asked), err
}

// deletePolicies deletes the policies and waits until the pods get answers again.
func (t *networkTest) deletePolicies(ctx context.Context, _ *suite) (string, error) {
	if t.restricted == nil {
		return "", errNoLoadPods
	}
	if err := t.kubectlPolicies(ctx, "delete"); err != nil {
		return "", err
	}
	err := t.waitPermitted(ctx, forbiddenApp, true)
	return "answered", err
}
