package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

//go:embed testdata/families.yaml
var familiesYAML string

// dualStackNames asks for names that have IPv6 addresses, in a cluster of both families: from a
// pod of each node, of three resolvers, and query by query of all of the agents' addresses
// and CoreDNS.
func dualStackNames(ctx context.Context, s *suite) (seen string, err error) {
	var w namesFixture
	client, err := w.connect(ctx, s)
	if err != nil {
		return "", err
	}
	text := strings.NewReplacer("NODE_0", w.nodes[0].Name, "NODE_1", w.nodes[1].Name).Replace(familiesYAML)
	if _, err := s.cluster.Kubectl(ctx, text, "apply", "--server-side", "-f", "-"); err != nil {
		return "", err
	}
	w.client = client
	defer func() { err = errors.Join(err, w.deleteNamespaces(ctx)) }()
	var pods, services map[string][]string
	err = peer.Await(ctx, "the pods to run", func(ctx context.Context) (err error) {
		pods, services, err = dualStackAddresses(ctx, client)
		return err
	})
	if err != nil {
		return "", err
	}
	for _, pod := range ordinaryPods()[:2] {
		f, err := w.watchName(ctx, s, pod, "querier"+namesSuffix, uniqueWords(pods["udp-0"][0], pods["udp-1"][0]))
		if err == nil {
			_, err = f.wait()
		}
		if err != nil {
			return "", err
		}
	}
	table, err := dualStackQuestions(pods, services)
	if err != nil {
		return "", err
	}
	resolved, err := w.ask(ctx, s, ordinaryPods()[:2], table)
	if err != nil {
		return "", err
	}
	compared, err := w.compare(ctx, s, table, localDNS, localDNS6)
	return resolved + "; " + compared, err
}

// dualStackAddresses are those of pods by name and of Services by NAMESPACE/NAME, IPv4 first. It
// is an error while they aren't all there.
func dualStackAddresses(ctx context.Context, client kubernetes.Interface) (pods, services map[string][]string, err error) {
	if pods, err = podAddresses(ctx, client); err != nil {
		return nil, nil, err
	}
	if a, b := pods["udp-0"], pods["udp-1"]; len(a) != 2 || len(b) != 2 {
		return nil, nil, fmt.Errorf("the pods' addresses are %v and %v, want two of each", a, b)
	}
	if services, err = serviceAddresses(ctx, client); err != nil {
		return nil, nil, err
	}
	return pods, services, checkEndpoints(ctx, client, map[string]int{"querier": 4})
}

// dualStackQuestions are the questions about names of both families, or of one.
func dualStackQuestions(pods, services map[string][]string) ([]question, error) {
	a, b, both, six, four := pods["udp-0"], pods["udp-1"], services["names/both"], services["names/six"], services["names/four"]
	if len(both) != 2 || len(six) != 1 || len(four) != 1 {
		return nil, fmt.Errorf("the Services' addresses are %v", services)
	}
	list := []question{
		q("host both", both...),
		q("host both"+namesSuffix, both...),
		q("canon both.names", "both"+namesSuffix),
		q("name "+both[0], "both"+namesSuffix),
		q("name "+both[1], "both"+namesSuffix),
		q("host six", six...),
		q("name "+six[0], "six"+namesSuffix),
		q("host four.names.svc", four...),
		q("srv _http._tcp.six"+namesSuffix, "0:100:80:six"+namesSuffix),
		q("host querier", append(a, b...)...),
		q("host querier-0.querier", a...),
		// Not by its whole name, which a pod has in its /etc/hosts for itself, and glibc
		// takes one address from there.
		q("host querier-1.querier.names", b...),
		q("host www.outside.test", cluster.Outside4, cluster.Outside6),
		none("host six.elsewhere"),
	}
	for i, pod := range [][]string{a, b} {
		for _, ip := range pod {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return nil, err
			}
			list = append(list, ownAddress("name "+ip, fmt.Sprintf("querier-%d", i)))
			if addr.Is6() {
				list = append(list, q("host "+strings.ReplaceAll(ip, ":", "-")+".names.pod", ip))
			}
		}
	}
	return list, nil
}
