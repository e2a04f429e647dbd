package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
)

// checkPodFiles holds what kubelet writes into pods, by which everything else is found.
func (w *namesFixture) checkPodFiles(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	const usual = "search names.svc.cluster.local svc.cluster.local cluster.local"
	want := map[string][]string{
		"udp-0":  {usual, "nameserver " + localDNS, "options ndots:5"},
		"udp-1":  {usual, "nameserver " + localDNS, "options ndots:5"},
		"tcp-0":  {usual, "nameserver " + localDNS, "options ndots:5 use-vc"},
		"tcp-1":  {usual, "nameserver " + localDNS, "options ndots:5 use-vc"},
		"host-0": {usual, "nameserver " + localDNS, "options ndots:5"},
		"host-1": {usual, "nameserver " + localDNS, "options ndots:5"},
		"node-0": {"nameserver " + cluster.Upstream},
		"many":   {usual + " " + strings.Join(searchDomains(), " "), "nameserver " + localDNS, "options ndots:5"},
		"odd":    {usual + " _http._tcp.names.svc.cluster.local .", "nameserver " + localDNS, "options edns0 ndots:2"},
		"none":   {"search first.stub.test second.stub.test", "nameserver " + stubDNS, "options ndots:2"},
	}
	var pods []string
	for pod := range want {
		pods = append(pods, pod)
	}
	err := forEach(pods, func(pod string) error {
		out, err := w.exec(ctx, s, pod, "", "cat", "/etc/resolv.conf")
		if err != nil {
			return err
		}
		for _, line := range want[pod] {
			if !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool { return uniqueWords(l) == uniqueWords(line) }) {
				return fmt.Errorf("its resolv.conf has no line %q:\n%s", line, out)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	err = forEach(ordinaryPods()[:2], func(pod string) error {
		out, err := w.exec(ctx, s, pod, "", "sh", "-c", "hostname; hostname -f; cat /etc/hosts")
		if err != nil {
			return err
		}
		name := strings.Replace(pod, "udp", "querier", 1)
		full := name + ".querier" + namesSuffix
		entry := w.podIP[pod] + "\t" + full + "\t" + name + "\n"
		if !strings.HasPrefix(out, name+"\n"+full+"\n") || !strings.Contains(out, entry) {
			return fmt.Errorf("hostname, hostname -f or /etc/hosts don't have %s:\n%s", full, out)
		}
		return nil
	})
	return fmt.Sprintf("%d pods, search paths up to %d domains", len(pods), maxSearchDomains), err
}

// checkNslookup asks with busybox's nslookup, which is what people type, and wants what it says if
// CoreDNS is asked in the same way, except for letter case: CoreDNS's cache keeps the case of the first
// query.
func (w *namesFixture) checkNslookup(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	const full = "kubernetes.default.svc." + cluster.Domain
	ip := w.clusterIP["default/kubernetes"]
	list := [][2]string{ // what is asked, and a word of the answer
		{full, ip},
		{"headless" + namesSuffix, w.podIP["set-1"]},
		{"www.outside.test", cluster.Outside4},
		{"nx.outside.test", "NXDOMAIN"},
		{"-type=srv _http._tcp.querier" + namesSuffix, "querier-1.querier" + namesSuffix},
		{ip, full},
	}
	var input strings.Builder
	for _, one := range list {
		fmt.Fprintln(&input, one[0])
	}
	// The first two lines of each are the server.
	const script = `while read -r question; do nslookup $question "$0" 2>&1 </dev/null | sed 1,2d | sort | tr '\n' ' '; echo; done`
	err := forEach(ordinaryPods()[:2], func(pod string) error {
		var said [2][]string
		for i, server := range []string{localDNS, w.coreDNS} {
			out, err := w.exec(ctx, s, pod, input.String(), "sh", "-c", script, server)
			if err != nil {
				return err
			}
			if said[i] = strings.Split(out, "\n"); len(said[i]) <= len(list) {
				return fmt.Errorf("%d lines for %d questions:\n%s", len(said[i])-1, len(list), out)
			}
		}
		for i, one := range list {
			if ours, theirs := said[0][i], said[1][i]; !strings.EqualFold(ours, theirs) || !strings.Contains(ours, one[1]) {
				return fmt.Errorf("nslookup %s says\n%s\nand of CoreDNS\n%s", one[0], ours, theirs)
			}
		}
		return nil
	})
	return fmt.Sprintf("%d questions on 2 nodes, same answers as CoreDNS", len(list)), err
}

// checkLargeAnswers asks for more addresses than a reply over UDP can hold. What doesn't fit is marked
// as cut off, and all of it comes over TCP. musl asks without EDNS, and before 1.2.4 not
// over TCP: it makes do with what fits.
func (w *namesFixture) checkLargeAnswers(ctx context.Context, s *suite) (string, error) {
	all := uniqueWords(bigAddresses()...)
	seen, err := w.ask(ctx, s, ordinaryPods(), []question{q("host big", all).forResolver("musl", "< "+all)})
	if err != nil {
		return "", err
	}
	err = forEach(ordinaryPods()[:2], func(pod string) error {
		const name = " big" + namesSuffix + " A\n"
		out, err := w.exec(ctx, s, pod, "udp 0"+name+"udp 1232"+name+"tcp 0"+name, "probe", "wire", localDNS+":53")
		if err != nil {
			return err
		}
		lines := strings.Split(out, "\n")
		for i, cut := range []bool{true, true, false} {
			if strings.Contains(lines[i], " tc ") != cut {
				return fmt.Errorf("cut off: %t, want %t: %s", !cut, cut, lines[i])
			}
		}
		if n := strings.Count(lines[2], " IN A 10.98."); n != bigSize {
			return fmt.Errorf("%d addresses over TCP, want %d", n, bigSize)
		}
		return nil
	})
	return fmt.Sprintf("%d addresses; %s", bigSize, seen), err
}

// checkHostNetwork asks from pods in their node's network.
func (w *namesFixture) checkHostNetwork(ctx context.Context, s *suite) (string, error) {
	list := slices.Concat(w.apiServerQuestions(), w.partialNameQuestions(), w.statefulSetQuestions(), w.outsideQuestions())
	inside, err := w.ask(ctx, s, []string{"host-0", "host-1"}, list)
	if err != nil {
		return "", err
	}
	// The node's own server knows nothing of the cluster.
	outside, err := w.ask(ctx, s, []string{"node-0", "node-1"}, []question{
		q("host www.outside.test", cluster.Outside4, cluster.Outside6),
		none("host kubernetes.default.svc." + cluster.Domain),
		none("host cluster"),
		none("name " + w.clusterIP["names/cluster"]),
	})
	return inside + "; Default: " + outside, err
}

// checkDNSConfig asks from pods with settings of their own.
func (w *namesFixture) checkDNSConfig(ctx context.Context, s *suite) (string, error) {
	there, ip := w.clusterIP["elsewhere/there"], w.clusterIP["names/cluster"]
	// musl doesn't read lines of more than 255 characters: many has no search path then.
	const musl = "! none"
	for _, c := range []struct {
		pod  string
		list []question
	}{
		{"many", []question{
			q("host there", there).forResolver("musl", musl),
			q("canon there", "there"+elsewhereSuffix).forResolver("musl", musl),
			q("host cluster", ip).forResolver("musl", musl),
			q("host kubernetes.default", w.clusterIP["default/kubernetes"]).forResolver("musl", musl),
			q("host cluster"+namesSuffix, ip),
		}},
		{"odd", []question{
			q("host cluster", ip),
			q("host kubernetes.default", w.clusterIP["default/kubernetes"]),
			// musl doesn't search for names with ndots dots.
			q("host there.elsewhere.svc", there).forResolver("musl", musl),
			q("host www.outside.test", cluster.Outside4, cluster.Outside6),
		}},
		{"none", []question{
			q("host a", stub1),
			q("canon a", "a.first.stub.test"),
			q("host a.b.c", stub1),
			none("host nx"),
			none("host nx.a"),
		}},
	} {
		if _, err := w.ask(ctx, s, []string{c.pod}, c.list); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d domains in %d characters", maxSearchDomains, maxSearchLength), nil
}

// checkMetrics asks the agents what they have counted: that it was they who answered, and over
// TCP those resolvers that are told to use it, which musl does not look at.
func (w *namesFixture) checkMetrics(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	list := w.statefulSetQuestions()
	var seen []string
	for i, n := range w.nodes {
		for proto, resolvers := range map[string]int{"udp": len(resolvers()), "tcp": len(resolvers()) - 1} {
			pod := fmt.Sprintf("%s-%d", proto, i)
			before, err := s.cluster.MetricSum(ctx, n, metricsPort, requestsMetric, fmt.Sprintf("proto=%q", proto))
			if err != nil {
				return "", err
			}
			if _, err := w.ask(ctx, s, []string{pod}, list); err != nil {
				return "", err
			}
			after, err := s.cluster.MetricSum(ctx, n, metricsPort, requestsMetric, fmt.Sprintf("proto=%q", proto))
			if err != nil {
				return "", err
			}
			if n, least := after-before, float64(resolvers*len(list)); n < least {
				return "", fmt.Errorf("%d questions of %s made the agent count %.0f queries over %s, want %.0f at least", len(list), pod, n, proto, least)
			}
			seen = append(seen, fmt.Sprintf("%s %.0f", pod, after-before))
		}
	}
	slices.Sort(seen)
	return "queries counted: " + strings.Join(seen, ", "), nil
}
