package page

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// maxSearch bounds the text to search for, in bytes: a name of a pod and its namespace, or a domain name.
const maxSearch = 320

// The values of parameters. The first one is the default.
var (
	byValues     = []string{"pod", "workload", "namespace"}
	windowValues = []string{"1m", "10s", "1h"}
)

// parameters are the parameters of a request.
type parameters struct {
	By, Window string
	Search     string
	All        bool // all rows
	// sort has the orders of the tables by the table's ID: the key of a column, with a minus sign before it for
	// the reverse of the column's own direction.
	sort map[string]string
}

// sortPrefix begins the parameter with the order of a table.
const sortPrefix = "sort-"

// parseParameters returns the parameters in values. An unknown order of a table is its own one.
func parseParameters(values url.Values) (parameters, error) {
	p := parameters{
		By: cmp.Or(values.Get("by"), byValues[0]), Window: cmp.Or(values.Get("window"), windowValues[0]),
		Search: strings.TrimSpace(values.Get("q")), All: values.Get("rows") == "all", sort: make(map[string]string),
	}
	for name, check := range map[string]struct {
		value  string
		values []string
	}{"by": {p.By, byValues}, "window": {p.Window, windowValues}} {
		if !slices.Contains(check.values, check.value) {
			return p, fmt.Errorf("%s is %q; give one of %s", name, check.value, strings.Join(check.values, ", "))
		}
	}
	if len(p.Search) > maxSearch {
		return p, fmt.Errorf("q is too long; give at most %d bytes", maxSearch)
	}
	for _, id := range tableIDs {
		if key := values.Get(sortPrefix + id); key != "" {
			p.sort[id] = key
		}
	}
	return p, nil
}

// values returns the parameters that differ from their defaults.
func (p parameters) values() url.Values {
	v := make(url.Values)
	set := func(key, value, unset string) {
		if value != unset {
			v.Set(key, value)
		}
	}
	set("by", p.By, byValues[0])
	set("window", p.Window, windowValues[0])
	set("q", p.Search, "")
	if p.All {
		v.Set("rows", "all")
	}
	for id, key := range p.sort {
		v.Set(sortPrefix+id, key)
	}
	return v
}

// link returns a link to the page with these parameters after change has changed them. fragment is the ID of the
// element to show.
func (p parameters) link(fragment string, change func(*parameters)) string {
	p.sort = maps.Clone(p.sort)
	change(&p)
	return "/?" + p.values().Encode() + "#" + fragment
}

// Hidden returns the parameters besides the search, for a form.
func (p parameters) Hidden() []hidden {
	var list []hidden
	values := p.values()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if key != "q" {
			list = append(list, hidden{key, values.Get(key)})
		}
	}
	return list
}

// hidden is a hidden field of a form.
type hidden struct{ Name, Value string }

// choice is one value of a parameter, as a link.
type choice struct {
	Text, Href string
	Current    bool
}

func (p parameters) byChoices() (list []choice) {
	for _, by := range byValues {
		list = append(list, choice{by, p.link("clients", func(p *parameters) { p.By = by }), p.By == by})
	}
	return list
}

func (p parameters) windowChoices() (list []choice) {
	for _, window := range []string{"10s", "1m", "1h"} {
		list = append(list, choice{window, p.link("clients", func(p *parameters) { p.Window = window }), p.Window == window})
	}
	return list
}
