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
	w := new(namesFixture)
	table := func(name string, list func() []question) check {
		return check{name, func(ctx context.Context, s *suite) (string, error) {
			return w.ask(ctx, s, ordinaryPods(), list())
		}}
	}
	return []check{
		{"client pods and Services are ready", w.create},
		{"resolv.conf, /etc/hosts and hostname in pods", w.checkPodFiles},
		table("kubernetes.default in every spelling", w.apiServerQuestions),
		table("ClusterIP Services: A, SRV, PTR", w.clusterIPQuestions),
		table("headless Services: A, SRV, PTR of endpoints", w.headlessQuestions),
		table("pods with hostname and subdomain, /etc/hosts", w.hostnameQuestions),
		table("StatefulSet pods with several ports; pods by IP", w.statefulSetQuestions),
		table("partial names along the search path", w.partialNameQuestions),
		table("Services with no or unready endpoints", w.endpointQuestions),
		table("ExternalName Services, external and internal targets", w.externalNameQuestions),
		table("external names, NXDOMAIN and NODATA", w.outsideQuestions),
		{"busybox nslookup", w.checkNslookup},
		{"every reply equals CoreDNS's", w.compareAll},
		{"answers above 512 and 1,232 bytes are retried over TCP", w.checkLargeAnswers},
		{"hostNetwork pods: ClusterFirstWithHostNet, Default", w.checkHostNetwork},
		{"dnsConfig: 32 and unusual search domains, options; None", w.checkDNSConfig},
		{"ExternalName changed to another name, then to a ClusterIP", w.changeExternalName},
		{"Services created, changed and deleted while queried", w.changeServices},
		{"nodens counts the queries, over UDP and TCP", w.checkMetrics},
		{"stub domains and upstreams from ConfigMap kube-dns reload", w.checkStubDomains},
		{"test namespaces are deleted", func(ctx context.Context, _ *suite) (string, error) {
			if w.client == nil {
				return "", errNoPods
			}
			return "2 namespaces", w.deleteNamespaces(ctx)
		}},
	}
}

var errNoPods = errors.New("the pods that ask don't run")

const (
	namesSuffix     = ".names.svc." + cluster.Domain
	elsewhereSuffix = ".elsewhere.svc." + cluster.Domain
)

// noMuslSearch says that musl has no search path for records other than addresses: its
// res_search is its res_query.
func noMuslSearch(q question) question { return q.forResolver("musl", "! none") }

func (w *namesFixture) apiServerQuestions() []question {
	const full, srv = "kubernetes.default.svc." + cluster.Domain, "0:100:443:kubernetes.default.svc." + cluster.Domain
	ip := w.clusterIP["default/kubernetes"]
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
		noMuslSearch(q("srv _https._tcp.kubernetes.default.svc", srv)),
		noMuslSearch(q("srv _https._tcp.kubernetes.default", srv)),
	}
}

func (w *namesFixture) clusterIPQuestions() []question {
	ip := w.clusterIP["names/cluster"]
	return []question{
		q("host cluster"+namesSuffix, ip),
		q("host cluster"+namesSuffix+".", ip),
		q("canon cluster", "cluster"+namesSuffix),
		q("name "+ip, "cluster"+namesSuffix),
		q("srv _http._tcp.cluster"+namesSuffix, "0:100:80:cluster"+namesSuffix),
		q("srv _peer._udp.cluster"+namesSuffix, "0:100:7000:cluster"+namesSuffix),
		none("srv _peer._tcp.cluster" + namesSuffix),
		none("host nobody.cluster" + namesSuffix),
		noMuslSearch(q("srv _http._tcp.cluster.names.svc", "0:100:80:cluster"+namesSuffix)),
		q("name "+w.clusterIP["elsewhere/there"], "there"+elsewhereSuffix),
	}
}

// dashedIP is an address as the name of an endpoint or pod.
func dashedIP(ip string) string { return strings.ReplaceAll(ip, ".", "-") }

// ownAddress asks for the name of a pod's address. In the pod itself /etc/hosts has two, and Go
// gives both.
func ownAddress(ask, host string) question {
	full := host + ".querier" + namesSuffix
	return q(ask, full).orForResolver("go", "= "+uniqueWords(host, full))
}

func (w *namesFixture) headlessQuestions() []question {
	a, b := w.podIP["set-0"], w.podIP["set-1"]
	port := func(ip string) string { return "0:50:80:" + dashedIP(ip) + ".headless" + namesSuffix }
	return []question{
		q("host headless"+namesSuffix, a, b),
		q("host headless", a, b),
		q("canon headless", "headless"+namesSuffix),
		q("host "+dashedIP(a)+".headless", a),
		q("host "+dashedIP(b)+".headless"+namesSuffix, b),
		q("srv _http._tcp.headless"+namesSuffix, port(a), port(b)),
		noMuslSearch(q("srv _http._tcp.headless.names.svc", port(a), port(b))),
		ownAddress("name "+w.podIP["udp-0"], "querier-0"),
		ownAddress("name "+w.podIP["udp-1"], "querier-1"),
		q("host far"+elsewhereSuffix, "10.99.0.1", "10.99.0.2"),
		q("host beta.far.elsewhere", "10.99.0.2"),
		q("name 10.99.0.1", "alpha.far"+elsewhereSuffix),
		q("srv _http._tcp.far"+elsewhereSuffix, "0:50:80:alpha.far"+elsewhereSuffix, "0:50:80:beta.far"+elsewhereSuffix),
	}
}

func (w *namesFixture) hostnameQuestions() []question {
	a, b := w.podIP["udp-0"], w.podIP["udp-1"]
	return []question{
		q("host querier-0.querier", a),
		q("host querier-0.querier.names", a),
		q("host querier-0.querier"+namesSuffix, a),
		q("host querier-1.querier"+namesSuffix, b),
		q("host querier", a, b),
		none("host querier-2.querier"),
		none("host querier-0.headless"),
		q("srv _http._tcp.querier"+namesSuffix, "0:50:80:querier-0.querier"+namesSuffix, "0:50:80:querier-1.querier"+namesSuffix),
	}
}

func (w *namesFixture) statefulSetQuestions() []question {
	a, b := w.podIP["set-0"], w.podIP["set-1"]
	port := func(n int) []string {
		return []string{fmt.Sprintf("0:50:%d:set-0.set%s", n, namesSuffix), fmt.Sprintf("0:50:%d:set-1.set%s", n, namesSuffix)}
	}
	return []question{
		q("host set-0.set", a),
		q("host set-1.set.names.svc", b),
		q("host set-1.set"+namesSuffix, b),
		q("host set", a, b),
		none("host set-2.set"),
		none("host set-0"),
		q("srv _peer._tcp.set"+namesSuffix, port(7000)...),
		q("srv _client._tcp.set"+namesSuffix, port(7001)...),
		q("srv _gossip._udp.set"+namesSuffix, port(7002)...),
		q("host "+dashedIP(a)+".names.pod."+cluster.Domain, a),
		q("host "+dashedIP(b)+".names.pod", b),
		q("host 10-1-2-3.names.pod."+cluster.Domain, "10.1.2.3"),
		none("host 10-1-2-3.nowhere.pod." + cluster.Domain),
	}
}

func (w *namesFixture) partialNameQuestions() []question {
	ip, there := w.clusterIP["names/cluster"], w.clusterIP["elsewhere/there"]
	return []question{
		q("host cluster", ip),
		q("host cluster.names", ip),
		q("host cluster.names.svc", ip),
		none("host cluster.elsewhere"),
		none("host cluster."),
		none("host there"),
		q("host there.elsewhere", there),
		q("host there.elsewhere.svc", there),
		q("canon there.elsewhere", "there"+elsewhereSuffix),
		q("host far.elsewhere", "10.99.0.1", "10.99.0.2"),
	}
}

func (w *namesFixture) endpointQuestions() []question {
	ip := w.clusterIP["names/empty"]
	return []question{
		q("host empty", ip),
		q("srv _http._tcp.empty"+namesSuffix, "0:100:80:empty"+namesSuffix),
		none("host empty-headless"),
		none("srv _http._tcp.empty-headless" + namesSuffix),
		none("host waiting"),
		q("host published", w.podIP["unready"]),
	}
}

// Addresses of everything outside, and of what the pod stub gives at its ports.
const stub1, stub2 = "198.51.100.1", "198.51.100.2"

func (w *namesFixture) externalNameQuestions() []question {
	ip := w.clusterIP["names/cluster"]
	return []question{
		q("host outward", cluster.Outside4, cluster.Outside6),
		q("canon outward", "www.outside.test"),
		q("host outward"+namesSuffix+".", cluster.Outside4, cluster.Outside6),
		q("host inward", ip),
		q("canon inward", "cluster"+namesSuffix),
		q("host moving", cluster.Outside4, cluster.Outside6),
		q("canon moving", "one.outside.test"),
	}
}

func (w *namesFixture) outsideQuestions() []question {
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
		none("host names.svc."+cluster.Domain+".").forResolver("glibc", "! nodata").orForResolver("musl", "! nodata"),
		none("srv www.outside.test").forResolver("glibc", "! nodata").forResolver("musl", "! nodata"),
	}
}
