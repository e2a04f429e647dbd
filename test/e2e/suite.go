package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/peer"
)

// check is a line of the table.
type check struct {
	// name says what is true if it passes.
	name string
	// run returns what was seen, in a few words with the numbers, or why it fails.
	run func(ctx context.Context, s *suite) (seen string, err error)
}

// part is a group of checks in one cluster.
type part struct {
	name string
	// kind is what cluster it needs; parts with the same one share it.
	kind clusterKind
	// agent says that nodens has to be installed, from daemonset/nodens.yaml, before it
	// begins.
	agent bool
	// beside says that it runs in a cluster of its own beside the other parts. With -network no part
	// does.
	beside bool
	// wanted says that it runs only if it is named.
	wanted bool
	checks []check
}

// clusterKind is a kind of cluster.
type clusterKind struct {
	// release is a minor release of Kubernetes; "" is the one of most tests.
	release   string
	proxy     string
	dualStack bool
	// network is the name of the pod network.
	network string
	// clusterDNS says that the kubelets name the cluster's DNS, not the agent, and that one more node can
	// join.
	clusterDNS bool
}

// The clusters that parts run in.
var (
	singleStackKind = clusterKind{proxy: "iptables"}
	dualStackKind   = clusterKind{proxy: "nftables", dualStack: true}
	adoptionKind    = clusterKind{proxy: "iptables", clusterDNS: true}
)

// parts returns all parts, in their order.
func parts() []part {
	return []part{
		{name: "drop-in", kind: singleStackKind, checks: dropIn()},
		{name: "install", kind: singleStackKind, checks: install()},
		{name: "names", kind: singleStackKind, agent: true, checks: names()},
		{name: "scraping", kind: singleStackKind, agent: true, checks: scraping()},
		{name: "attribution", kind: singleStackKind, agent: true, checks: attribution()},
		{name: "incident", kind: singleStackKind, agent: true, checks: incident()},
		{name: "rollback", kind: singleStackKind, agent: true, beside: true, checks: rollback()},
		{name: "chaos", kind: singleStackKind, agent: true, beside: true, checks: chaos()},
		{name: "egress", kind: singleStackKind, agent: true, beside: true, checks: egress()},
		{name: networkPart, kind: singleStackKind, beside: true}, // its checks depend on the network
		{name: "dual-stack", kind: dualStackKind, beside: true, checks: dualStack()},
		{name: "adoption", kind: adoptionKind, checks: adoption()},
		{name: "release", kind: singleStackKind, wanted: true, checks: releases()},
		{name: "demo", kind: singleStackKind, wanted: true, checks: demo()},
	}
}

// selection is what the flags select: the lists of their values. Of an empty one, each part takes
// what it usually has.
type selection struct{ parts, networks, proxies, releases []string }

// kinds returns the kinds of clusters that are selected, with "" for what is not.
func (sel selection) kinds() (kinds []clusterKind, err error) {
	networks, err := networkNames(sel.networks)
	if err != nil {
		return nil, fmt.Errorf("-network: %w", err)
	}
	releases, err := releaseNames(sel.releases)
	if err != nil {
		return nil, fmt.Errorf("-release: %w", err)
	}
	proxies := sel.proxies
	if len(proxies) == 0 {
		proxies = []string{""}
	}
	for _, network := range networks {
		for _, proxy := range proxies {
			for _, release := range releases {
				kinds = append(kinds, clusterKind{network: network, proxy: proxy, release: release})
			}
		}
	}
	return kinds, nil
}

// plan returns the selected parts in the selected kinds of clusters. Without networks, the part network runs on
// another one than the other parts.
func plan(sel selection) (planned []part, err error) {
	usual := len(sel.networks)+len(sel.proxies)+len(sel.releases) == 0
	kinds, err := sel.kinds()
	if err != nil {
		return nil, err
	}
	chosen, err := wantedParts(sel.parts)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	for _, kind := range kinds {
		for _, p := range chosen {
			p.kind.release, p.kind.proxy = kind.release, cmp.Or(kind.proxy, p.kind.proxy)
			if p.kind.network = kind.network; usual && p.name == networkPart {
				p.kind.network = usualOtherNetwork
			}
			if err := p.onNetwork(); err != nil {
				return nil, err
			}
			p.beside = p.beside && usual
			planned = append(planned, p)
		}
	}
	return planned, nil
}

// wantedParts returns the parts of these names in their order; all if there are no names.
func wantedParts(names []string) (list []part, err error) {
	all := parts()
	var known []string
	for _, p := range all {
		known = append(known, p.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no part %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(p part) bool { return p.wanted }), nil
	}
	return slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

// onNetwork completes the part network.
func (p *part) onNetwork() error {
	if p.name != networkPart {
		return nil
	}
	network, err := cluster.FindPodNetwork(p.kind.network)
	p.name += " " + network.Name
	p.checks = networkChecks(network, p.kind.proxy)
	return err
}

// networkNames resolves all, and the default.
func networkNames(wanted []string) (names []string, err error) {
	if len(wanted) == 0 {
		return []string{cluster.PodNetworks()[0].Name}, nil
	}
	if slices.Equal(wanted, []string{"all"}) {
		for _, network := range cluster.PodNetworks() {
			if network.Missing == "" {
				names = append(names, network.Name)
			}
		}
		return names, nil
	}
	for _, name := range wanted {
		if _, err := cluster.FindPodNetwork(name); err != nil {
			return nil, err
		}
	}
	return wanted, nil
}

// releaseNames resolves all, and the default.
func releaseNames(wanted []string) ([]string, error) {
	all := peer.Releases()
	switch {
	case len(wanted) == 0:
		return []string{""}, nil
	case slices.Equal(wanted, []string{"all"}):
		return all, nil
	}
	for _, release := range wanted {
		if !slices.Contains(all, release) {
			return nil, fmt.Errorf("there is no release %q; there are %s", release, strings.Join(all, ", "))
		}
	}
	return wanted, nil
}

// suite is one run.
type suite struct {
	keep bool
	dir  string
	// out is the document to write, and networkOut the one whose table of networks is
	// written; none if it is empty.
	out, networkOut string
	// incidentOut is the document whose outputs of commands the part incident writes; none if it is empty.
	incidentOut string
	// outage is how long the API server is away when that is looked at.
	outage time.Duration
	// bad are the bad agents that the part rollback rolls out.
	bad []badAgent
	// root is the tree's top.
	root string
	// images are the files of what nodes have.
	images *imageFiles
	clusterState
	results []result
	// retry says that parts with failed checks run once more, and firstTries has what failed before.
	retry      bool
	firstTries []result
}

// clusterState is what belongs to the parts that run one after the other. Parts that run beside them
// have one of their own.
type clusterState struct {
	// cluster is the one that is up, of kind stage, and agent says that nodens is
	// installed in it.
	cluster *cluster.Cluster
	kind    clusterKind
	agent   bool
	// leftovers is what clusters have left behind.
	leftovers []string
	// networkRows has the results of the part network, versions the version of each pod network by
	// the network's name, and kubernetesVersion the release of the clusters.
	networkRows       []*networkRow
	versions          map[string]string
	kubernetesVersion string
}

// result is a check's outcome.
type result struct {
	part, name, seen string
	err              error
	took             time.Duration
}

// run runs the parts, and prints the table.
func (s *suite) run(ctx context.Context, planned []part) (err error) {
	if s.root, err = peer.Root(); err != nil {
		return err
	}
	dir, remove, err := cluster.WorkDir(s.dir, "nodens-e2e-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	s.dir, s.images = dir, new(imageFiles)
	beside := *s
	var parts sync.WaitGroup
	for _, one := range []*suite{s, &beside} {
		parts.Go(func() {
			one.runParts(ctx, slices.DeleteFunc(slices.Clone(planned), func(p part) bool { return p.beside != (one == &beside) }))
		})
	}
	parts.Wait()
	s.results = append(s.results, beside.results...)
	s.addState(&beside.clusterState)
	if s.retry {
		s.retryFailed(ctx, planned, &beside, s.runPart)
	}
	interrupted := context.Cause(ctx)
	if s.keep {
		fmt.Println("the cluster stays up; interrupt to end it")
		<-ctx.Done()
	}
	s.runCheck(ctx, "end", check{"nothing is left behind", func(context.Context, *suite) (string, error) {
		return s.checkLeftovers(&beside)
	}})
	if s.out != "" {
		err = s.writeResults(ctx, s.out)
	}
	if s.networkOut != "" {
		err = errors.Join(err, s.writeNetworkTable(ctx, s.networkOut))
	}
	return errors.Join(interrupted, s.printSummary(os.Stdout), err)
}

// addRow adds a row of the table of networks, which is about the cluster that is up.
func (s *suite) addRow(row *networkRow) {
	row.kubernetes = s.kubernetesVersion
	s.networkRows = append(s.networkRows, row)
}

// runParts runs the parts one after the other. A cluster stays up at the end.
func (s *suite) runParts(ctx context.Context, planned []part) {
	completed := false
	defer func() {
		if !completed { // a panic
			_ = s.stopCluster()
		}
	}()
	for _, p := range planned {
		if ctx.Err() == nil {
			s.runPart(ctx, p)
		}
	}
	completed = true
}

// addState adds the results about networks in other.
func (s *suite) addState(other *clusterState) {
	s.networkRows = append(s.networkRows, other.networkRows...)
	for network, version := range other.versions {
		s.setVersion(network, version)
	}
	s.kubernetesVersion = cmp.Or(s.kubernetesVersion, other.kubernetesVersion)
}

// setVersion records the version of a pod network.
func (s *suite) setVersion(network, version string) {
	if s.versions == nil {
		s.versions = make(map[string]string)
	}
	s.versions[network] = version
}

// runPart runs a part's checks. One that fails doesn't keep the next from running, what
// they need does.
func (s *suite) runPart(ctx context.Context, p part) {
	if !s.runCheck(ctx, p.name, check{"the cluster is up", func(ctx context.Context, s *suite) (string, error) {
		return s.prepare(ctx, p)
	}}) {
		return
	}
	for _, c := range p.checks {
		if ctx.Err() == nil {
			s.runCheck(ctx, p.name, c)
		}
	}
}

func (s *suite) runCheck(ctx context.Context, part string, c check) bool {
	began := time.Now()
	seen, err := c.run(ctx, s)
	l := result{part: part, name: c.name, seen: seen, err: err, took: time.Since(began)}
	s.results = append(s.results, l)
	l.print(os.Stdout)
	// An interrupt of the terminal has ended the API server, too.
	if err != nil && s.cluster != nil && !errors.Is(err, errNoLoadPods) && ctx.Err() == nil {
		fmt.Println(s.diagnose(ctx))
	}
	return err == nil
}

func (l result) print(w io.Writer) {
	verdict, seen := "ok  ", l.seen
	if l.err != nil {
		verdict, seen = "FAIL", l.err.Error()
	}
	fmt.Fprintf(w, "%s  %-12s %-66s %6.1f s  %s\n", verdict, l.part, l.name, l.took.Seconds(), seen)
}

// printSummary prints all lines, and is an error if one failed or there is none.
func (s *suite) printSummary(w io.Writer) error {
	failed := 0
	fmt.Fprintln(w, "\nChecks in a real cluster:")
	for _, l := range s.results {
		l.print(w)
		if l.err != nil {
			failed++
		}
	}
	s.printFailures(w)
	fmt.Fprintf(w, "e2e: %d passed, %d failed\n", len(s.results)-failed, failed)
	if failed > 0 || len(s.results) == 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(s.results))
	}
	return nil
}
