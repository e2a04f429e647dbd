package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// recordTypes are what names are asked for: what resolvers ask, and what those ask who look
// around.
func recordTypes() []string { return []string{"A", "AAAA", "SRV", "TXT", "MX", "HTTPS"} }

// wireQueries are the names of a table, as `probe wire` takes them. ways are protocol and
// size.
func wireQueries(table []question, ways ...string) (list []string) {
	var names []string
	for _, q := range table {
		kind, name, _ := strings.Cut(q.ask, " ")
		if kind == "name" {
			name, _ = dns.ReverseAddr(name) //nolint:errcheck // all of them are addresses
		}
		names = append(names, strings.ToLower(name))
	}
	for name := range strings.FieldsSeq(uniqueWords(names...)) {
		kinds := recordTypes()
		if strings.HasSuffix(name, ".arpa.") {
			kinds = []string{"PTR"}
		}
		for _, full := range spellings(name) {
			for _, kind := range kinds {
				if intendedDifference(full, kind) {
					continue
				}
				for _, way := range ways {
					list = append(list, way+" "+full+" "+kind)
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// spellings are the ways to ask for a name: as it stands, and where a search path finds it.
func spellings(name string) []string {
	plain := strings.TrimSuffix(name, ".")
	if plain != name || strings.HasSuffix(name, cluster.Domain) {
		return []string{plain}
	}
	return []string{plain, plain + namesSuffix, plain + ".svc." + cluster.Domain, plain + "." + cluster.Domain}
}

// intendedDifference says that nodens means to answer otherwise than CoreDNS: that makes up SRV
// records with port 0 for pods, and denies names that only have names below them if they
// are asked for TXT (test/differential has all of that).
func intendedDifference(name, kind string) bool {
	pod := strings.Contains(name, ".pod."+cluster.Domain) && kind == "SRV"
	return pod || kind == "TXT" && name == namesNS+".svc."+cluster.Domain
}

// maxTTL is that of cluster names, in daemonset/nodens.yaml as in CoreDNS's Corefile.
const maxTTL = 30

// compareAll compares the names of all tables.
func (w *namesFixture) compareAll(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	return w.compare(ctx, s, slices.Concat(w.apiServerQuestions(), w.clusterIPQuestions(), w.headlessQuestions(), w.hostnameQuestions(), w.statefulSetQuestions(),
		w.partialNameQuestions(), w.endpointQuestions(), w.externalNameQuestions(), w.outsideQuestions()), localDNS)
}

// compare asks nodens, at its addresses on each node, and CoreDNS the same queries, and
// wants the same replies, TTLs and the SOA's serial number excepted, and the case of
// letters: CoreDNS's cache has that of who asked first.
func (w *namesFixture) compare(ctx context.Context, s *suite, table []question, addresses ...string) (string, error) {
	list := wireQueries(table, "udp 0", "udp 1232", "tcp 0")
	argv := []string{"probe", "wire"}
	for _, a := range append(addresses, w.coreDNS) {
		argv = append(argv, net.JoinHostPort(a, "53"))
	}
	var retries atomic.Int64
	err := forEach(ordinaryPods()[:2], func(pod string) error {
		left := list
		// CoreDNS may still hold what was true up to 30 s ago.
		return peer.Await(ctx, "CoreDNS and nodens to say the same", func(ctx context.Context) error {
			out, err := w.exec(ctx, s, pod, strings.Join(left, "\n")+"\n", argv...)
			if err == nil {
				left, err = differences(out, left, len(addresses))
			}
			if err != nil {
				retries.Add(1)
			}
			return err
		})
	})
	seen := fmt.Sprintf("%d queries from each of 2 nodes", len(list)*len(addresses))
	if n := retries.Load(); n > 0 {
		seen += fmt.Sprintf(", equal after %d retries", n)
	}
	return seen, err
}

// maxShown is how many differences are told: enough to see what is wrong, and a screenful.
const maxShown = 5

// differences gives those of the queries that are answered differently, by what `probe wire`
// writes about n addresses of nodens and one of CoreDNS.
func differences(out string, list []string, n int) (left []string, err error) {
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != (n+1)*len(list) {
		return list, fmt.Errorf("%d lines for %d queries to %d servers", len(lines), len(list), n+1)
	}
	var errs []error
	for i, query := range list {
		answers := lines[i*(n+1) : (i+1)*(n+1)]
		if err := checkSameReply(query, answers[:n], answers[n]); err != nil {
			left, errs = append(left, query), append(errs, err)
		}
	}
	if len(left) > maxShown {
		errs = append(errs[:maxShown], fmt.Errorf("and %d more", len(left)-maxShown))
	}
	return left, errors.Join(errs...)
}

// checkSameReply compares lines of `probe wire` about a query. None of them may be about no reply.
func checkSameReply(query string, ours []string, theirs string) error {
	want := strings.Split(theirs, "\t")
	if len(want) != 4 || want[1] != query || !strings.Contains(want[3], "; answer ") {
		return fmt.Errorf("CoreDNS gives no reply to %s: %s", query, theirs)
	}
	for _, line := range ours {
		got := strings.Split(line, "\t")
		if len(got) != 4 || got[1] != query {
			return fmt.Errorf("what the probe writes is not about %s: %s", query, line)
		}
		if ttl, err := strconv.Atoi(got[2]); err != nil || ttl > maxTTL || !strings.EqualFold(got[3], want[3]) {
			return fmt.Errorf("%s\n\tnodens, TTL %s: %s\n\tCoreDNS: %s", query, got[2], got[3], want[3])
		}
	}
	return nil
}
