package netsetup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nftXtables is a chain managed by iptables: INPUT or OUTPUT of table filter. In mode nft the chain is
// one of nf_tables, but iptables refuses to read a table with rules that it can't express. In mode
// legacy only iptables can see it.
type nftXtables struct {
	nftHook
	// program manages the chain: iptables-nft, ip6tables-legacy and so on.
	program *iptablesProgram
	// drops: the chain has foreign rules, or a policy other than ACCEPT. Whether a foreign
	// rule leads to a drop is not examined.
	drops bool
	// ours are our rules as the program prints them.
	ours []string
	// policyRules and bypass are results of countPolicyRules.
	policyRules int
	bypass      bool
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
	isOurs := func(line string) bool { return strings.Contains(line, strconv.Quote(nftComment)) }
	c.policyRules, c.bypass = countPolicyRules(lines, isOurs)
	for _, line := range lines {
		switch {
		case isOurs(line):
			c.ours = append(c.ours, line)
		case line != "" && line != "-P "+p.Name+" ACCEPT":
			c.drops = true
		}
	}
	return c, nil
}

// nftWriteXtables replaces our rules in the chains, in one transaction for each program. It writes
// rules again that are in place.
func nftWriteXtables(ctx context.Context, chains []nftXtables, desired desiredRules) error {
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
			scripts[c.program] += c.accepts(desired)
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

// accepts returns the commands that insert our rules at the chain's head, or behind its jumps to
// policyChains.
func (c nftXtables) accepts(desired desiredRules) string {
	addr, port, from := "-d", "--dport", iptablesNotExternal(desired)
	if c.Hook == "output" {
		addr, port, from = "-s", "--sport", ""
	}
	var b strings.Builder
	for _, f := range nftFamilies(desired) {
		if f.keyword != c.Family {
			continue
		}
		for _, local := range f.addrs {
			for _, proto := range []string{"tcp", "udp"} {
				fmt.Fprintf(&b, "-I %s %d %s%s %v -p %s %s %d -m comment --comment %q -j ACCEPT\n",
					c.Name, c.policyRules+1, from, addr, local, proto, port, desired.dnsPort, nftComment)
			}
		}
	}
	return b.String()
}

// iptablesNotExternal matches packets from other than the external interfaces. A rule of iptables can
// name one interface only. With more of them it matches the packets that table inet nodens has left
// untracked, which never come from an external interface.
func iptablesNotExternal(desired desiredRules) string {
	switch len(desired.external) {
	case 0:
		return ""
	case 1:
		return "! -i " + desired.external[0] + " "
	}
	return "-m conntrack --ctstate UNTRACKED "
}
