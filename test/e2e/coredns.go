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

// recordTypes are the record types to query for each name.
func recordTypes() []string { return []string{"A", "AAAA", "SRV", "TXT", "MX", "HTTPS"} }

// wireQueries returns the names of a table as input lines for `probe wire`. Each of ways is
// a protocol and an EDNS size.
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

// spellings returns the name as written and with each suffix of the search path.
func spellings(name string) []string {
	plain := strings.TrimSuffix(name, ".")
	if plain != name || strings.HasSuffix(name, cluster.Domain) {
		return []string{plain}
	}
	return []string{plain, plain + namesSuffix, plain + ".svc." + cluster.Domain, plain + "." + cluster.Domain}
}

// intendedDifference reports whether nodens answers differently from CoreDNS on purpose. CoreDNS
// invents SRV records with port 0 for pods and answers NXDOMAIN to TXT queries for empty
// non-terminals. test/differential lists all differences.
func intendedDifference(name, kind string) bool {
	pod := strings.Contains(name, ".pod."+cluster.Domain) && kind == "SRV"
	return pod || kind == "TXT" && name == namesNS+".svc."+cluster.Domain
}

// maxTTL is the TTL of cluster names in seconds, in daemonset/nodens.yaml as in CoreDNS's Corefile.
const maxTTL = 30

// negativeTTL returns the end of the cluster zone's SOA record: the minimum field is a TTL.
func negativeTTL(ttl int) string { return fmt.Sprintf(" 7200 1800 86400 %d;", ttl) }

// ttlLimit returns the maximum TTL in the agents' replies.
func (w *namesFixture) ttlLimit() int {
	if w.marked {
		return markTTL
	}
	return maxTTL
}

// compareAll compares nodens with CoreDNS for the names of all tables.
func (w *namesFixture) compareAll(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNoPods
	}
	return w.compare(ctx, s, slices.Concat(w.apiServerQuestions(), w.clusterIPQuestions(), w.headlessQuestions(), w.hostnameQuestions(), w.statefulSetQuestions(),
		w.partialNameQuestions(), w.endpointQuestions(), w.externalNameQuestions(), w.outsideQuestions()), localDNS)
}

// compare sends the same queries to nodens, at its addresses on each node, and to CoreDNS.
func (w *namesFixture) compare(ctx context.Context, s *suite, table []question, addresses ...string) (string, error) {
	c, err := w.compareReplies(ctx, s, table, addresses...)
	seen := fmt.Sprintf("%d queries from each of 2 nodes", c.queries/2)
	if c.retries > 0 {
		seen += fmt.Sprintf(", equal after %d retries", c.retries)
	}
	return seen, err
}

// comparison is the result of compareReplies.
type comparison struct {
	// queries is their number at all addresses from all pods, and different how many of them
	// have another reply than CoreDNS's, at an address at least.
	queries, different int
	// retries is how often unequal replies were compared again.
	retries int64
}

// compareReplies is compare, with the numbers. The replies must be equal except for TTLs, the SOA
// serial number and letter case: CoreDNS's cache keeps the case of the first query.
func (w *namesFixture) compareReplies(ctx context.Context, s *suite, table []question, addresses ...string) (comparison, error) {
	list := wireQueries(table, "udp 0", "udp 1232", "tcp 0")
	argv := []string{"probe", "wire"}
	for _, a := range append(addresses, w.coreDNS) {
		argv = append(argv, net.JoinHostPort(a, "53"))
	}
	pods := ordinaryPods()[:2]
	var retries, different atomic.Int64
	err := forEach(pods, func(pod string) error {
		left := list
		// CoreDNS may still have answers cached that are up to 30 s old.
		err := peer.Await(ctx, "CoreDNS and nodens to say the same", func(ctx context.Context) error {
			out, err := w.exec(ctx, s, pod, strings.Join(left, "\n")+"\n", argv...)
			if err == nil {
				out = strings.ReplaceAll(out, negativeTTL(w.ttlLimit()), negativeTTL(maxTTL))
				left, err = differences(out, left, len(addresses), w.ttlLimit())
			}
			if err != nil {
				retries.Add(1)
			}
			return err
		})
		if err != nil {
			different.Add(int64(len(left)))
		}
		return err
	})
	return comparison{queries: len(list) * len(addresses) * len(pods), different: int(different.Load()), retries: retries.Load()}, err
}

// maxShown is the maximum number of differences in an error.
const maxShown = 5

// differences returns the queries with different replies. out is the output of `probe wire` for
// n addresses of nodens and one of CoreDNS. TTLs may be up to ttlLimit.
func differences(out string, list []string, n, ttlLimit int) (left []string, err error) {
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != (n+1)*len(list) {
		return list, fmt.Errorf("%d lines for %d queries to %d servers", len(lines), len(list), n+1)
	}
	var errs []error
	for i, query := range list {
		answers := lines[i*(n+1) : (i+1)*(n+1)]
		if err := checkSameReply(query, answers[:n], answers[n], ttlLimit); err != nil {
			left, errs = append(left, query), append(errs, err)
		}
	}
	if len(left) > maxShown {
		errs = append(errs[:maxShown], fmt.Errorf("and %d more", len(left)-maxShown))
	}
	return left, errors.Join(errs...)
}

// checkSameReply compares the lines of `probe wire` for a query. A missing reply is an error.
func checkSameReply(query string, ours []string, theirs string, ttlLimit int) error {
	want := strings.Split(theirs, "\t")
	if len(want) != 4 || want[1] != query || !strings.Contains(want[3], "; answer ") {
		return fmt.Errorf("CoreDNS gives no reply to %s: %s", query, theirs)
	}
	reply := withRA(want[3])
	for _, line := range ours {
		got := strings.Split(line, "\t")
		if len(got) != 4 || got[1] != query {
			return fmt.Errorf("what the probe writes is not about %s: %s", query, line)
		}
		if ttl, err := strconv.Atoi(got[2]); err != nil || ttl > ttlLimit || !strings.EqualFold(got[3], reply) {
			return fmt.Errorf("%s\n\tnodens, TTL %s: %s\n\tCoreDNS: %s", query, got[2], got[3], want[3])
		}
	}
	return nil
}

// withRA sets the flag RA in a reply as `probe wire` prints it. CoreDNS leaves it out of answers about the cluster, nodens
// offers recursion in every reply of a block that forwards.
func withRA(reply string) string {
	header, rest, _ := strings.Cut(reply, ";")
	if !slices.Contains(strings.Fields(header), "ra") {
		header += " ra"
	}
	return header + ";" + rest
}
