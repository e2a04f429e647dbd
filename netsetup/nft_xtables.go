package netsetup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// nftXtables is a chain of iptables: INPUT or OUTPUT of table filter. Those of the nft
// build are nf_tables' in the kernel, but that program refuses to read a table in which
// rules stand that it would not have made itself. Those of the legacy build are seen by
// nobody else.
type nftXtables struct {
	nftHook
	// tool is the program that keeps the chain: iptables-nft, ip6tables-legacy and so on.
	tool string
	// drops: the chain has rules of others, or does not accept what comes to its end.
	// Which of those lead to a drop, by way of chains that programs such as a CNI hang
	// in there, is not looked into.
	drops bool
	// ours are the rules of ours as the program prints them.
	ours []string
}

// xtables is the program that keeps a chain of nf_tables, "" if nft does, or if it is not
// installed.
func (p nftHook) xtables() string {
	tool := map[string]string{"ip": "iptables-nft", "ip6": "ip6tables-nft"}[p.Family]
	if tool == "" || !p.foreign() || p.Table != "filter" || p.Name != strings.ToUpper(p.Hook) {
		return ""
	}
	if _, err := exec.LookPath(tool); err != nil {
		return ""
	}
	return tool
}

// nftLegacyHooks are the chains that the legacy build of iptables keeps on this node:
// none where its table filter has never been used, as asking it would make it.
func nftLegacyHooks() []nftHook {
	var places []nftHook
	for _, f := range []struct{ family, names string }{
		{"ip", "/proc/net/ip_tables_names"},
		{"ip6", "/proc/net/ip6_tables_names"},
	} {
		names, err := os.ReadFile(f.names)
		if err != nil || !slices.Contains(strings.Fields(string(names)), "filter") {
			continue // no file: the kernel has no such tables
		}
		if _, err := exec.LookPath(nftLegacyTool(f.family)); err != nil {
			continue
		}
		for _, hook := range []string{"input", "output"} {
			places = append(places, nftHook{Family: f.family, Table: "filter",
				Name: strings.ToUpper(hook), Type: "filter", Hook: hook})
		}
	}
	return places
}

// nftLegacyTool is the legacy build's program for a family.
func nftLegacyTool(family string) string {
	if family == "ip6" {
		return "ip6tables-legacy"
	}
	return "iptables-legacy"
}

// nftReadXtables reads one chain.
func nftReadXtables(ctx context.Context, p nftHook, tool string) (nftXtables, error) {
	c := nftXtables{nftHook: p, tool: tool}
	out, err := execute(ctx, "", tool, "-w", "-S", p.Name)
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, strconv.Quote(nftComment)):
			c.ours = append(c.ours, line)
		case line != "" && line != "-P "+p.Name+" ACCEPT":
			c.drops = true
		}
	}
	return c, nil
}

// nftWriteXtables takes our rules out of the chains and puts those for w in, in one
// transaction for each program. What is written there already is written again: the
// caller has seen that something is not as it should be.
func nftWriteXtables(ctx context.Context, chains []nftXtables, w desiredRules) error {
	edits := make(map[string]string)
	var tools []string
	for _, c := range chains {
		if edits[c.tool] == "" {
			tools = append(tools, c.tool)
		}
		for _, line := range c.ours {
			edits[c.tool] += "-D" + strings.TrimPrefix(line, "-A") + "\n"
		}
		if c.drops {
			edits[c.tool] += c.accepts(w)
		}
	}
	for _, tool := range tools {
		if edits[tool] == "" {
			continue
		}
		script := "*filter\n" + edits[tool] + "COMMIT\n"
		if _, err := execute(ctx, script, tool+"-restore", "--noflush", "-w"); err != nil {
			return err
		}
	}
	return nil
}

// accepts are the lines that put our rules at the chain's head.
func (c nftXtables) accepts(w desiredRules) string {
	addr, port, from := "-d", "--dport", iptablesNotExternal(w)
	if c.Hook == "output" {
		addr, port, from = "-s", "--sport", ""
	}
	var b strings.Builder
	for _, f := range nftFamilies(w) {
		if f.word != c.Family {
			continue
		}
		for _, local := range f.locals {
			for _, proto := range []string{"tcp", "udp"} {
				fmt.Fprintf(&b, "-I %s %s%s %v -p %s %s %d -m comment --comment %q -j ACCEPT\n",
					c.Name, from, addr, local, proto, port, w.dnsPort, nftComment)
			}
		}
	}
	return b.String()
}

// iptablesNotExternal matches what comes in by no external interface. A rule of iptables can name one
// interface only. Where there are more it matches what the table inet nodens has left
// untracked, which is nothing that came in by one of them.
func iptablesNotExternal(w desiredRules) string {
	switch len(w.external) {
	case 0:
		return ""
	case 1:
		return "! -i " + w.external[0] + " "
	}
	return "-m conntrack --ctstate UNTRACKED "
}
