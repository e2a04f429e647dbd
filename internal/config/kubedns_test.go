package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
)

func TestKubeDNS(t *testing.T) {
	opts := node(t)
	opts.KubeDNS = t.TempDir()
	stubs := write(t, opts.KubeDNS, "stubDomains", "{\n  \"corp.test\": [\"192.0.2.3\", \"192.0.2.4:54\"],\n  \"Acme.test\": [\"2001:db8::1\"]\n}\n")
	upstreams := write(t, opts.KubeDNS, "upstreamNameservers", `["192.0.2.5", "[2001:db8::5]:54"]`)
	write(t, opts.KubeDNS, "federations", "not looked at")
	c, err := Parse(Source{Path: "base", Options: opts, Text: []byte(nodeLocal)})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Blocks) != 6 {
		t.Fatalf("%d blocks, want 6", len(c.Blocks))
	}
	if diff := cmp.Diff(targets("192.0.2.5:53", "[2001:db8::5]:54"), c.Blocks[3].Forward.To, equal); diff != "" {
		t.Errorf("upstreams of the root (-want +got):\n%s", diff)
	}
	limits := CacheLimits{Entries: 9984, MaxTTL: 30 * time.Second, MinTTL: 5 * time.Second}
	zone := names(t, "corp.test")
	want := &Block{
		Zones: zone, Port: 53, File: stubs, Line: 2, Listen: ports("169.254.20.10:53", "10.96.0.10:53"),
		Bind:   &Bind{Addrs: addrs("169.254.20.10", "10.96.0.10")},
		Errors: &Errors{},
		Cache:  &Cache{Zones: zone, Success: limits, Denial: limits, Servfail: 5 * time.Second},
		Forward: &Forward{
			From: wire.Root, To: targets("192.0.2.3:53", "192.0.2.4:54"), MaxFails: 2, Expire: 10 * time.Second,
			ReadTimeout: 2 * time.Second, HealthInterval: 500 * time.Millisecond, HealthDomain: wire.Root,
		},
	}
	if diff := cmp.Diff(want, c.Blocks[5], equal); diff != "" {
		t.Errorf("stub domain (-want +got):\n%s", diff)
	}
	for _, path := range []string{"base", stubs, upstreams} {
		if !slices.Contains(c.Files, path) {
			t.Errorf("%s is not among the files %q", path, c.Files)
		}
	}
	hash := c.Hash
	write(t, opts.KubeDNS, "stubDomains", "{}")
	if c, err = Parse(Source{Path: "base", Options: opts, Text: []byte(nodeLocal)}); err != nil || c.Hash == hash || len(c.Blocks) != 4 {
		t.Errorf("without stub domains: %+v (%v)", c, err)
	}
}

func TestKubeDNSMissing(t *testing.T) {
	opts := node(t)
	opts.KubeDNS = filepath.Join(t.TempDir(), "none")
	if c, err := Parse(Source{Options: opts, Text: []byte(nodeLocal)}); err != nil || len(c.Blocks) != 4 {
		t.Errorf("no folder: %v", err)
	}
	opts.KubeDNS = t.TempDir()
	write(t, opts.KubeDNS, "stubDomains", " \n")
	if c, err := Parse(Source{Options: opts, Text: []byte(nodeLocal)}); err != nil || len(c.Blocks) != 4 {
		t.Errorf("empty file: %v", err)
	}
}

// TestKubeDNSWildcard: a stub domain with an asterisk is a warning, as in the zones of a block.
func TestKubeDNSWildcard(t *testing.T) {
	opts := node(t)
	opts.KubeDNS = t.TempDir()
	path := write(t, opts.KubeDNS, "stubDomains", "{\n\"*.corp.test\": [\"192.0.2.3\"]}\n")
	c, err := Parse(Source{Options: opts, Text: []byte(nodeLocal)})
	if err != nil {
		t.Fatal(err)
	}
	if want := path + `:2: "*.corp.test": there are no wildcards in zones`; !strings.Contains(fmt.Sprint(c.Suspicious), want) {
		t.Errorf("warnings %v, want %s", c.Suspicious, want)
	}
}

func TestKubeDNSFaults(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"broken", "stubDomains", "{\n\"a.test\": [\n", `:2: stubDomains of the kube-dns ConfigMap is not JSON of the form {"DOMAIN": ["IP", …], …}: unexpected EOF`},
		{"shape", "stubDomains", "{\n\"a.test\": \"192.0.2.1\"}", `:2: stubDomains of the kube-dns ConfigMap is not JSON of the form {"DOMAIN": ["IP", …], …}: json: cannot unmarshal string into Go value of type []string`},
		{"more", "stubDomains", "{} {}", `: stubDomains of the kube-dns ConfigMap is not JSON of the form {"DOMAIN": ["IP", …], …}: more follows the value`},
		{"no server", "stubDomains", `{"a.test": []}`, `:1: the stub domain "a.test" has no server; list at least one IP address`},
		{"no domain", "stubDomains", `{"a..test": ["192.0.2.1"]}`, `:1: the stub domain "a..test" is not a domain name`},
		{"port", "stubDomains", `{"a.test:54": ["192.0.2.1"]}`, `:1: the stub domain "a.test:54" is not a domain name`},
		{"no server's address", "stubDomains", "\n" + `{"a.test": ["ns..test"]}`, `:2: "ns..test" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"circle", "stubDomains", `{"a.test": ["169.254.20.10"]}`, `:1: forward: the upstream 169.254.20.10:53 is an address that this block listens on, so queries would loop; name another upstream`},
		{"in the Corefile too", "stubDomains", `{"in-addr.arpa": ["192.0.2.1"]}`, `:1: the zone in-addr.arpa. on port 53 is already served by the block at base:17; merge the two blocks, or bind them to different addresses`},
		{"broken", "upstreamNameservers", `{}`, `:1: upstreamNameservers of the kube-dns ConfigMap is not JSON of the form ["IP", …]: json: cannot unmarshal object into Go value of type []string`},
		{"name", "upstreamNameservers", `["ns..test"]`, `: "ns..test" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"more than a word", "upstreamNameservers", `["192.0.2.1 {\nerrors\n}"]`, `: "192.0.2.1 {\nerrors\n}" is not an IP address`},
	} {
		t.Run(tt.file+"/"+tt.name, func(t *testing.T) {
			opts := node(t)
			opts.KubeDNS = t.TempDir()
			path := write(t, opts.KubeDNS, tt.file, tt.text)
			_, err := Parse(Source{Path: "base", Options: opts, Text: []byte(nodeLocal)})
			if err == nil || err.Error() != path+tt.want {
				t.Errorf("error %v\nwant  %s%s", err, path, tt.want)
			}
		})
	}
	opts := node(t)
	opts.KubeDNS = write(t, t.TempDir(), "file", "")
	_, err := Parse(Source{Options: opts, Text: []byte(nodeLocal)})
	if err == nil || !strings.Contains(err.Error(), "see --kubednscm") {
		t.Errorf("a file for a folder: %v", err)
	}
}
