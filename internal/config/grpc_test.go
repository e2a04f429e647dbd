package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestGRPC(t *testing.T) {
	resolv := write(t, t.TempDir(), "resolv.conf", "nameserver 192.0.2.5\n")
	target := func(addr string) Target {
		return Target{Transport: DNSOverGRPC, Addr: netip.MustParseAddrPort(addr)}
	}
	for _, tt := range []struct {
		name, text string
		edit       func(*Forward)
	}{
		{"an address", "grpc . 192.0.2.1", func(f *Forward) { f.To = []Target{target("192.0.2.1:53")} }},
		{"a port", "grpc . 192.0.2.1:9005 [2001:db8::1]:443", func(f *Forward) { f.To = []Target{target("192.0.2.1:9005"), target("[2001:db8::1]:443")} }},
		{"schemes", "grpc . grpc://192.0.2.1 dns://192.0.2.2", func(f *Forward) { f.To = []Target{target("192.0.2.1:443"), target("192.0.2.2:53")} }},
		{"a server name", "grpc . grpc://192.0.2.1%dns.example.org", func(f *Forward) {
			to := target("192.0.2.1:443")
			to.ServerName = "dns.example.org"
			f.To = []Target{to}
		}},
		{"a name", "grpc . dns.example.org:9005", func(f *Forward) {
			f.To = []Target{{Transport: DNSOverGRPC, Host: "dns.example.org", Port: 9005}}
		}},
		{"resolv.conf", "grpc . " + resolv, func(f *Forward) { f.To, f.Files = []Target{target("192.0.2.5:53")}, []string{resolv} }},
		{"options", "grpc a.test 192.0.2.1 {\nexcept b.a.test\npolicy sequential\ntls_servername dns.test\nmax_fails 1\nfallthrough\n}", func(f *Forward) {
			f.From, f.Except = names(t, "a.test")[0], names(t, "b.a.test")
			f.To, f.Policy, f.ServerName, f.MaxFails = []Target{target("192.0.2.1:53")}, PolicySequential, "dns.test", 1
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseBlock(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			want := defaultForward()
			want.GRPC = true
			tt.edit(&want)
			b := c.Blocks[0]
			if d := cmp.Diff(&want, b.Forward, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})); d != "" {
				t.Errorf("wrong settings (-want +got):\n%s", d)
			}
			if d := cmp.Diff([]string{"grpc"}, b.Directives()); d != "" {
				t.Errorf("wrong directives (-want +got):\n%s", d)
			}
		})
	}
}

// TestGRPCOrder: grpc is the last of a block's forwards wherever it stands, and a hint says so
// where it gets no query.
func TestGRPCOrder(t *testing.T) {
	c, err := parseBlock("grpc . 192.0.2.1\nforward a.test 192.0.2.2\nforward b.test 192.0.2.3")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for f := c.Blocks[0].Forward; f != nil; f = f.Next {
		order = append(order, f.Name()+" "+f.From.String())
	}
	if d := cmp.Diff([]string{"forward a.test.", "forward b.test.", "grpc ."}, order); d != "" {
		t.Errorf("wrong order (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"forward", "grpc"}, c.Blocks[0].Directives()); d != "" {
		t.Errorf("wrong directives (-want +got):\n%s", d)
	}
	if len(c.Suspicious) > 0 {
		t.Errorf("suspicious: %v", c.Suspicious)
	}
	c, err = parseBlock("grpc . 192.0.2.1\nforward . 192.0.2.2")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Suspicious) != 1 || !strings.Contains(c.Suspicious[0].Error(), "grpc: it gets no query: a forward before it takes all names in .") {
		t.Errorf("suspicious: %v; want that grpc gets no query", c.Suspicious)
	}
}

func TestGRPCTLS(t *testing.T) {
	for text, want := range map[string]bool{
		"grpc . 192.0.2.1":                                    false,
		"grpc . 192.0.2.1 {\ntls\n}":                          true,
		"grpc . 192.0.2.1 {\ntls_servername dns.test\n}":      true,
		"grpc . grpc://192.0.2.1%dns.test":                    true,
		"forward . tls://192.0.2.1":                           true,
		"forward . 192.0.2.1 {\ntls_servername dns.test\n}":   false,
		"forward . https://192.0.2.1 {\nmax_concurrent 10\n}": true,
	} {
		c, err := parseBlock(text)
		if err != nil {
			t.Fatal(err)
		}
		if f := c.Blocks[0].Forward; f.UsesTLS(f.To[0]) != want {
			t.Errorf("%q: TLS is %v, want %v", text, !want, want)
		}
	}
}

func TestGRPCErrors(t *testing.T) {
	wantFaults(t, map[string]string{
		"grpc .":                                  "an argument is missing",
		"grpc . unix:///run/g.sock":               "let the server listen on an IP address",
		"grpc . tls://192.0.2.1":                  "and the option `tls` for TLS",
		"grpc . 192.0.2.1 {\nforce_tcp\n}":        `unknown option "force_tcp"`,
		"grpc . 192.0.2.1 {\nnext NXDOMAIN\n}":    `unknown option "next"`,
		"grpc . 192.0.2.1 {\npolicy best\n}":      `unknown policy "best"`,
		"grpc a.test 192.0.2.1\ngrpc . 192.0.2.2": "is in the block twice",
		"grpc . [::]:53":                          "queries would loop",
		"grpc . k8s:kube-system/kube-dns:9005":    "no block has one",
		"forward . grpc://192.0.2.1":              "write it with the directive `grpc`",
	})
}
