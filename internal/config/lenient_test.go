package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestCacheOfNothing: a capacity of 0 is CoreDNS's smallest cache.
func TestCacheOfNothing(t *testing.T) {
	c, err := parse(t, ". {\ncache {\nsuccess 0\ndenial 0 5\n}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Blocks[0].Cache; got.Success.Entries != fewestEntries || got.Denial.Entries != fewestEntries || len(c.Suspicious) != 2 {
		t.Errorf("cache %+v, suspicious %v", got, c.Suspicious)
	}
}

// TestHostsTTL: the TTL of hosts is within the bounds of the block's cache.
func TestHostsTTL(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint32
	}{
		{". {\nhosts\n}\n", 3600},
		{". {\nhosts\ncache 30\n}\n", 30},
		{". {\ncache 30\nhosts {\nttl 60\n}\n}\n", 30},
		{". {\ncache\nhosts {\nttl 2\n}\n}\n", 5},
		{". {\ncache {\nsuccess 100 90 60\n}\nhosts {\nttl 20\n}\n}\n", 60},
		{". {\ncache 30 a.test\nhosts\n}\n", 3600},
		{". {\ncache 30 a.test\nhosts /etc/hosts x.a.test\n}\n", 30},
	} {
		c, err := parse(t, tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Blocks[0].Hosts.TTL; got != tt.want {
			t.Errorf("%q: TTL %d, want %d", tt.text, got, tt.want)
		}
	}
}

// TestLeftOut: names and lines that are left out are warnings with their places.
func TestLeftOut(t *testing.T) {
	path := write(t, t.TempDir(), "resolv.conf", "search a\nnameserver ns.test\nnameserver 192.0.2.1 # first\nnameserver 192.0.2.300\nnameserver\n")
	c, err := parse(t, ". {\nhosts {\n192.0.2.9 bad..test ok.test "+strings.Repeat("x", 64)+"\n}\nforward . "+path+"\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, w := range c.Warnings {
		place, _, _ := strings.Cut(w, ": ")
		places = append(places, strings.TrimPrefix(place, path))
	}
	if got := fmt.Sprint(places); got != "[:2 :4 Corefile:3 Corefile:3]" {
		t.Errorf("warnings at %s: %q", got, c.Warnings)
	}
	if got := c.Blocks[0].Forward.To; len(got) != 1 {
		t.Errorf("upstreams %v", got)
	}
}

// TestTexts: what a Corefile was before it was ready, and what CoreDNS no longer has, is said.
func TestTexts(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{". {\nproxy . 192.0.2.1\n}\n", "Corefile:2: proxy is a directive of CoreDNS before 1.5; write `forward` with the same zone and servers (did you mean \"forward\"?)"},
		{". {\nforward . __PILLAR__SOMETHING__\n}\n", "Corefile:2: unknown placeholder __PILLAR__SOMETHING__: an installer replaces it"},
		{". {\nforward . {{ .Values.upstream }}\n}\n", `Corefile:2: "{{ .Values" is of a template of Helm or Jinja: render it first`},
		{"{% for z in zones %}\n{{ z }} {\nwhoami\n}\n{% endfor %}\n", `Corefile:1: "{% for" is of a template of Helm or Jinja`},
		{". {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\ncache x!\nerors\nerros\n}\n", "Corefile:6: unknown directive \"erors\""},
	} {
		_, err := parse(t, tt.text)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: %v\nwant %s", tt.text, err, tt.want)
		}
		if n := strings.Count(fmt.Sprint(err), "; allowed: "); n > 1 {
			t.Errorf("%q: %d lists of the same words", tt.text, n)
		}
	}
}

// TestRepeated: a directive may be in a block twice if both mean the same, and its second place is a warning.
func TestRepeated(t *testing.T) {
	for text, refused := range map[string]bool{
		"loadbalance\nloadbalance round_robin":                                   false,
		"reload\nreload 30s 15s":                                                 false,
		"minimal\nminimal\nminimal":                                              false,
		"errors {\nconsolidate 5m x$\n}\nerrors {\nconsolidate 5m x$\n}":         false,
		"header {\nresponse set ra\n}\nheader {\nresponse set ra\n}":             false,
		"kubernetes a.test {\nlabels x=y\n}\nkubernetes a.test {\nlabels x=y\n}": false,
		"bufsize 1232\nbufsize 512":                                              true,
		"health\nhealth :8081":                                                   true,
		"cache 30\ncache 30 {\ndenial 100\n}":                                    true,
	} {
		c, err := parse(t, ". {\n"+text+"\n}\n")
		if refused {
			if err == nil || !strings.Contains(err.Error(), "is in the block twice") {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := fmt.Sprint(c.Suspicious); !strings.Contains(got, "is in the block twice with the same settings, first at Corefile:2; keep one") {
			t.Errorf("%q: suspicious %s", text, got)
		}
	}
}

// TestSeveralEndpoints: of several API servers the first counts, as in CoreDNS.
func TestSeveralEndpoints(t *testing.T) {
	c, err := parse(t, ". {\nkubernetes a.test {\nendpoint http://192.0.2.1:8080 http://192.0.2.2:8080\n}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Blocks[0].Kubernetes.Endpoint; got != "http://192.0.2.1:8080" || len(c.Suspicious) != 1 {
		t.Errorf("endpoint %s, suspicious %v", got, c.Suspicious)
	}
}
