package config

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is what blocks do otherwise than in CoreDNS with the same directives.
type Difference struct {
	// Lines are those on which the blocks of the Corefile's own file start.
	Lines []int
	Text  string
}

// Differences returns the differences of c's blocks, without those that do not matter to most clients; these are in
// docs/reference/corefile.
func (c *Config) Differences() (list []Difference) {
	for _, b := range c.Blocks {
		for _, text := range differencesOf(b) {
			i := slices.IndexFunc(list, func(d Difference) bool { return d.Text == text })
			if i < 0 {
				i, list = len(list), append(list, Difference{Text: text})
			}
			if b.File == c.Path && !slices.Contains(list[i].Lines, b.Line) {
				list[i].Lines = append(list[i].Lines, b.Line)
			}
		}
	}
	return list
}

// At returns the lines as a text, "" for none.
func (d Difference) At() string {
	if len(d.Lines) == 0 {
		return ""
	}
	word := "line "
	if len(d.Lines) > 1 {
		word = "lines "
	}
	return word + strings.Trim(strings.ReplaceAll(fmt.Sprint(d.Lines), " ", ", "), "[]")
}

// differencesOf returns the differences of b.
func differencesOf(b *Block) (list []string) {
	for _, d := range []struct {
		applies bool
		text    string
	}{
		{b.Forward != nil && len(b.Forward.To) > 1 && b.Forward.Policy == PolicyFastest, "forward without `policy` queries the fastest of its servers, and another one if that is late; CoreDNS chooses at random, as does `policy random`"},
		{b.Cache != nil && b.Cache.Stale.For > 0 && b.Cache.Stale.Mode == StaleFallback, "`serve_stale` asks the upstreams first; CoreDNS without a mode answers at once, as does `serve_stale DURATION immediate`"},
		{b.Cache != nil && b.Kubernetes != nil, "answers from `kubernetes` are not cached, so changes are visible at once"},
		{b.Loop != nil, "`loop` stops forwarding while there is a loop; CoreDNS ends the process"},
		{b.Health != nil && b.Health.Lameduck > MaxLameduck, fmt.Sprintf("`lameduck` is shortened to %s, or to %s by an agent that sets nothing up on the node", MaxLameduck, MaxPodLameduck)},
	} {
		if d.applies {
			list = append(list, d.text)
		}
	}
	return list
}
