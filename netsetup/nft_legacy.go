package netsetup

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// nftLegacy is a chain of the nft build of iptables: INPUT or OUTPUT of table filter. It
// is nf_tables' in the kernel, but that program refuses to read a table in which rules
// stand that it would not have made itself.
type nftLegacy struct {
	nftPlace
	// drops: the chain has rules of others, or does not accept what comes to its end.
	// Which of those lead to a drop, by way of chains that programs such as a CNI hang
	// in there, is not looked into.
	drops bool
	// ours are the rules of ours as the program prints them.
	ours []string
}

// nftLegacyTool is the program that keeps the tables of a family.
func nftLegacyTool(family string) string {
	if family == "ip6" {
		return "ip6tables-nft"
	}
	return "iptables-nft"
}

// nftReadLegacy reads one chain.
func nftReadLegacy(ctx context.Context, p nftPlace) (nftLegacy, error) {
	c := nftLegacy{nftPlace: p}
	out, err := nftRun(ctx, "", nftLegacyTool(p.Family), "-w", "-S", p.Name)
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(out)) {
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

// nftWriteLegacy takes our rules out of the chains and puts those for w in, in one
// transaction for each family. What is written there already is written again: the
// caller has seen that something is not as it should be.
func nftWriteLegacy(ctx context.Context, chains []nftLegacy, w want) error {
	for _, family := range []string{"ip", "ip6"} {
		var b strings.Builder
		for _, c := range chains {
			if c.Family != family {
				continue
			}
			for _, line := range c.ours {
				b.WriteString("-D" + strings.TrimPrefix(line, "-A") + "\n")
			}
			if c.drops {
				b.WriteString(c.accepts(w))
			}
		}
		if b.Len() == 0 {
			continue
		}
		script := "*filter\n" + b.String() + "COMMIT\n"
		if _, err := nftRun(ctx, script, nftLegacyTool(family)+"-restore", "--noflush", "-w"); err != nil {
			return err
		}
	}
	return nil
}

// accepts are the lines that put our rules at the chain's head.
func (c nftLegacy) accepts(w want) string {
	addr, port := "-d", "--dport"
	if c.Hook == "output" {
		addr, port = "-s", "--sport"
	}
	var b strings.Builder
	for _, f := range nftFamilies(w) {
		if f.word != c.Family {
			continue
		}
		for _, local := range f.locals {
			for _, proto := range []string{"tcp", "udp"} {
				fmt.Fprintf(&b, "-I %s %s %v -p %s %s %d -m comment --comment %q -j ACCEPT\n",
					c.Name, addr, local, proto, port, w.dns, nftComment)
			}
		}
	}
	return b.String()
}
