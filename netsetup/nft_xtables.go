package netsetup

import (
	"context"
	"fmt"
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
	// program manages the chain: iptables-nft, ip6tables-legacy and so on.
	program *iptablesProgram
	// drops: the chain has rules of others, or does not accept what comes to its end.
	// Which of those lead to a drop, by way of chains that programs such as a CNI hang
	// in there, is not looked into.
	drops bool
	// ours are the rules of ours as the program prints them.
	ours []string
}

// xtables returns the name of the program that may manage a chain of nf_tables: "" if the chain
// is not of a form that iptables makes.
func (p nftHook) xtables() string {
	if p.Family == "inet" || !p.foreign() || p.Table != "filter" || p.Name != strings.ToUpper(p.Hook) {
		return ""
	}
	return p.family().String() + "-nft"
}

// nftLegacyHooks returns the chains that the legacy mode of iptables may manage on this node:
// none where its table filter has never been used, as listing the table would create it.
func nftLegacyHooks() []nftHook {
	var hooks []nftHook
	for _, f := range []string{"ip", "ip6"} {
		if !legacyTableLoaded(nftHook{Family: f}.family(), "filter") {
			continue
		}
		for _, hook := range []string{"input", "output"} {
			hooks = append(hooks, nftHook{Family: f, Table: "filter",
				Name: strings.ToUpper(hook), Type: "filter", Hook: hook})
		}
	}
	return hooks
}

// nftReadXtables reads one chain.
func nftReadXtables(ctx context.Context, p nftHook, program *iptablesProgram) (nftXtables, error) {
	c := nftXtables{nftHook: p, program: program}
	lines, err := program.list(ctx, "filter", p.Name)
	if err != nil {
		return c, err
	}
	for _, line := range lines {
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
	scripts := make(map[*iptablesProgram]string)
	var programs []*iptablesProgram
	for _, c := range chains {
		if !slices.Contains(programs, c.program) {
			programs = append(programs, c.program)
		}
		for _, line := range c.ours {
			scripts[c.program] += "-D" + strings.TrimPrefix(line, "-A") + "\n"
		}
		if c.drops {
			scripts[c.program] += c.accepts(w)
		}
	}
	for _, p := range programs {
		if scripts[p] == "" {
			continue
		}
		if err := p.restore(ctx, "*filter\n"+scripts[p]+"COMMIT\n"); err != nil {
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
