package main

import (
	"flag"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/nodens-dns/nodens/cmd/nodens/options"
)

// parseOld reads args as the program did before it used cobra: with package flag.
func parseOld(args []string) (options.Agent, error) {
	f := newAgentFlags()
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.register(all)
	old := flag.NewFlagSet("", flag.ContinueOnError)
	old.SetOutput(io.Discard)
	all.VisitAll(func(added *pflag.Flag) { old.Var(added.Value, added.Name, "") })
	err := old.Parse(args)
	return f.Agent, err
}

// manifestFlags are the flags in the manifests of NodeLocal DNSCache and kubespray, in
// deliveryhero's chart, and in NodeLocal DNSCache's documents, each with a value.
var manifestFlags = []string{
	"localip=169.254.20.10,10.96.0.10", "localip=fd00::a", "conf=/etc/Corefile", "basecorefile=/etc/coredns/Corefile.base",
	"kubednscm=/etc/kube-dns", "upstreamsvc=kube-dns-upstream", "interfacename=nodelocaldns", "syncinterval=60", "syncinterval=90s",
	"health-port=8080", "metrics-listen-address=0.0.0.0:9353", "prometheus-listen-address=:9253", "pidfile=/tmp/node-cache.pid", "dns.port=53",
	"setupinterface", "setupiptables", "setupebtables", "skipteardown", "reloadwithsignal",
}

// TestDashes: arguments mean what they meant to package flag, with one dash and with two.
func TestDashes(t *testing.T) {
	var cases [][]string
	for _, text := range manifestFlags {
		name, value, valued := strings.Cut(text, "=")
		for _, dashes := range []string{"-", "--"} {
			if valued {
				cases = append(cases, []string{dashes + text}, []string{dashes + name, value}, []string{dashes + name}, []string{dashes + name + "="})
				continue
			}
			cases = append(cases, []string{dashes + name})
			for _, word := range []string{"true", "false", "T", "0", "yes", ""} {
				cases = append(cases, []string{dashes + name + "=" + word})
			}
		}
	}
	for _, line := range []string{
		"-localip 169.254.20.10,10.96.0.10 -conf /etc/Corefile -upstreamsvc kube-dns-upstream -pidfile /tmp/node-cache.pid",
		"-localip 169.254.25.10 -conf /etc/Corefile -upstreamsvc coredns",
		"-conf=/etc/Corefile -upstreamsvc=upstream -skipteardown=false -setupinterface=true",
		"-conf -localip=192.0.2.1", // the value of -conf
		"-conf --localip=192.0.2.1",
		"-conf -- -localip 192.0.2.1",
		"-conf - -localip 192.0.2.1",
		"--conf -- -pidfile -pidfile",
		"-interfacename check -conf wait",
		"-conf a -conf b",
		"-conf=a=b",
		"-setupinterface -conf a -setupiptables=false",
		"-syncinterval -5",
		"-dns.port=0",
		"-setupebtables=false",
		"-nosuch", "--nosuch=1", "---conf=a", "-=a", "--=a", "-x",
	} {
		cases = append(cases, strings.Fields(line))
	}
	for _, args := range cases {
		want, wantErr := parseOld(args)
		f, err := parseFlags(args)
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%q: error %v, package flag's is %v", args, err, wantErr)
		}
		if err != nil || wantErr != nil {
			continue
		}
		got := f.Agent
		got.PreferBaseConf, got.NodeName, got.NodeZone, got.NoEffect = false, "", "", nil // set later
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); d != "" {
			t.Errorf("%q (-package flag +got):\n%s", args, d)
		}
	}
}

// TestManyDashes: with one dash or two the commands of the tree read the same.
func TestManyDashes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string // in standard output or standard error
	}{
		{"-version", 0, "nodens-dev"},
		{"--version", 0, "nodens-dev"},
		{"version -o json", 0, `"version": "dev"`},
		{"version -o=json", 0, `"version": "dev"`},
		{"version --o json", 0, `"version": "dev"`},
		{"version -output=json", 0, `"version": "dev"`},
		{"version --output json", 0, `"version": "dev"`},
		{"version -o yaml", 2, `invalid value "yaml" for --output: give text or json`},
		{"version -ojson", 2, "unknown flag --ojson"},
		{"version -h", 0, "nodens version [flags]"},
		{"version --h", 0, "nodens version [flags]"},
		{"version -help", 0, "nodens version [flags]"},
		{"help version", 0, "nodens version [flags]"},
		{"help verson", 2, `unknown command "verson"; did you mean "version"?`},
		{"help version json", 2, `unknown command "json"`},
		{"verson", 2, `unknown command "verson"; did you mean "version"?`},
		{"-conf x verson", 2, `unknown command "verson"; did you mean "version"?`},
		{"x", 2, `unknown command "x"; the commands are advise, cache, check, cleanup,`},
		{"-setupinterface false -conf a", 2, `unexpected argument "false"; a flag starts with dashes and takes its value as --name=value`},
		{"-localipp=192.0.2.1", 2, "unknown flag --localipp; did you mean --localip?"},
		{"--localipp 192.0.2.1", 2, "unknown flag --localipp; did you mean --localip?"},
		{"check --localipp 192.0.2.1", 2, "unknown flag --localipp; did you mean --localip?"},
		{"-z", 2, "unknown flag -z; nodens --help lists the flags"},
		{"-localip", 2, "--localip needs a value"},
		{"-localip=x", 2, `invalid value "x" for --localip: "x" is no IP address`},
		{"version -- -o", 2, `unexpected argument "-o"`},
		{"version -", 2, `unexpected argument "-"`},
		{"flush", 2, "flush takes one name"},
		{"flush a --admin-socket /nonexistent/s -subtree", 1, "--admin-socket /nonexistent/s"},
		{"completion tcsh", 2, `no completion for "tcsh"`},
		{"completion", 2, "completion takes one shell"},
	} {
		code, stdout, stderr := outcome(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.want) || code == 0 && stderr != "" || code != 0 && stdout != "" {
			t.Errorf("%s: exit code %d, %q, %q; want %d, %q", tt.args, code, stdout, stderr, tt.code, tt.want)
		}
	}
}
