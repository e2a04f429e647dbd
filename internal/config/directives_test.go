package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestNeedsAgent: answers are not copied where the client matters, where each query has to be seen, and where what is
// asked before the sources of copies can change without a trace.
func TestNeedsAgent(t *testing.T) {
	dir := t.TempDir()
	zone, weights := filepath.Join(dir, "zone"), filepath.Join(dir, "weights")
	for _, f := range []string{zone, weights} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		lines string
		want  []string
	}{
		{"cache\nerrors\nminimal\nbufsize 1232\nnsid\nhosts\nautopath @kubernetes\nkubernetes\nacl {\nblock\n}\nany\nloadbalance", nil},
		{"client_limit 10", []string{"client_limit"}},
		{"dns64", []string{"dns64"}},
		{"dnstap /run/tap.sock", []string{"dnstap"}},
		{"header {\nresponse set ra\n}", []string{"header"}},
		{"kubernetes\nk8s_external x.test", []string{"k8s_external"}},
		{"template ANY ANY {\nrcode NXDOMAIN\n}", []string{"template"}},
		{"tsig {\nrequire all\n}", []string{"tsig"}},
		{"file " + zone, nil},
		{"file " + zone + " {\nfallthrough\n}", []string{"file"}},
		{"file " + zone + "\nfile " + zone + " x.example.org {\nfallthrough\n}", []string{"file"}},
		{"auto {\ndirectory " + dir + "\n}", []string{"auto"}},
		{"auto {\ndirectory " + dir + "\nreload 0\n}", nil},
		{"auto {\ndirectory " + dir + "\nreload 0\nfallthrough\n}", []string{"auto"}},
		{"secondary {\ntransfer from 192.0.2.1\n}", nil},
		{"secondary {\ntransfer from 192.0.2.1\nfallthrough\n}", []string{"secondary"}},
		{"loadbalance weighted " + weights, []string{"loadbalance"}},
		{"loadbalance {\nprefer 10.0.0.0/8\n}", []string{"loadbalance"}},
		{"log", []string{"log"}},
		{"log {\nclass error\n}", nil},
		{"log . {\nclass error\n}\nlog x.example.org", []string{"log"}},
		{"rewrite name a.example.org b.example.org", nil},
		{"rewrite edns0 local set 0xffee 0x61", []string{"rewrite"}},
		{"dns64\nlog", []string{"log", "dns64"}},
	} {
		cfg, err := config.Parse(config.Source{Text: []byte("example.org {\nbind 127.0.0.1\n" + tt.lines + "\n}\n")})
		if err != nil {
			t.Errorf("%q: %v", tt.lines, err)
			continue
		}
		if got := cfg.Blocks[0].NeedsAgent(); !cmp.Equal(got, tt.want) {
			t.Errorf("%q: %q need the agent, want %q", tt.lines, got, tt.want)
		}
	}
}

// TestLacks: a build that lacks directives refuses each of them where it stands.
func TestLacks(t *testing.T) {
	corefile := ". {\nwhoami\n" + strings.Join(config.Optional(), "\n") + "\n}\n"
	_, err := config.Parse(config.Source{Text: []byte(corefile), Options: config.Options{Lacks: config.Optional()}})
	errs := config.ParseErrors(err)
	if len(errs) != len(config.Optional()) {
		t.Fatalf("%d errors, want one for each of %v: %v", len(errs), config.Optional(), err)
	}
	for i, e := range errs {
		if e.Line != 3+i || e.Directive != config.Optional()[i] || !strings.HasPrefix(e.Text, "this build of nodens lacks the directive") {
			t.Errorf("line %d, %s: %s", e.Line, e.Directive, e.Text)
		}
	}
}

// TestOnlySetup: which blocks have no directive that queries reach.
func TestOnlySetup(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "bind 127.0.0.1": true, "health\nready\nreload\nroot .\ndebug\npprof": true, "timeouts {\nread 3s\n}\nmultisocket\nquic\nhttps": true,
		"errors": false, "log": false, "prometheus": false, "cache": false, "nsid a": false, "bufsize 1232": false, "bind 127.0.0.1\nwhoami": false,
		"loop": false, "metadata": false, "cancel": false, "view a {\nexpr true\n}": false, "grpc . 192.0.2.1": false,
	} {
		c, err := config.Parse(config.Source{Text: []byte("a.test {\n" + text + "\n}\n")})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := c.Blocks[0].OnlySetup(); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
