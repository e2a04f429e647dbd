// These tests use errNoChain, which is not exported.

package netsetup

// Inside the package: the tables belong to fakeNode.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fakeTables is the tables of iptables, for Fake: chains by "PROGRAM TABLE CHAIN". It knows
// the commands that this package uses, and keeps rules word for word.
type fakeTables map[string][]string

func newFakeTables() fakeTables {
	m := make(fakeTables)
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, base := range []string{
			"filter INPUT", "filter FORWARD", "filter OUTPUT",
			"nat PREROUTING", "nat INPUT", "nat OUTPUT", "nat POSTROUTING",
			"raw PREROUTING", "raw OUTPUT",
		} {
			m[program+" "+base] = nil
		}
	}
	return m
}

// dump gives every rule and every chain that is not the kernel's, one a line.
func (m fakeTables) dump() (lines []string) {
	base := newFakeTables()
	for _, key := range slices.Sorted(maps.Keys(m)) {
		at := key[:strings.LastIndex(key, " ")]
		if _, found := base[key]; !found {
			lines = append(lines, at+" -N "+key[len(at)+1:])
		}
		for _, r := range m[key] {
			lines = append(lines, at+" -A "+key[len(at)+1:]+" "+r)
		}
	}
	return lines
}

// runCommand runs one command line.
func (m fakeTables) runCommand(input, program string, args []string) (string, error) {
	if name, restores := strings.CutSuffix(program, "-restore"); restores {
		return "", m.restore(name, input)
	}
	if len(args) > 1 && args[0] == "-w" {
		args = args[2:]
	}
	if len(args) < 3 || args[0] != "-t" {
		return "", fmt.Errorf("%s: no table in %q", program, args)
	}
	if args[2] == "-S" {
		return m.list(program+" "+args[1], args[3])
	}
	return "", m.apply(program+" "+args[1], strings.Join(args[2:], " "))
}

func (m fakeTables) list(at, chain string) (string, error) {
	rules, found := m[at+" "+chain]
	if !found {
		return "", fmt.Errorf("%w: %s", errNoChain, chain)
	}
	text := "-N " + chain + "\n"
	for _, r := range rules {
		text += "-A " + chain + " " + r + "\n"
	}
	return text, nil
}

// restore applies the tables of input one by one, each whole or not at all.
func (m fakeTables) restore(program, input string) error {
	var at string
	var staged fakeTables
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		var err error
		switch {
		case strings.HasPrefix(line, "*"):
			at, staged = program+" "+line[1:], make(fakeTables)
			for key, rules := range m {
				staged[key] = slices.Clone(rules)
			}
		case line == "COMMIT":
			clear(m)
			maps.Copy(m, staged)
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			staged[at+" "+name] = nil
		default:
			err = staged.apply(at, line)
		}
		if err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
	}
	return nil
}

// apply changes one table.
func (m fakeTables) apply(at, line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	chain, rule, _ := strings.Cut(rest, " ")
	key := at + " " + chain
	if _, found := m[key]; !found {
		return fmt.Errorf("%w: %s", errNoChain, chain)
	}
	switch verb {
	case "-A":
		m[key] = append(m[key], rule)
	case "-I":
		number, rule, _ := strings.Cut(rule, " ")
		at, err := strconv.Atoi(number)
		if err != nil || at < 1 || at > len(m[key])+1 {
			return fmt.Errorf("no position for a rule: %s", line)
		}
		m[key] = slices.Insert(m[key], at-1, rule)
	case "-D":
		i := slices.Index(m[key], rule)
		if i < 0 {
			return fmt.Errorf("no such rule: %s", line)
		}
		m[key] = slices.Delete(m[key], i, i+1)
	case "-F":
		m[key] = nil
	case "-X":
		return m.drop(at, chain)
	default:
		return fmt.Errorf("unknown command: %s", line)
	}
	return nil
}

// drop removes a chain that is empty and that no rule leads to.
func (m fakeTables) drop(at, chain string) error {
	for key, rules := range m {
		leads := func(r string) bool { return strings.HasSuffix(r, "-j "+chain) }
		if strings.HasPrefix(key, at+" ") && slices.ContainsFunc(rules, leads) {
			return fmt.Errorf("chain %s is in use by %s", chain, key)
		}
	}
	if len(m[at+" "+chain]) > 0 {
		return fmt.Errorf("chain %s is not empty", chain)
	}
	delete(m, at+" "+chain)
	return nil
}
