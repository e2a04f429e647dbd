package netsetup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// legacyChain is INPUT or OUTPUT of table filter in iptables' legacy mode, which only iptables can see,
// for [nftBackend].
type legacyChain struct {
	family Family
	name   string
	// program manages the chain: iptables-legacy or ip6tables-legacy.
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

// readLegacy reads the chains that drop packets or have rules of ours: none where table filter has
// never been used, as listing the table would create it, and none without the program.
func readLegacy(ctx context.Context, programs *programSet) (list []legacyChain, err error) {
	for _, f := range families() {
		if !legacyTableLoaded(f, "filter") {
			continue
		}
		program, err := programs.open(ctx, f, f.String()+"-legacy")
		if errors.Is(err, ErrNoTool) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"INPUT", "OUTPUT"} {
			c := legacyChain{family: f, name: name, program: program}
			if err := c.read(ctx); err != nil {
				return nil, err
			}
			if c.drops || len(c.ours) > 0 {
				list = append(list, c)
			}
		}
	}
	return list, nil
}

func (c *legacyChain) read(ctx context.Context) error {
	lines, err := c.program.list(ctx, "filter", c.name)
	if err != nil {
		return err
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, jumpText) }) // see foreignChain
	isOurs := func(line string) bool { return strings.Contains(line, `"`+nftComment) }
	c.policyRules, c.bypass = countPolicyRules(lines, isOurs)
	for _, line := range lines {
		switch {
		case isOurs(line):
			c.ours = append(c.ours, line)
		case line != "" && line != "-P "+c.name+" ACCEPT":
			c.drops = true
		}
	}
	return nil
}

// writeLegacy replaces our rules in the chains, in one transaction for each program. It writes rules
// again that are in place.
func writeLegacy(ctx context.Context, list []legacyChain, desired desiredRules) error {
	scripts := make(map[*iptablesProgram]string)
	var programs []*iptablesProgram
	for _, c := range list {
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
func (c legacyChain) accepts(desired desiredRules) (script string) {
	for _, r := range acceptRules(c.family.keyword(), strings.ToLower(c.name), desired) {
		script += fmt.Sprintf("-I %s %d %s\n", c.name, c.policyRules+1, r.iptables())
	}
	return script
}
