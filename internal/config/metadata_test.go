package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestMetadata: the zones that have metadata, and the labels of pods that the file names.
func TestMetadata(t *testing.T) {
	const text = `a.test b.test {
	metadata
	log a.test "{/kubernetes/client-label/app} {/kubernetes/client-label/app.kubernetes.io/name}"
	log b.test "{/kubernetes/client-label/app}"
	view v {
		expr metadata('kubernetes/client-label/tier') == 'db'
	}
	dnstap /s {
		extra {/kubernetes/client-label/team}
	}
}
a.test {
	metadata x.a.test
}
c.test {
	log . "{/kubernetes/client-label/unused}"
}
`
	c, err := config.Parse(config.Source{Text: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"app", "app.kubernetes.io/name", "team", "tier"}, config.PodLabels(c.Blocks)); diff != "" {
		t.Error(diff)
	}
	var zones []string
	for _, b := range c.Blocks[:2] {
		for _, z := range b.Metadata.Zones {
			zones = append(zones, z.String())
		}
	}
	if diff := cmp.Diff([]string{"a.test.", "b.test.", "x.a.test."}, zones); diff != "" {
		t.Error(diff)
	}
	if len(c.Suspicious) != 1 || !strings.Contains(c.Suspicious[0].Error(), ":15: the block uses metadata, which has no values without the directive `metadata`") {
		t.Errorf("suspicious: %v", c.Suspicious)
	}
}

// TestMetadataErrors: what metadata refuses.
func TestMetadataErrors(t *testing.T) {
	var many strings.Builder
	for i := range 33 {
		fmt.Fprintf(&many, "{/kubernetes/client-label/l%d}", i)
	}
	for text, want := range map[string]string{
		"metadata {\nmap {{.IP}} VRF\n}":   `CoreDNS has the option "map", this version of nodens doesn't: take it out`,
		"metadata a..b":                    `metadata: "a..b" is not a zone`,
		"metadata\nlog . " + many.String(): "metadata names 33 labels of pods; allowed: up to 32",
		"metadata\nmetadata a.test":        `metadata: "metadata" is in the block twice`,
		"metadata {\nmaps\n}":              `metadata: unknown option "maps"`,
	} {
		_, err := config.Parse(config.Source{Text: []byte(". {\n" + text + "\n}\n")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
