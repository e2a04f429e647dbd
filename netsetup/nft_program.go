package netsetup

import (
	"context"
	"slices"
	"strings"
)

// nftProgram is a family's iptables in mode nft: iptables-restore writes, and netlink reads and deletes.
// A single rule of another program that iptables can't express, such as `nft add rule ip raw PREROUTING
// udp dport 4789 notrack`, makes iptables refuse the table ("incompatible"), or print rules without
// what it does not know and end with status 0. Its message about a missing chain is about many other
// things as well.
type nftProgram struct{ *iptablesProgram }

// list implements ruleProgram: a line is an [nftRule]'s.
func (p nftProgram) list(ctx context.Context, table, chain string) (lines []string, err error) {
	rules, err := p.rules(ctx, table, chain)
	lines = []string{"-N " + chain}
	for _, r := range rules {
		lines = append(lines, r.line)
	}
	return lines, err
}

func (p nftProgram) rules(ctx context.Context, table, chain string) ([]nftRule, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return listRules(p.family.keyword(), table, chain)
}

// remove implements ruleProgram. Of equal rules it deletes the last: a jump that was written again
// at the head of its chain comes before the old one.
func (p nftProgram) remove(ctx context.Context, table string, lines, chains []string) error {
	var changes []nftChange
	taken := make(map[uint64]bool) // by handle
	for _, line := range lines {
		in := p.chain(table, strings.Fields(line)[1])
		rules, err := p.rules(ctx, table, in.name)
		if err != nil {
			return err
		}
		for _, r := range slices.Backward(rules) {
			if r.line == line && !taken[r.handle] {
				changes = append(changes, nftChange{deleteRule: r.handle, in: in})
				taken[r.handle] = true
				break
			}
		}
	}
	for _, name := range chains {
		changes = append(changes, nftChange{deleteChain: p.chain(table, name)})
	}
	return commit(changes)
}

func (p nftProgram) chain(table, name string) nftChain {
	return nftChain{family: p.family.keyword(), table: table, name: name}
}
