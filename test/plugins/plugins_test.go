package plugins

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/peer"
)

// own are the directives that CoreDNS doesn't have.
var own = []string{"aaaa", "client_limit", "keep", "private_address", "rpz", "tunnel"}

// sources returns the folder with CoreDNS's sources. They are downloaded if they are not in the module cache.
func sources(t *testing.T) string {
	t.Helper()
	root, err := peer.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "mod", "download", "-json", "github.com/coredns/coredns")
	cmd.Dir = filepath.Join(root, "test", "coredns")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil || module.Dir == "" {
		t.Fatalf("go mod download printed %q: %v", out, err)
	}
	return module.Dir
}

// names returns CoreDNS's list of plugins.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "plugin.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(name, "#") {
			list = append(list, name)
		}
	}
	if len(list) < 50 {
		t.Fatalf("CoreDNS has %d plugins, want 50 or more", len(list))
	}
	return list
}

// TestPlugins: each plugin of CoreDNS is accepted or refused with a remedy, and nothing else is.
func TestPlugins(t *testing.T) {
	theirs := names(t, sources(t))
	accepted := config.Directives()
	for _, name := range theirs {
		if remedy := config.Remedy(name); slices.Contains(accepted, name) == (remedy != "") {
			t.Errorf("%s is accepted: %t, and its remedy is %q; want one of the two", name, remedy == "", remedy)
		}
	}
	for _, name := range accepted {
		if slices.Contains(theirs, name) == slices.Contains(own, name) {
			t.Errorf("%s is accepted; CoreDNS has it: %t", name, slices.Contains(theirs, name))
		}
	}
}

// corefiles returns the Corefiles in a README.
func corefiles(text string) (list []string) {
	var open string
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case open != "" && trimmed == open:
			open = ""
		case open != "":
			list[len(list)-1] += line
		case trimmed == "~~~ corefile" || trimmed == "```corefile":
			open = trimmed[:3]
			list = append(list, "")
		}
	}
	return list
}

// TestDocumentation: each Corefile in the documentation of CoreDNS's plugins is accepted, or refused because of
// something that nodens doesn't have, with what to do instead.
func TestDocumentation(t *testing.T) {
	dir := sources(t)
	t.Setenv("PORT", "9180") // one of the Corefiles names it
	total := 0
	for _, name := range names(t, dir) {
		if name == "prometheus" {
			name = "metrics" // the plugin's package
		}
		text, err := os.ReadFile(filepath.Join(dir, "plugin", name, "README.md"))
		if errors.Is(err, os.ErrNotExist) && name == "on" {
			continue // of another module
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, corefile := range corefiles(string(text)) {
			total++
			for _, text := range refusals(corefile) {
				if !strings.Contains(text, "this version of nodens doesn't") {
					t.Errorf("Corefile %d of %s: %s", i+1, name, text)
				}
			}
		}
	}
	if total < 100 {
		t.Errorf("%d Corefiles are found, want 100 or more", total)
	}
}

// refusals returns the errors of a Corefile. Its files and interfaces are not of this machine.
func refusals(corefile string) []string {
	_, err := config.Parse(config.Source{Path: "Corefile", Text: []byte(corefile), Options: config.Options{
		OffNode:   true,
		LocalIPs:  []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 20, 10})},
		Interface: func(string) ([]netip.Addr, error) { return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 7})}, nil },
	}})
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// TestRefusals: a mistake is not mistaken for something that nodens doesn't have.
func TestRefusals(t *testing.T) {
	for _, text := range []string{". {\n nonesuch\n}\n", ". {\n cache {\n  nonesuch\n }\n}\n", ". {\n"} {
		if got := refusals(text); len(got) != 1 || strings.Contains(got[0], "this version of nodens doesn't") {
			t.Errorf("%q: %q", text, got)
		}
	}
}
