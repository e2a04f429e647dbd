package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodens-dns/nodens/internal/cli"
)

// maxChanges bounds the printed changes.
const maxChanges = 60

// checkedChange is what changes for the clients of zones. Was is "" for what is new, and Is for what is gone.
type checkedChange struct {
	Zones []string `json:"zones"`
	Name  string   `json:"name"`
	Was   string   `json:"was"`
	Is    string   `json:"is"`
}

func (c *checkedChange) String() string {
	text := strings.Join(c.Zones, ", ") + ": "
	switch {
	case c.Name == "zone" && c.Was == "":
		return text + "a new zone: " + c.Is
	case c.Name == "zone":
		return text + "no zone any more: " + c.Was
	case c.Was == "":
		return text + "new: " + c.Name + " " + c.Is
	case c.Is == "":
		return text + "gone: " + c.Name + " " + c.Was
	}
	return text + c.Name + " is " + c.Is + "; it was " + c.Was
}

// errDiff is a wrong number of configurations.
var errDiff = errors.New("--diff compares two configurations; give a file with one Corefile for each, such as `nodens check --diff old.yaml new.yaml`")

// runDiff prints what changes between the two configurations of r.
func runDiff(r *checkResult, stdout io.Writer, output *cli.Output) error {
	if len(r.Configurations) != 2 {
		return errDiff
	}
	was, is := r.Configurations[0], r.Configurations[1]
	if len(was.Errors)+len(is.Errors) > 0 {
		return nil // the errors are printed
	}
	r.Changes = diffConfigs(was, is)
	return output.Print(stdout, r, func(w io.Writer) error {
		fmt.Fprintf(w, "from %s\nto   %s\n\n", was.Source, is.Source)
		if len(r.Changes) == 0 {
			fmt.Fprintln(w, "nothing changes for clients")
		}
		for i := range r.Changes[:min(len(r.Changes), maxChanges)] {
			fmt.Fprintln(w, r.Changes[i].String())
		}
		if n := len(r.Changes) - maxChanges; n > 0 {
			fmt.Fprintf(w, "and %d more changes; -o json has all\n", n)
		}
		r.printFiles(w)
		return nil
	})
}

// diffConfigs returns what changes from was to is: zones first, then what is done with their queries, then warnings and the
// node's network. Zones with the same change are one.
func diffConfigs(was, is *checkedConfig) (list []checkedChange) {
	before, after := zonesOf(was), zonesOf(is)
	for _, z := range after {
		if before.find(z.key) == nil {
			list = addChange(list, checkedChange{[]string{z.key}, "zone", "", z.main() + before.parent(z.key, "; its names were answered by the zone ")})
		}
	}
	for _, z := range before {
		if after.find(z.key) == nil {
			list = addChange(list, checkedChange{[]string{z.key}, "zone", z.main() + cmp.Or(after.parent(z.key, "; its names go to the zone "), "; its names are REFUSED"), ""})
		}
	}
	for _, z := range before {
		if n := after.find(z.key); n != nil {
			for _, c := range diffSteps(z.steps, n.steps) {
				c.Zones = []string{z.key}
				list = addChange(list, c)
			}
		}
	}
	all := []string{"the agent"}
	for _, c := range diffSteps(findingSteps(was), findingSteps(is)) {
		c.Zones = all
		list = append(list, c)
	}
	if was.network != is.network {
		list = append(list, checkedChange{all, "network", cmp.Or(oneLine(was.network), "none"), cmp.Or(oneLine(is.network), "none")})
	}
	return list
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// findingSteps returns the warnings and notes of c without their places, which change with every line that is added.
func findingSteps(c *checkedConfig) (list []checkedStep) {
	for _, f := range c.Warnings {
		list = append(list, checkedStep{Name: "warning", Text: strings.TrimPrefix(f.Directive+": "+f.Message, ": ")})
	}
	return list
}

// addChange adds c, or its zone to the same change of other zones.
func addChange(list []checkedChange, c checkedChange) []checkedChange {
	for i := range list {
		if l := &list[i]; l.Name == c.Name && l.Was == c.Was && l.Is == c.Is {
			l.Zones = append(l.Zones, c.Zones...)
			return list
		}
	}
	return append(list, c)
}

// diffSteps returns the steps that only one of the lists has. A step that each has once more than the other is a change.
func diffSteps(was, is []checkedStep) (list []checkedChange) {
	gone, come := onlyIn(was, is), onlyIn(is, was)
	for _, s := range gone {
		c := checkedChange{Name: s.Name, Was: s.Text}
		if i := slices.IndexFunc(come, func(n checkedStep) bool { return n.Name == s.Name }); i >= 0 {
			c.Is = come[i].Text
			come = slices.Delete(come, i, i+1)
		}
		list = append(list, c)
	}
	for _, s := range come {
		list = append(list, checkedChange{Name: s.Name, Is: s.Text})
	}
	return list
}

// onlyIn returns the steps of a that b does not have.
func onlyIn(a, b []checkedStep) (list []checkedStep) {
	for _, s := range a {
		if !slices.ContainsFunc(b, func(o checkedStep) bool { return o.Name == s.Name && o.Text == s.Text }) {
			list = append(list, s)
		}
	}
	return list
}

// checkedZone is a zone of a server block. key is the zone with its transport and port, unless these are plain DNS and 53, and
// its view.
type checkedZone struct {
	name, key string
	steps     []checkedStep
}

// main returns the step that answers the zone's names.
func (z *checkedZone) main() string {
	for _, s := range z.steps {
		if slices.Contains([]string{"kubernetes", "file", "auto", "secondary", "forward", "grpc", "whoami"}, s.Name) {
			return s.Name + " " + s.Text
		}
	}
	return "no directive answers"
}

type checkedZones []*checkedZone

func zonesOf(c *checkedConfig) (list checkedZones) {
	for i := range c.Blocks {
		b := &c.Blocks[i]
		suffix := ""
		if at, err := netip.ParseAddrPort(strings.Join(b.Listen[:min(1, len(b.Listen))], "")); err == nil && (at.Port() != 53 || b.Transport != "dns") {
			suffix = fmt.Sprintf(" (%s port %d)", b.Transport, at.Port())
		}
		for _, s := range b.Steps {
			if s.Name == "view" {
				name, _, _ := strings.Cut(s.Text, " ")
				suffix += " in view " + name
			}
		}
		for _, name := range b.Zones {
			list = append(list, &checkedZone{name: name, key: name + suffix, steps: b.clientSteps()})
		}
	}
	return list
}

// clientSteps returns the steps of b that clients may see, with "its zones" in place of the block's, so that a zone that joins
// the block changes nothing for the others.
func (b *checkedBlock) clientSteps() (list []checkedStep) {
	all := "for " + strings.Join(b.Zones, " ")
	for _, s := range b.Steps {
		if text, ok := strings.CutSuffix(s.Text, all); ok {
			s.Text = text + "for its zones"
		}
		if s.Name != "kernel path" {
			list = append(list, checkedStep{Name: s.Name, Text: s.Text})
		}
	}
	return list
}

func (l checkedZones) find(key string) *checkedZone {
	if i := slices.IndexFunc(l, func(z *checkedZone) bool { return z.key == key }); i >= 0 {
		return l[i]
	}
	return nil
}

// parent returns text and the zone of l that has the names of the zone key, "" for none.
func (l checkedZones) parent(key, text string) string {
	name, suffix, _ := strings.Cut(key, " ")
	for {
		_, rest, ok := strings.Cut(name, ".")
		if !ok || name == "." {
			return ""
		}
		if name = cmp.Or(rest, "."); l.find(strings.TrimSuffix(name+" "+suffix, " ")) != nil {
			return text + name
		}
	}
}
