package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/file"
	"github.com/nodens-dns/nodens/test/e2e/cluster"
	"github.com/nodens-dns/nodens/test/rig/load"
)

// networkRow is the result of the part network on a network with one mode of kube-proxy, in one mode of the kernel path.
// kubernetes is the cluster's version.
type networkRow struct {
	network, proxy, kubernetes, kernelPath string

	names comparison
	// upgrade has the losses of all rollouts, kill those of a killed agent's node.
	upgrade, kill lossSum
	// policy says that no policies are enforced. If it is empty, policyChecks is the number of the
	// passed checks.
	policy       string
	policyChecks int
	// clusterIPsOpen: see cluster.PodNetwork.
	clusterIPsOpen bool
}

// newNetworkRow returns the row of a network in one mode, without results.
func newNetworkRow(network cluster.PodNetwork, proxy, kernelPath string) *networkRow {
	return &networkRow{network: network.Name, proxy: proxy, kernelPath: kernelPath, clusterIPsOpen: network.ClusterIPsOpen}
}

// allPolicyChecks is the number of checks of policies.
const allPolicyChecks = 3

// policyCheck returns a check that counts in the row if it passes.
func (r *networkRow) policyCheck(name string, run func(context.Context, *suite) (string, error)) check {
	return check{name, func(ctx context.Context, s *suite) (string, error) {
		seen, err := run(ctx, s)
		if err == nil {
			r.policyChecks++
		}
		return seen, err
	}}
}

// lossSum is the sum of losses of events that were within their limits.
type lossSum struct{ lost, asked uint64 }

func (l *lossSum) add(c load.Counts) { l.lost, l.asked = l.lost+c.Failed(), l.asked+c.Asked }

// failedCell is the result of a check that failed or was not run.
const failedCell = "**failed**"

func (l lossSum) String() string {
	if l.asked == 0 {
		return failedCell
	}
	return fmt.Sprintf("%d of %d", l.lost, l.asked)
}

// String returns the row in Markdown.
func (r *networkRow) String() string {
	names, policy := failedCell, r.policy
	if r.names.queries > 0 {
		names = fmt.Sprintf("%d of %d", r.names.queries-r.names.different, r.names.queries)
	}
	switch {
	case policy != "":
	case r.policyChecks != allPolicyChecks:
		policy = failedCell
	case r.clusterIPsOpen:
		policy = "at the link-local address"
	default:
		policy = "yes"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.network, r.proxy, r.kubernetes, r.kernelPath, names, r.upgrade, r.kill, policy)
}

// The lines of a document between which the table of networks is.
const (
	networkTableBegin = "<!-- Written by make e2e-networks -->\n"
	networkTableEnd   = "<!-- End of what make e2e-networks writes -->\n"
)

// writeNetworkTable replaces the table in the document. Rows of networks that were not run stay.
func (s *suite) writeNetworkTable(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), networkTableBegin)
	old, after, ends := strings.Cut(rest, networkTableEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q for the table", path, networkTableBegin, networkTableEnd)
	}
	kernel, err := exec.CommandContext(context.WithoutCancel(ctx), "uname", "-r").Output()
	if err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	release, _, _ := strings.Cut(strings.TrimSpace(string(kernel)), "-")
	table := s.networkTable(old) + fmt.Sprintf("- Linux %s\n", release)
	return file.Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, before+networkTableBegin+"\n"+table+"\n"+networkTableEnd+after)
		return err
	})
}

// rowKey returns what a row is about, from its line: the network, kube-proxy's mode and the minor release of Kubernetes. It
// is empty for other lines.
func rowKey(line string) string {
	cells := strings.Split(line, "|")
	if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[3]), "v") {
		return ""
	}
	version := strings.Split(strings.TrimSpace(cells[3]), ".")
	return strings.TrimSpace(cells[1]) + " " + strings.TrimSpace(cells[2]) + " " + strings.Join(version[:min(2, len(version))], ".")
}

// networkTable returns the table and the versions of the networks, with what the old text has about
// clusters that were not run.
func (s *suite) networkTable(old string) string {
	rows, versions := make(map[string]string), make(map[string]string)
	for line := range strings.Lines(old) {
		if key := rowKey(line); key != "" {
			rows[key] += line
		}
		if name, version, ok := strings.Cut(strings.TrimPrefix(line, "- "), ": "); ok {
			versions[name] = strings.TrimSpace(version)
		}
	}
	maps.Copy(versions, s.versions)
	for _, row := range s.networkRows {
		delete(rows, rowKey(row.String()))
	}
	for _, row := range s.networkRows {
		rows[rowKey(row.String())] += row.String()
	}
	var table, list strings.Builder
	for _, network := range cluster.PodNetworks() {
		named := false
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			if name, _, _ := strings.Cut(key, " "); name == network.Name {
				table.WriteString(rows[key])
				named = true
			}
		}
		if named {
			fmt.Fprintf(&list, "- %s: %s\n", network.Name, versions[network.Name])
		}
	}
	return "| network | kube-proxy | Kubernetes | kernel path | names right | lost in upgrades | lost in a kill | policy held |\n|---|---|---|---|--:|--:|--:|---|\n" +
		table.String() + "\nVersions:\n\n" + list.String()
}
