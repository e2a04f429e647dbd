package netsetup

import (
	"context"
	"errors"
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

// deleteRule implements ruleProgram. Of equal rules it deletes the last: a jump that was written again
// at the head of its chain comes before the old one.
func (p nftProgram) deleteRule(ctx context.Context, table, line string) error {
	chain := splitRule(line)[1]
	rules, err := p.rules(ctx, table, chain)
	if errors.Is(err, errNoChain) {
		return nil
	}
	for i := len(rules) - 1; i >= 0; i-- {
		if rules[i].line == line {
			return commit([]nftChange{{deleteRule: rules[i].handle, in: p.chain(table, chain)}})
		}
	}
	return err
}

// deleteChain implements ruleProgram.
func (p nftProgram) deleteChain(_ context.Context, table, chain string) error {
	err := commit([]nftChange{{deleteChain: p.chain(table, chain)}})
	if errors.Is(err, errRuleGone) {
		return nil
	}
	return err
}

func (p nftProgram) chain(table, name string) nftChain {
	return nftChain{family: p.family.keyword(), table: table, name: name}
}
