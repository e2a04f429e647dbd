package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// names is the part of that name: what Kubernetes' own tests of DNS ask for
// (kubernetes/kubernetes, test/e2e/network/dns.go and dns_configmap.go), and what programs
// ask for besides, from pods with the resolv.conf that kubelet makes. Each question goes
// to three resolvers, musl, glibc and Go's; and to nodens from both nodes, with UDP and
// TCP, and to CoreDNS.
func names() []check {
	w := new(world)
	table := func(name string, list func() []question) check {
		return check{name, func(ctx context.Context, s *suite) (string, error) {
			return w.ask(ctx, s, ordinary(), list())
		}}
	}
	return []check{
		{"pods to ask from, and names to ask for", w.make},
		{"resolv.conf, /etc/hosts and hostname are what pods expect", w.files},
		table("kubernetes.default, every way to write it", w.kubernetes),
		table("ClusterIP Services: A, SRV, PTR", w.clusterIP),
		table("headless Services: A, SRV, PTR of endpoints", w.headless),
		table("pods with hostname and subdomain, /etc/hosts", w.hostnames),
		table("StatefulSet pods, several ports; pods by address", w.stateful),
		table("partial names along the search path", w.partial),
		table("Services without endpoints, or unready ones", w.endpoints),
		table("ExternalName Services, out of the cluster and inside", w.externalNames),
		table("names outside; no such name, no such record", w.outside),
		{"busybox nslookup", w.typed},
		{"each reply is CoreDNS's, query by query", w.compared},
		{"answers of more than 512 and 1,232 bytes go on over TCP", w.large},
		{"hostNetwork pods: ClusterFirstWithHostNet, Default", w.hostNetwork},
		{"dnsConfig: 32 search domains, odd ones, options; None", w.dnsConfig},
		{"ExternalName changed to another, then to a ClusterIP", w.renamed},
		{"Services made, moved and deleted while they are asked for", w.changed},
		{"it was nodens that answered, over UDP and TCP", w.counted},
		{"stub domains, upstreams of ConfigMap kube-dns, reread", w.stubbed},
		{"all of it is taken away again", func(ctx context.Context, _ *suite) (string, error) {
			if w.client == nil {
				return "", errNotMade
			}
			return "2 namespaces", w.end(ctx)
		}},
	}
}

var errNotMade = errors.New("the pods that ask don't run")

const (
	inNames = ".names.svc." + cluster.Domain
	inFar   = ".elsewhere.svc." + cluster.Domain
)

// relative says that musl has no search path for records other than addresses: its
// res_search is its res_query.
func relative(q question) question { return q.and("musl", "! none") }

func (w *world) kubernetes() []question {
	const full, srv = "kubernetes.default.svc." + cluster.Domain, "0:100:443:kubernetes.default.svc." + cluster.Domain
	ip := w.service["default/kubernetes"]
	return []question{
		none("host kubernetes"),
		q("host kubernetes.default", ip),
		q("host kubernetes.default.svc", ip),
		q("host "+full, ip),
		q("host "+full+".", ip),
		q("host KUBERNETES.Default.SVC", ip),
		none("host kubernetes.default."),
		q("canon kubernetes.default", full),
		q("name "+ip, full),
		q("srv _https._tcp."+full, srv),
		relative(q("srv _https._tcp.kubernetes.default.svc", srv)),
		relative(q("srv _https._tcp.kubernetes.default", srv)),
	}
}

func (w *world) clusterIP() []question {
	ip := w.service["names/cluster"]
	return []question{
		q("host cluster"+inNames, ip),
		q("host cluster"+inNames+".", ip),
		q("canon cluster", "cluster"+inNames),
		q("name "+ip, "cluster"+inNames),
		q("srv _http._tcp.cluster"+inNames, "0:100:80:cluster"+inNames),
		q("srv _peer._udp.cluster"+inNames, "0:100:7000:cluster"+inNames),
		none("srv _peer._tcp.cluster" + inNames),
		none("host nobody.cluster" + inNames),
		relative(q("srv _http._tcp.cluster.names.svc", "0:100:80:cluster"+inNames)),
		q("name "+w.service["elsewhere/there"], "there"+inFar),
	}
}

// dashed is an address as the name of an endpoint or pod.
func dashed(ip string) string { return strings.ReplaceAll(ip, ".", "-") }

// own asks for the name of a pod's address. In the pod itself /etc/hosts has two, and Go
// gives both.
func own(ask, host string) question {
	full := host + ".querier" + inNames
	return q(ask, full).or("go", "= "+words(host, full))
}

func (w *world) headless() []question {
	a, b := w.pod["set-0"], w.pod["set-1"]
	port := func(ip string) string { return "0:50:80:" + dashed(ip) + ".headless" + inNames }
	return []question{
		q("host headless"+inNames, a, b),
		q("host headless", a, b),
		q("canon headless", "headless"+inNames),
		q("host "+dashed(a)+".headless", a),
		q("host "+dashed(b)+".headless"+inNames, b),
		q("srv _http._tcp.headless"+inNames, port(a), port(b)),
		relative(q("srv _http._tcp.headless.names.svc", port(a), port(b))),
		own("name "+w.pod["udp-0"], "querier-0"),
		own("name "+w.pod["udp-1"], "querier-1"),
		q("host far"+inFar, "10.99.0.1", "10.99.0.2"),
		q("host beta.far.elsewhere", "10.99.0.2"),
		q("name 10.99.0.1", "alpha.far"+inFar),
		q("srv _http._tcp.far"+inFar, "0:50:80:alpha.far"+inFar, "0:50:80:beta.far"+inFar),
	}
}

func (w *world) hostnames() []question {
	a, b := w.pod["udp-0"], w.pod["udp-1"]
	return []question{
		q("host querier-0.querier", a),
		q("host querier-0.querier.names", a),
		q("host querier-0.querier"+inNames, a),
		q("host querier-1.querier"+inNames, b),
		q("host querier", a, b),
		none("host querier-2.querier"),
		none("host querier-0.headless"),
		q("srv _http._tcp.querier"+inNames, "0:50:80:querier-0.querier"+inNames, "0:50:80:querier-1.querier"+inNames),
	}
}

func (w *world) stateful() []question {
	a, b := w.pod["set-0"], w.pod["set-1"]
	port := func(n int) []string {
		return []string{fmt.Sprintf("0:50:%d:set-0.set%s", n, inNames), fmt.Sprintf("0:50:%d:set-1.set%s", n, inNames)}
	}
	return []question{
		q("host set-0.set", a),
		q("host set-1.set.names.svc", b),
		q("host set-1.set"+inNames, b),
		q("host set", a, b),
		none("host set-2.set"),
		none("host set-0"),
		q("srv _peer._tcp.set"+inNames, port(7000)...),
		q("srv _client._tcp.set"+inNames, port(7001)...),
		q("srv _gossip._udp.set"+inNames, port(7002)...),
		q("host "+dashed(a)+".names.pod."+cluster.Domain, a),
		q("host "+dashed(b)+".names.pod", b),
		q("host 10-1-2-3.names.pod."+cluster.Domain, "10.1.2.3"),
		none("host 10-1-2-3.nowhere.pod." + cluster.Domain),
	}
}

func (w *world) partial() []question {
	ip, there := w.service["names/cluster"], w.service["elsewhere/there"]
	return []question{
		q("host cluster", ip),
		q("host cluster.names", ip),
		q("host cluster.names.svc", ip),
		none("host cluster.elsewhere"),
		none("host cluster."),
		none("host there"),
		q("host there.elsewhere", there),
		q("host there.elsewhere.svc", there),
		q("canon there.elsewhere", "there"+inFar),
		q("host far.elsewhere", "10.99.0.1", "10.99.0.2"),
	}
}

func (w *world) endpoints() []question {
	ip := w.service["names/empty"]
	return []question{
		q("host empty", ip),
		q("srv _http._tcp.empty"+inNames, "0:100:80:empty"+inNames),
		none("host empty-headless"),
		none("srv _http._tcp.empty-headless" + inNames),
		none("host waiting"),
		q("host published", w.pod["unready"]),
	}
}

// Addresses of everything outside, and of what the pod stub gives at its ports.
const stub1, stub2 = "198.51.100.1", "198.51.100.2"

func (w *world) externalNames() []question {
	ip := w.service["names/cluster"]
	return []question{
		q("host outward", cluster.Outside4, cluster.Outside6),
		q("canon outward", "www.outside.test"),
		q("host outward"+inNames+".", cluster.Outside4, cluster.Outside6),
		q("host inward", ip),
		q("canon inward", "cluster"+inNames),
		q("host moving", cluster.Outside4, cluster.Outside6),
		q("canon moving", "one.outside.test"),
	}
}

func (w *world) outside() []question {
	return []question{
		q("host outside.test", cluster.Outside4, cluster.Outside6),
		q("host www.outside.test.", cluster.Outside4, cluster.Outside6),
		q("host a.b.c.d.e.outside.test", cluster.Outside4, cluster.Outside6),
		q("canon www.outside.test", "www.outside.test"),
		none("host nx.outside.test"),
		none("host x.nx.outside.test."),
		none("host nobody"),
		none("host nobody.default.svc." + cluster.Domain + "."),
		none("host www.invalid"),
		none("name 203.0.113.1"),
		// There is a namespace of this name, and nothing else. musl tells since 1.2.4.
		none("host names.svc."+cluster.Domain+".").and("glibc", "! nodata").or("musl", "! nodata"),
		none("srv www.outside.test").and("glibc", "! nodata").and("musl", "! nodata"),
	}
}
