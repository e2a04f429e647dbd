// These tests use maxScopeIdle, maxScopeMax and maxSearch, which are not exported.

package config

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/wire"
)

// corpus are Corefiles that touch each directive and the lexer's corners.
func corpus(f *testing.F) {
	f.Helper()
	for _, text := range []string{
		nodeLocal, clusterAddon, "", "{", "}", ". {", ". {\n}\n}", "(a) {\nimport a\n}\n. {\nimport a\n}", "import import", "import ", "import \"\"",
		"a, b,\nc {\nerrors\n}", "\ufeff. {\n}", "\"a b\" {\n\"errors\"\n}", ". {\nhosts {\n::1 a\n}\nlog . {combined} {\nclass all\n}\n}",
		"{$A}:{%B%} {\n{$}\n}", ". {\ncache {\n{\n{\n{\n}\n", "::/0 10.0.0.0/9 {\nbind lo\n}", ".:53{", "tls://a {\nrewrite\n}",
		". {\nkubernetes a.b 10.0.0.0/31 {\npods verified\nttl 5\nlabels a in (b)\n}\n}", ". {\nforward . ::1 fe80::1%x {\nhealth_check 1s domain\n}\n}",
		". {\nautopath a.b @kubernetes\nk8s_external e.test {\napex a\nttl 0\nheadless\nfallthrough\n}\nkubernetes a.b c.d {\nmulticluster c.d\nnamespace_labels a=b\nzonal\n}\n}",
		". {\nkubernetes {\nscope node\nscope_idle 5m\nscope_max 7\nendpoints all\ntopology order\nsave /x\n}\nautopath /x\nk8s_external\n}",
		"__PILLAR__LOCAL__DNS__:53 {\n}\n__PILLAR__ \"__PILLAR__\n#\"", ".\nerrors\ncache", "0\n} 1", "(0)\n0", "(a) {", "(a) \n\"b\n0", "a {\nimport *?[\n}", ". {\nreload 2s 0\n}",
	} {
		f.Add(text)
	}
}

// FuzzParse holds that no text makes Parse panic, that a refused one names its file
// in each line of the error, and what is true of all that is accepted.
func FuzzParse(f *testing.F) {
	corpus(f)
	opts := node(f)
	path := filepath.Join(f.TempDir(), "Corefile") // imports find an empty folder
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/") && strings.Contains(text, "import") {
			t.Skip("imports of the machine's own files")
		}
		if strings.Contains(text, "manifests") {
			t.Skip("globs over the machine's own files")
		}
		if strings.Contains(text, "/dev/") || strings.Contains(text, "/proc/") {
			t.Skip("files that don't end")
		}
		c, err := Parse(Source{Path: path, Text: []byte(text), Options: opts})
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, path+":") {
					t.Fatalf("an error without its file: %q", line)
				}
			}
			var fault *ParseError
			if c != nil || !errors.As(err, &fault) || fault.Text == "" {
				t.Fatalf("error %#v, Config %v", err, c)
			}
			return
		}
		if len(c.Blocks) == 0 {
			t.Fatal("no block and no error")
		}
		for _, b := range c.Blocks {
			if len(b.Zones) == 0 || b.Line < 1 || b.File != path {
				t.Fatalf("block %+v", b)
			}
			for fw := b.Forward; fw != nil; fw = fw.Next {
				if n := len(fw.To); n == 0 || n > maxUpstreams {
					t.Fatalf("forward to %v", fw.To)
				}
			}
			if b.Kubernetes != nil {
				holdsView(t, b.Kubernetes)
			}
			holdsOnView(t, b)
		}
	})
}

// holdsView holds what is true of each `kubernetes`.
func holdsView(t *testing.T, k *Kubernetes) {
	t.Helper()
	if slices.ContainsFunc(k.Multicluster, func(z wire.Name) bool { return !slices.Contains(k.Zones, z) || reverse(z) }) {
		t.Fatalf("multicluster %v in the zones %v", k.Multicluster, k.Zones)
	}
	if k.ScopeMax < 1 || k.ScopeMax > maxScopeMax || k.ScopeIdle < minScopeIdle || k.ScopeIdle > maxScopeIdle {
		t.Fatalf("scope of %d namespaces for %s", k.ScopeMax, k.ScopeIdle)
	}
	if k.NoEndpoints && (k.AllEndpoints || k.Zonal) || k.Save != "" && !filepath.IsAbs(k.Save) {
		t.Fatalf("kubernetes %+v", k)
	}
}

// holdsOnView holds what is true of the directives that answer from the view of b.
func holdsOnView(t *testing.T, b *Block) {
	t.Helper()
	if a := b.Autopath; a != nil {
		if a.Kubernetes && b.Kubernetes == nil || !a.Kubernetes && len(a.Search) == 0 || len(a.Search) > maxSearch || len(a.Zones) == 0 {
			t.Fatalf("autopath %+v", a)
		}
	}
	if e := b.K8sExternal; e != nil && (b.Kubernetes == nil || len(e.Zones) == 0 || e.Apex == "" || e.TTL > 3600) {
		t.Fatalf("k8s_external %+v", e)
	}
}

// FuzzRender holds that no line is moved, that text without placeholders stays as
// it is, and that no placeholder is left outside of comments.
func FuzzRender(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, placeholderServer) {
			t.Skip("it becomes nothing, and what stood around it may make a placeholder")
		}
		values := pillars()
		got, err := Render([]byte(text), values)
		if err != nil {
			if !strings.HasPrefix(err.Error(), values.Path+":") || got != nil {
				t.Fatalf("error %q, text %q", err, got)
			}
			return
		}
		if strings.Count(text, "\n") != bytes.Count(got, []byte{'\n'}) {
			t.Fatalf("lines of %q have moved in %q", text, got)
		}
		if !strings.Contains(text, "__") && string(got) != text {
			t.Fatalf("%q became %q", text, got)
		}
		again, err := Render(got, Placeholders{})
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%q still has placeholders: %v", got, err)
		}
	})
}

// FuzzNameservers holds that a resolv.conf file's text never panics and gives only
// addresses on port 53.
func FuzzNameservers(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nnameserver fe80::1%eth0\n#x\nsearch a"))
	f.Fuzz(func(t *testing.T, text []byte) {
		servers, _ := nameservers(text)
		for _, server := range servers {
			if !server.IsValid() || server.Port() != 53 {
				t.Fatalf("server %v", server)
			}
		}
	})
}
