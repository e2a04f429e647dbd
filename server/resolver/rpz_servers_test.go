package resolver_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/server/resolver"
	"github.com/nodens-dns/nodens/test/peer"
)

// rpzServers are the programs that replies are compared with: each has a configuration with a directory, a port, the port of the
// upstream and the file with the rules.
var rpzServers = []struct {
	program, config string
	args            []string
}{
	{"unbound", `server:
    interface: 127.0.0.1@%[2]d
    access-control: 127.0.0.0/8 allow
    do-not-query-localhost: no
    do-ip6: no
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "%[1]s"
    pidfile: ""
    num-threads: 1
    module-config: "respip iterator"
    local-zone: "test." nodefault
    qname-minimisation: no
rpz:
    name: rpz.example
    zonefile: "%[4]s"
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: 127.0.0.1@%[3]d
`, []string{"-d", "-p", "-c"}},
	{"named", `options {
    directory "%[1]s";
    pid-file none;
    session-keyfile "%[1]s/session.key";
    managed-keys-directory "%[1]s";
    listen-on port %[2]d { 127.0.0.1; };
    listen-on-v6 { none; };
    recursion yes;
    dnssec-validation no;
    empty-zones-enable no;
    forward only;
    forwarders { 127.0.0.1 port %[3]d; };
    minimal-responses yes;
    response-policy { zone "rpz.example"; } qname-wait-recurse no;
};
controls { };
zone "rpz.example" { type primary; file "%[4]s"; };
`, []string{"-g", "-c"}},
}

// rpzDifferences are names about which replies differ, for some types, and why.
var rpzDifferences = map[string]string{
	"x.good.evil.test.":   "the longest wildcard counts, not only the one at the closest encloser",
	"a.b.good.evil.test.": "the same",
	"x.old.evil.test.":    "the same",
	"a.b.old.evil.test.":  "the same",
	"a.b.test.":           "the same",
	"x.a.b.test.":         "the same",
	"old.evil.test.":      "Unbound takes the old form of passthru for an alias",
	"mid.test.":           "a denial has no aliases; Unbound does not look at the second alias",
	"out.test.":           "the same",
	"via.test.":           "the records of a rule about an alias's target have the question's name",
	"redirected.test.":    "the same, and the alias is not followed",
	"hint.test.":          "addresses in hints are addresses",
}

// TestRPZServers compares replies with those of Unbound and BIND, where they are installed: rcode, TC, and answers without their TTLs.
func TestRPZServers(t *testing.T) {
	rules := slices.DeleteFunc(slices.Clone(unwanted), func(rule string) bool { // which only one of them takes
		return strings.Contains(rule, "rpz-later") || strings.Contains(rule, "rpz-client-ip") || strings.Contains(rule, "rpz-nsip") || strings.Contains(rule, "rpz-nsdname")
	})
	file := rulesFile(t, rules...)
	for _, s := range rpzServers {
		t.Run(s.program, func(t *testing.T) {
			program, err := exec.LookPath(s.program)
			if err != nil {
				t.Skip("not installed; sh test/install.sh unbound bind9")
			}
			b := scripted(t, unwantedScript)
			d := policyDesk(t, rpz("rpz.example", "file "+file), unwantedScript)
			dir, port := t.TempDir(), peer.Ports(t, 1)[0]
			conf := filepath.Join(dir, "conf")
			if err := os.WriteFile(conf, fmt.Appendf(nil, s.config, dir, port, b.Addr().Port(), file), 0o600); err != nil {
				t.Fatal(err)
			}
			p := peer.Start(t, peer.Command{Name: s.program, Path: program, Args: append(s.args, conf)})
			at := fmt.Sprintf("127.0.0.1:%d", port)
			p.Must(t, "the server to answer", peer.Answers(netip.MustParseAddrPort(at)))
			for _, name := range slices.Sorted(maps.Keys(unwantedScript)) {
				for _, more := range []string{"", "x.", "a.b."} {
					if name == "quiet.test." { // which neither server answers
						continue
					}
					for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS} {
						q := question(more+name, qtype)
						c := dns.Client{Timeout: 5 * time.Second}
						theirs, _, _ := c.Exchange(q, at) // no reply is an error
						ours := d.from(freePod+":53", resolver.UDP).ask(q)
						if got, want := rpzOutline(ours), rpzOutline(theirs); got != want && rpzDifferences[more+name] == "" {
							t.Errorf("%s%s %s: %s, %s says %s", more, name, dns.Type(qtype), got, s.program, want)
						}
					}
				}
			}
		})
	}
}

// rpzOutline is a reply in short.
func rpzOutline(m *dns.Msg) string {
	if m == nil {
		return "no reply"
	}
	list := []string{dns.RcodeToString[m.Rcode], fmt.Sprint(m.Truncated)}
	for _, rr := range m.Answer {
		rr.Header().Ttl = 0
		list = append(list, strings.ToLower(rr.String()))
	}
	return strings.Join(list, " | ")
}
