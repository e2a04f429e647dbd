package main

import (
	"context"
	"errors"
	"fmt"
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

// queries are the names of all tables, as `probe wire` takes them. ways are protocol and
// size.
func (w *world) queries(ways ...string) (list []string) {
	var names []string
	for _, table := range [][]question{w.kubernetes(), w.clusterIP(), w.headless(), w.hostnames(), w.stateful(), w.partial(), w.endpoints(), w.externalNames(), w.outside()} {
		for _, q := range table {
			kind, name, _ := strings.Cut(q.ask, " ")
			if kind == "name" {
				name, _ = dns.ReverseAddr(name) //nolint:errcheck // all of them are addresses
			}
			names = append(names, strings.ToLower(name))
		}
	}
	for name := range strings.FieldsSeq(words(names...)) {
		kinds := recordTypes()
		if strings.HasSuffix(name, ".arpa.") {
			kinds = []string{"PTR"}
		}
		// A name is asked for as it stands and where a search path finds it.
		for _, suffix := range []string{"", inNames, ".svc." + cluster.Domain, "." + cluster.Domain} {
			full := strings.TrimSuffix(name, ".") + suffix
			if suffix != "" && (strings.HasSuffix(name, ".") || strings.HasSuffix(name, cluster.Domain)) {
				continue
			}
			for _, kind := range kinds {
				for _, way := range ways {
					if !better(full, kind) {
						list = append(list, way+" "+full+" "+kind)
					}
				}
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// better says that nodens means to answer otherwise than CoreDNS: that makes up SRV
// records with port 0 for pods, and denies names that only have names below them if they
// are asked for TXT (test/differential has all of that).
func better(name, kind string) bool {
	pod := strings.Contains(name, ".pod."+cluster.Domain) && kind == "SRV"
	return pod || kind == "TXT" && name == namesNS+".svc."+cluster.Domain
}

// maxTTL is that of cluster names, in daemonset/nodens.yaml as in CoreDNS's Corefile.
const maxTTL = 30

// compared asks nodens on each node and CoreDNS the same queries, and wants the same
// replies, TTLs and the SOA's serial number excepted, and the case of letters: CoreDNS's
// cache has that of who asked first.
func (w *world) compared(ctx context.Context, s *suite) (string, error) {
	if w.client == nil {
		return "", errNotMade
	}
	list := w.queries("udp 0", "udp 1232", "tcp 0")
	var again atomic.Int64
	err := each(ordinary()[:2], func(pod string) error {
		left := list
		// CoreDNS may still hold what was true up to 30 s ago.
		return peer.Await(ctx, "CoreDNS and nodens to say the same", func(ctx context.Context) (err error) {
			if left, err = w.differ(ctx, s, pod, left); err != nil {
				again.Add(1)
			}
			return err
		})
	})
	seen := fmt.Sprintf("%d queries from each of 2 nodes", len(list))
	if n := again.Load(); n > 0 {
		seen += fmt.Sprintf(", alike after %d more looks", n)
	}
	return seen, err
}

// few is how many differences are told: enough to see what is wrong, and a screenful.
const few = 5

// differ gives those of the queries that are answered differently.
func (w *world) differ(ctx context.Context, s *suite, pod string, list []string) (left []string, err error) {
	out, err := w.exec(ctx, s, pod, strings.Join(list, "\n")+"\n", "probe", "wire", localDNS+":53", w.coreDNS+":53")
	if err != nil {
		return list, err
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 2*len(list) {
		return list, fmt.Errorf("%d lines for %d queries to 2 servers", len(lines), len(list))
	}
	var errs []error
	for i, query := range list {
		ours, theirs := strings.Split(lines[2*i], "\t"), strings.Split(lines[2*i+1], "\t")
		if len(ours) != 4 || len(theirs) != 4 || ours[1] != query || theirs[1] != query {
			return list, fmt.Errorf("what the probe writes is not about %s:\n%s\n%s", query, lines[2*i], lines[2*i+1])
		}
		ttl, err := strconv.Atoi(ours[2])
		if err != nil {
			return list, err
		}
		if !strings.EqualFold(ours[3], theirs[3]) || ttl > maxTTL {
			if left = append(left, query); len(left) > few {
				continue
			}
			errs = append(errs, fmt.Errorf("%s\n\tnodens, TTL %d: %s\n\tCoreDNS: %s", query, ttl, ours[3], theirs[3]))
		}
	}
	if len(left) > few {
		errs = append(errs, fmt.Errorf("and %d more", len(left)-few))
	}
	return left, errors.Join(errs...)
}
