package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/daemonset/debian"
)

// TestModuleOrder: each module comes once, after all that it depends on.
func TestModuleOrder(t *testing.T) {
	depends := map[string][]string{
		"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": nil,
		"x": {"missing"}, "one": {"two"}, "two": {"one"},
	}
	read := func(name string) ([]string, error) {
		needed, ok := depends[name]
		if !ok {
			return nil, errors.New("no module " + name)
		}
		return needed, nil
	}
	for names, want := range map[string]string{
		"a":       "d b c a",
		"c a":     "d c b a",
		"d d a d": "d b c a",
		"one":     "two one", // a cycle ends
		"":        "",
		"x":       "no module missing",
	} {
		order, err := moduleOrder(strings.Fields(names), read)
		got := strings.Join(order, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q are loaded as %q, want %q", names, got, want)
		}
	}
}

func TestParseDepends(t *testing.T) {
	for text, want := range map[string]string{
		"license=GPL\x00depends=nf_tables,nf-conntrack\x00name=nft_ct\x00": "nf_tables nf_conntrack",
		"depends=\x00name=veth\x00":                                        "",
		"softdepends=a\x00":                                                "",
		"":                                                                 "",
	} {
		if got := strings.Join(parseDepends(text), " "); got != want {
			t.Errorf("%q depends on %q, want %q", text, got, want)
		}
	}
}

// TestFindModules: names without a file are left out; a file that is no module is an error that names it.
func TestFindModules(t *testing.T) {
	all := make(map[string]debian.File)
	for _, name := range []string{"usr/lib/modules/1/kernel/net/xt-broken.ko", "usr/lib/modules/2/kernel/net/other.ko", "usr/lib/modules/1/modules.builtin"} {
		all[name] = debian.File{Path: name, Body: []byte("no module")}
	}
	if got, err := findModules(t.Context(), all, "usr/lib/modules/1", []string{"other", "modules", "none"}); err != nil || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := findModules(t.Context(), all, "usr/lib/modules/1", []string{"xt_broken"}); err == nil || !strings.Contains(err.Error(), "module xt_broken") {
		t.Errorf("error %v, want one that names the module", err)
	}
}

// TestWantedModules: no module is named twice, and names are the kernel's, without a dash.
func TestWantedModules(t *testing.T) {
	names := wantedModules()
	slices.Sort(names)
	if n := len(names); len(slices.Compact(names)) != n || strings.Contains(strings.Join(names, " "), "-") {
		t.Errorf("%v", names)
	}
}
