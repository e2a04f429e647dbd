// These tests use defaultForward and maxUpstreams, which are not exported.

package config

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodens-dns/nodens/internal/wire"
	"github.com/nodens-dns/nodens/test/ca"
)

// pair writes a certificate and its key.
func pair(t *testing.T, folder string) (cert, key string) {
	t.Helper()
	return ca.ForTest(t).ServerFiles(t, folder, "a server", time.Now().Add(time.Hour))
}

func TestTargets(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, tt := range []struct {
		text string
		want Target
		back string
	}{
		{"192.0.2.1", Target{Addr: at("192.0.2.1:53")}, "192.0.2.1:53"},
		{"fe80::1%eth0", Target{Addr: at("[fe80::1%eth0]:53")}, "[fe80::1%eth0]:53"},
		{"::ffff:192.0.2.1", Target{Addr: at("192.0.2.1:53")}, "192.0.2.1:53"},
		{"DNS.example.net.", Target{Host: "dns.example.net", Port: 53}, "dns.example.net:53"},
		{"dns://dns.example.net:54", Target{Host: "dns.example.net", Port: 54}, "dns.example.net:54"},
		{"a_b", Target{Host: "a_b", Port: 53}, "a_b:53"},
		{"tls://192.0.2.1", Target{Transport: DNSOverTLS, Addr: at("192.0.2.1:853")}, "tls://192.0.2.1:853"},
		{"tls://192.0.2.1%dns.test", Target{Transport: DNSOverTLS, Addr: at("192.0.2.1:853"), ServerName: "dns.test"}, "tls://192.0.2.1:853"},
		{"tls://192.0.2.1%dns.test:99", Target{Transport: DNSOverTLS, Addr: at("192.0.2.1:99"), ServerName: "dns.test"}, "tls://192.0.2.1:99"},
		{"tls://[2001:db8::1%dns.test]:99", Target{Transport: DNSOverTLS, Addr: at("[2001:db8::1]:99"), ServerName: "dns.test"}, "tls://[2001:db8::1]:99"},
		{"tls://2001:db8::1%dns.test", Target{Transport: DNSOverTLS, Addr: at("[2001:db8::1]:853"), ServerName: "dns.test"}, "tls://[2001:db8::1]:853"},
		{"tls://dns.test", Target{Transport: DNSOverTLS, Host: "dns.test", Port: 853}, "tls://dns.test:853"},
		{"tls://dns.test%other.test:9", Target{Transport: DNSOverTLS, Host: "dns.test", Port: 9, ServerName: "other.test"}, "tls://dns.test:9"},
		{"https://192.0.2.1", Target{Transport: DNSOverHTTPS, Addr: at("192.0.2.1:443")}, "https://192.0.2.1:443"},
		{"https://dns.test/", Target{Transport: DNSOverHTTPS, Host: "dns.test", Port: 443}, "https://dns.test:443"},
		{"https://dns.test:8443/q/x", Target{Transport: DNSOverHTTPS, Host: "dns.test", Port: 8443, Path: "/q/x"}, "https://dns.test:8443/q/x"},
		{"quic://192.0.2.1", Target{Transport: DNSOverQUIC, Addr: at("192.0.2.1:853")}, "quic://192.0.2.1:853"},
		{"quic://[2001:db8::1%dns.test]:99", Target{Transport: DNSOverQUIC, Addr: at("[2001:db8::1]:99"), ServerName: "dns.test"}, "quic://[2001:db8::1]:99"},
		{"quic://dns.test", Target{Transport: DNSOverQUIC, Host: "dns.test", Port: 853}, "quic://dns.test:853"},
		{"k8s:kube-system/kube-dns", Target{Service: "kube-system/kube-dns"}, "k8s:kube-system/kube-dns"},
		{"k8s:kube-system/kube-dns:5353", Target{Service: "kube-system/kube-dns", Port: 5353}, "k8s:kube-system/kube-dns:5353"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			f := one(t, "forward", "forward . "+tt.text+"\nkubernetes cluster.local").(*Forward) // whose endpoints a Service has
			if diff := cmp.Diff([]Target{tt.want}, f.To, equal); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := f.To[0].String(); got != tt.back {
				t.Errorf("as text %q, want %q", got, tt.back)
			}
		})
	}
}

func TestForwardOptions(t *testing.T) {
	cert, key := pair(t, t.TempDir())
	for _, tt := range []struct {
		text string
		edit func(f *Forward)
	}{
		{"policy fastest", func(*Forward) {}},
		{"policy random", func(f *Forward) { f.Policy = PolicyRandom }},
		{"tls", func(f *Forward) { f.TLS = &TLSClient{} }},
		{"tls " + cert, func(f *Forward) { f.TLS = &TLSClient{CA: cert} }},
		{"tls " + cert + " " + key, func(f *Forward) { f.TLS = &TLSClient{Cert: cert, Key: key} }},
		{"tls " + cert + " " + key + " " + cert, func(f *Forward) { f.TLS = &TLSClient{Cert: cert, Key: key, CA: cert} }},
		{"tls_servername dns.test", func(f *Forward) { f.ServerName = "dns.test" }},
		{"max_age 20s", func(f *Forward) { f.MaxAge = 20 * time.Second }},
		{"max_age 0s", func(*Forward) {}},
		{"max_idle_conns 4", func(f *Forward) { f.MaxIdle = 4 }},
		{"max_connect_attempts 3", func(f *Forward) { f.MaxConnectAttempts = 3 }},
		{"max_connect_attempts 0", func(f *Forward) { f.MaxConnectAttempts = -1 }},
		{"doh_method GET", func(f *Forward) { f.DoHMethod = "GET" }},
		{"source_address 192.0.2.9", func(f *Forward) { f.SourceAddress = netip.MustParseAddr("192.0.2.9") }},
		{"next nxdomain REFUSED NXDOMAIN", func(f *Forward) { f.NextOn = []wire.Rcode{wire.NXDomain, wire.Refused} }},
		{"next_on_nodata", func(f *Forward) { f.NextOnNodata = true }},
		{"failover ServFail\nfailover REFUSED", func(f *Forward) { f.Failover = []wire.Rcode{wire.ServFail, wire.Refused} }},
		{"resolver 192.0.2.7 [2001:db8::1]:54 192.0.2.7:53", func(f *Forward) {
			f.Resolver = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:53"), netip.MustParseAddrPort("[2001:db8::1]:54")}
		}},
	} {
		t.Run(tt.text, func(t *testing.T) {
			want := defaultForward()
			want.To = targets("192.0.2.1:53")
			tt.edit(&want)
			if diff := cmp.Diff(&want, one(t, "forward", "forward . 192.0.2.1 {\n"+tt.text+"\n}"), equal); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestForwardFaults(t *testing.T) {
	folder := t.TempDir()
	cert, key := pair(t, folder)
	empty := write(t, folder, "empty.pem", "")
	for _, tt := range []struct{ to, options, want string }{
		{"8.8.8.8.8", "", `3: forward: "8.8.8.8.8" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"a.test:0", "", `3: forward: "0" is not a port; allowed: 1 to 65535`},
		{"a.test:x", "", `3: forward: "x" is not a port; allowed: 1 to 65535`},
		{"tls://192.0.2.1:0", "", `3: forward: "192.0.2.1:0" has port 0; allowed: 1 to 65535`},
		{"tls://", "", `3: forward: "tls://" is empty: is an environment variable unset?`},
		{"tls://192.0.2.1%-x", "", `3: forward: "-x" is not a host name that a certificate could be for`},
		{"tls://192.0.2.1/x", "", `3: forward: "192.0.2.1/x" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"quic://", "", `3: forward: "quic://" is empty: is an environment variable unset?`},
		{"quic://192.0.2.1:0", "", `3: forward: "192.0.2.1:0" has port 0; allowed: 1 to 65535`},
		{"quic://192.0.2.1/x", "", `3: forward: "192.0.2.1/x" is neither an IP address, nor the name of a server, nor a file that exists; write IP, NAME, or one of them with :PORT`},
		{"quic://192.0.2.1", "force_tcp", `3: forward: the upstream quic://192.0.2.1:853 is asked over QUIC, which force_tcp can't change; write tls:// for TLS over TCP, remove force_tcp, or give the upstream a forward of its own`},
		{"192.0.2.2 quic://192.0.2.1", "prefer_udp", `3: forward: the upstream quic://192.0.2.1:853 is asked over QUIC, which prefer_udp can't change; write tls:// for TLS over TCP, remove prefer_udp, or give the upstream a forward of its own`},
		{"quic://192.0.2.1%a.test", "tls_servername b.test", `4: forward: the upstream quic://192.0.2.1:853 already has the server name a.test; remove one of the two`},
		{"https3://192.0.2.1", "", `3: forward: "https3://192.0.2.1" has an unknown scheme "https3"; allowed: dns, https, quic, tls`},
		{"k8s:kube-dns", "", `3: forward: "k8s:kube-dns" is not a Service; write k8s:NAMESPACE/NAME or k8s:NAMESPACE/NAME:PORT`},
		{"k8s:a/b:0", "", `3: forward: "0" is not a port; allowed: 1 to 65535`},
		{"192.0.2.1", "tls_servername a..b", `4: forward tls_servername: "a..b" is not a host name`},
		{"tls://192.0.2.1%a.test", "tls_servername b.test", `4: forward: the upstream tls://192.0.2.1:853 already has the server name a.test; remove one of the two`},
		{"192.0.2.1", "doh_method PUT", `4: forward doh_method: unknown method "PUT"; allowed: GET, POST`},
		{"192.0.2.1", "source_address a", `4: forward source_address: "a" is not an IP address`},
		{"192.0.2.1", "source_address ::1", `4: forward: the upstream 192.0.2.1:53 and ::1 have different address families; write a forward for each family`},
		{"192.0.2.1", "resolver a.test", `4: forward resolver: "a.test" is not an IP address; write IP or IP:PORT`},
		{"192.0.2.1", "resolver 192.0.2.1:0", `4: forward resolver: "192.0.2.1:0" has port 0; allowed: 1 to 65535`},
		{"192.0.2.1", "failover NOERROR", `4: forward failover: NOERROR is not a failure; use next_on_nodata for empty answers`},
		{"192.0.2.1", "failover", "4: forward: an argument is missing after \"failover\"; write: failover RCODE…"},
		{"192.0.2.1", "tls a b c d", "4: forward: \"d\" is one argument too many after \"tls\"; write: tls [CERT KEY] [CA]"},
		{"192.0.2.1", "tls " + folder + "/none", `4: forward tls: can't read "` + folder + `/none": open ` + folder + `/none: no such file or directory; write: tls [CERT KEY] [CA]`},
		{"192.0.2.1", "tls " + empty, `4: forward tls: "` + empty + `" holds no certificate in PEM; name the file of the authority that signs the upstreams' certificates`},
		{"192.0.2.1", "tls " + key + " " + cert, ""},
	} {
		t.Run(tt.to+" "+tt.options, func(t *testing.T) {
			_, err := parse(t, "\nexample.org {\nforward . "+tt.to+" {\n"+tt.options+"\n}\n}\n")
			switch {
			case err == nil:
				t.Error("accepted")
			case tt.want == "":
				if !strings.Contains(err.Error(), "are not a certificate and its key in PEM: ") {
					t.Errorf("error %v", err)
				}
			case err.Error() != "Corefile:"+tt.want:
				t.Errorf("error %v\nwant  Corefile:%s", err, tt.want)
			}
		})
	}
	_, err := parse(t, ". {\nforward . 192.0.2.1 {\nnext NODATA\n}\n}\n")
	if err == nil || !strings.HasPrefix(err.Error(), `Corefile:3: forward next: unknown rcode "NODATA"; allowed: `) || !strings.Contains(err.Error(), "NXDOMAIN") {
		t.Errorf("error %v", err)
	}
}

// TestManyNameservers holds that of a resolv.conf file's servers the first are used,
// with a warning.
func TestManyNameservers(t *testing.T) {
	var text strings.Builder
	for i := range 20 {
		fmt.Fprintf(&text, "nameserver 192.0.2.%d\n", i+1)
	}
	path := write(t, t.TempDir(), "resolv.conf", text.String())
	c, err := parse(t, ". {\nforward . "+path+"\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	to := c.Blocks[0].Forward.To
	if len(to) != maxUpstreams || to[14].String() != "192.0.2.15:53" {
		t.Errorf("forwards to %v", to)
	}
	want := []string{"Corefile:2: forward: " + path + " names 20 name servers; the first 15 are used"}
	if diff := cmp.Diff(want, c.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(path, []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = parse(t, ". {\nforward . "+path+"\n}\n"); err != nil || len(c.Warnings) > 0 {
		t.Errorf("error %v, warnings %q", err, c.Warnings)
	}
}
