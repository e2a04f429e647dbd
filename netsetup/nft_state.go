package netsetup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// nftKubeProxy is the name of kube-proxy's tables, one in each family. They drop no DNS packets for a
// local address.
const nftKubeProxy = "kube-proxy"

// nftState is our table, and the foreign chains that have, or need, rules of ours.
type nftState struct {
	// own is our table as nft prints it; "": none.
	own string
	// chains are the foreign base chains at the hooks input and output that drop packets or
	// have a rule of ours; xtables are those managed by iptables.
	chains  []nftChain
	xtables []nftXtables
}

// nftChain is a foreign chain.
type nftChain struct {
	nftHook
	drops bool
	ours  []nftRule
}

// nftHook is a base chain in the output of nft.
type nftHook struct {
	Family, Table, Name string
	Type, Hook, Policy  string
}

// String returns the chain in nft's syntax.
func (p nftHook) String() string { return p.Family + " " + p.Table + " " + p.Name }

// family is the address family of a chain in family ip or ip6.
func (p nftHook) family() Family {
	if p.Family == "ip6" {
		return IPv6
	}
	return IPv4
}

// nftRule is a rule of ours. The kernel's handle is needed to delete it.
type nftRule struct {
	handle int
	text   string
}

// readNftState reads the state. Its cost grows with the number of chains, not of rules: listing the
// chains of a node with 25,000 Services takes 0.15 s.
func readNftState(ctx context.Context, programs *programSet) (nftState, error) {
	var s nftState
	own, err := execute(ctx, "", "nft", "-s", "list", "table", "inet", "nodens")
	if err != nil && !errors.Is(err, errNotFound) {
		return s, err
	}
	s.own = own
	err = s.readForeign(ctx, programs)
	return s, err
}

// readForeign reads the foreign chains.
func (s *nftState) readForeign(ctx context.Context, programs *programSet) error {
	places, err := nftListChains(ctx)
	if err != nil {
		return err
	}
	for _, p := range places {
		err := errNotXtables
		if name := p.xtables(); name != "" {
			err = s.addXtables(ctx, p, programs, name)
		}
		if errors.Is(err, errNotXtables) || errors.Is(err, ErrNoTool) {
			err = s.addChain(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	for _, p := range nftLegacyHooks() {
		if err := s.addXtables(ctx, p, programs, p.family().String()+"-legacy"); err != nil && !errors.Is(err, ErrNoTool) {
			return err
		}
	}
	return nil
}

func (s *nftState) addChain(ctx context.Context, p nftHook) error {
	if !p.foreign() {
		return nil
	}
	c, err := nftReadChain(ctx, p)
	if errors.Is(err, errSyntax) {
		return nil
	}
	if err == nil && (c.drops || len(c.ours) > 0) {
		s.chains = append(s.chains, c)
	}
	return err
}

func (s *nftState) addXtables(ctx context.Context, p nftHook, programs *programSet, name string) error {
	program, err := programs.open(ctx, p.family(), name)
	if err != nil {
		return err
	}
	c, err := nftReadXtables(ctx, p, program)
	if err == nil && (c.drops || len(c.ours) > 0) {
		s.xtables = append(s.xtables, c)
	}
	return err
}

// nftNamePattern matches the names that nft can parse. Programs that use netlink can make others;
// such chains are left alone.
var nftNamePattern = regexp.MustCompile(`^[A-Za-z_][\w./\\-]*$`)

// foreign reports whether p is a foreign chain that DNS packets of this node pass.
func (p nftHook) foreign() bool {
	ours := p.Table == "nodens" || strings.HasPrefix(p.Table, "nodens-")
	return !ours && p.Table != nftKubeProxy && p.Type == "filter" &&
		slices.Contains([]string{"input", "output"}, p.Hook) &&
		slices.Contains([]string{"inet", "ip", "ip6"}, p.Family) &&
		nftNamePattern.MatchString(p.Table) && nftNamePattern.MatchString(p.Name)
}

// nftListChains lists the base chains of all tables.
func nftListChains(ctx context.Context) ([]nftHook, error) {
	out, err := execute(ctx, "", "nft", "-j", "list", "chains")
	if err != nil {
		return nil, err
	}
	var places []nftHook
	err = nftEachObject(out, func(key string, val json.RawMessage) error {
		if key != "chain" || !bytes.Contains(val, []byte(`"hook"`)) {
			return nil // most are the chains of Services
		}
		var p nftHook
		if err := json.Unmarshal(val, &p); err != nil {
			return err
		}
		if p.Hook != "" {
			places = append(places, p)
		}
		return nil
	})
	return places, err
}

// nftReadChain reads the rules of one chain.
func nftReadChain(ctx context.Context, p nftHook) (nftChain, error) {
	c := nftChain{nftHook: p, drops: p.Policy == "drop"}
	out, err := execute(ctx, "", "nft", "-j", "-a", "list", "chain", p.Family, p.Table, p.Name)
	if err != nil {
		return c, err
	}
	last := false
	err = nftEachObject(out, func(key string, val json.RawMessage) error {
		if key != "rule" {
			return nil
		}
		var r struct {
			Handle  int
			Comment string
			Expr    []json.RawMessage
		}
		if err := json.Unmarshal(val, &r); err != nil {
			return err
		}
		if r.Comment == nftComment {
			c.ours = append(c.ours, nftRule{r.Handle, fmt.Sprintf("%s", r.Expr)})
		} else {
			last = nftDropsAll(r.Expr)
		}
		return nil
	})
	c.drops = c.drops || last
	return c, err
}

// nftDropsAll reports whether a rule drops or rejects every packet.
func nftDropsAll(expr []json.RawMessage) bool {
	drops := false
	for _, e := range expr {
		var statement map[string]json.RawMessage
		if json.Unmarshal(e, &statement) != nil {
			return false
		}
		for key, val := range statement {
			switch {
			case key == "counter", key == "log":
			case key == "drop", key == "reject", key == "xt" && nftRejects(val):
				drops = true
			default:
				return false // a condition, or another verdict
			}
		}
	}
	return drops
}

// nftRejects reports whether an iptables extension is the target REJECT.
func nftRejects(xt json.RawMessage) bool {
	var x struct{ Type, Name string }
	return json.Unmarshal(xt, &x) == nil && x.Type == "target" && x.Name == "REJECT"
}

// nftEachObject calls f for every object in nft's JSON output, with its kind.
func nftEachObject(out string, f func(key string, val json.RawMessage) error) error {
	d := json.NewDecoder(strings.NewReader(out))
	for {
		var doc struct{ Nftables []map[string]json.RawMessage }
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("parsing the output of nft: %w", err)
		}
		for _, object := range doc.Nftables {
			for key, val := range object {
				if err := f(key, val); err != nil {
					return fmt.Errorf("parsing a %s in the output of nft: %w", key, err)
				}
			}
		}
	}
}

// foreignScript returns the script that replaces our rules in foreign chains, one line for each rule.
func (s nftState) foreignScript(desired desiredRules) string {
	var b strings.Builder
	for _, c := range s.chains {
		for _, r := range c.ours {
			fmt.Fprintf(&b, "delete rule %v handle %d\n", c.nftHook, r.handle)
		}
		if !c.drops {
			continue
		}
		for _, rule := range nftAccepts(c.Family, c.Hook, desired) {
			fmt.Fprintf(&b, "insert rule %v %s\n", c.nftHook, rule)
		}
	}
	return b.String()
}

// isComplete reports whether every chain that drops packets has the desired number of our rules.
func (s nftState) isComplete(desired desiredRules) bool {
	for _, c := range s.chains {
		if c.drops && len(c.ours) != len(nftAccepts(c.Family, c.Hook, desired)) {
			return false
		}
	}
	for _, c := range s.xtables {
		if c.bypass || c.drops && len(c.ours) != strings.Count(c.accepts(desired), "\n") {
			return false
		}
	}
	return true
}

// parts returns the state as text, by the name of the chain, without rule handles.
func (s nftState) parts() map[string]string {
	parts := map[string]string{"": s.own}
	for _, c := range s.chains {
		text := fmt.Sprint("drops ", c.drops, "\n")
		for _, r := range c.ours {
			text += r.text + "\n"
		}
		parts[c.String()] = text
	}
	for _, c := range s.xtables {
		parts[c.program.name+" "+c.String()] = fmt.Sprint("drops ", c.drops, " bypass ", c.bypass, "\n", strings.Join(c.ours, "\n"))
	}
	return parts
}

func (s nftState) equal(o nftState) bool { return maps.Equal(s.parts(), o.parts()) }

// countChanges returns the number of parts that differ.
func (s nftState) countChanges(o nftState) int {
	a, b := s.parts(), o.parts()
	names := slices.Collect(maps.Keys(a))
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	n := 0
	for _, name := range names {
		if a[name] != b[name] {
			n++
		}
	}
	return n
}
