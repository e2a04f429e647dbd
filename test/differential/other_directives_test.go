package differential

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/test/apiserver"
	"github.com/nodens-dns/nodens/test/peer"
	"github.com/nodens-dns/nodens/test/rig/check"
	"github.com/nodens-dns/nodens/test/rig/grpcpeer"
)

// notCompared are the directives that are in no Corefile of this suite, with the reason.
var notCompared = map[string]string{
	"aaaa":            "CoreDNS doesn't have it",
	"client_limit":    "CoreDNS doesn't have it",
	"keep":            "CoreDNS doesn't have it",
	"private_address": "CoreDNS doesn't have it",
	"rpz":             "CoreDNS doesn't have it",
	"trace":           "CoreDNS is built without it, and it changes no reply",
	"tunnel":          "CoreDNS doesn't have it",
}

// TestEachDirective: each directive is in a Corefile of this suite, but for those with a reason.
func TestEachDirective(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	check.NoError(t, err)
	known := config.Directives()
	used := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		check.NoError(t, err)
		for _, text := range texts(file) {
			for _, directive := range directivesIn(text, known) {
				used[directive] = true
			}
		}
	}
	for _, name := range known {
		if reason, ok := notCompared[name]; used[name] == ok {
			t.Errorf("%s is in a Corefile: %t; the reason why it is not: %q", name, used[name], reason)
		}
	}
	for name := range notCompared {
		if !slices.Contains(known, name) {
			t.Errorf("%s is no directive", name)
		}
	}
}

// texts returns the strings of a file that are a Corefile or a part of one: those of the fields text and directives, and those of
// several lines.
func texts(file *ast.File) (list []string) {
	add := func(whole bool) func(ast.Node) bool {
		return func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil && (whole || strings.Contains(text, "\n")) {
				list = append(list, text)
			}
			return true
		}
	}
	ast.Inspect(file, add(false))
	ast.Inspect(file, func(n ast.Node) bool {
		if field, ok := n.(*ast.KeyValueExpr); ok {
			if key, ok := field.Key.(*ast.Ident); ok && (key.Name == "text" || key.Name == "directives") {
				ast.Inspect(field.Value, add(true))
			}
		}
		return true
	})
	return list
}

// directivesIn returns the known directives of a Corefile or a part of one: the first words of lines that are not in the block of a
// directive.
func directivesIn(text string, known []string) (list []string) {
	var open []bool // by depth: whether it is a directive's block
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		isDirective := slices.Contains(known, words[0])
		if isDirective && !slices.Contains(open, true) {
			list = append(list, words[0])
		}
		switch {
		case words[0] == "}" && len(open) > 0:
			open = open[:len(open)-1]
		case words[len(words)-1] == "{":
			open = append(open, isDirective)
		}
	}
	return list
}

// TestDirectivesIn: options are no directives.
func TestDirectivesIn(t *testing.T) {
	known := []string{"cache", "any", "tls", "forward"}
	for text, want := range map[string]string{
		"cache 30\nforward . UPSTREAM {\ntls a b\n}\n":     "cache forward",
		". {\nany\nforward . UPSTREAM {\ntls\n}\ntls a\n}": "any forward tls",
		"any": "any", "not tls": "",
	} {
		if got := strings.Join(directivesIn(text, known), " "); got != want {
			t.Errorf("%q has %q, want %q", text, got, want)
		}
	}
}

// otherBlocks are blocks with directives that no rule set has. Each has a port of its own: %[2]d is that of pprof, %[3]s a directory, and
// %[4]s a server of gRPC.
var otherBlocks = []struct {
	name, text string
	queries    func() []query
}{
	{
		name: "observed",
		text: `.:%[1]d {
bind 127.0.0.1
debug
metadata
errors
log . "{remote} {name} {rcode}"
pprof 127.0.0.1:%[2]d
dnstap %[3]s/nobody.sock full
timeouts {
read 5s
write 5s
idle 20s
}
bufsize 1232
loop
forward . UPSTREAM
}
`,
		queries: otherQueries,
	},
	{
		name: "view",
		text: `.:%[1]d {
bind 127.0.0.1
view first {
expr client_ip() == '127.0.1.1'
expr type() in ['A', 'AAAA']
}
template ANY ANY {
rcode REFUSED
}
}
.:%[1]d {
bind 127.0.0.1
view second {
expr name() endsWith '.any.test.' || do()
}
hosts {
192.0.2.200 in.any.test
fallthrough
}
forward . UPSTREAM
}
.:%[1]d {
bind 127.0.0.1
template ANY ANY {
rcode NXDOMAIN
authority "test. 60 IN SOA ns.test. host.test. (1 60 60 60 60)"
}
}
`,
		queries: otherQueries,
	},
	{name: "grpc", text: ".:%[1]d {\nbind 127.0.0.1\ngrpc . %[4]s\n}\n", queries: otherQueries},
	{name: "whoami", text: ".:%[1]d {\nbind 127.0.0.1\nwhoami\n}\n", queries: otherQueries},
}

// otherQueries are the questions about each block.
func otherQueries() (list []query) {
	for _, name := range []string{"host.ext.test.", "HOST.ext.test.", "alias2.ext.test.", "missing.ext.test.", "neg.test.", "in.any.test.", "x.any.test.", "servfail.ext.test.", "big.ext.test.", "middle.ext.test."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeSRV} {
			list = append(list,
				query{name: name, qtype: kind},
				query{name: name, qtype: kind, tcp: true},
				query{name: name, qtype: kind, ednsSize: ednsSize},
				query{name: name, qtype: kind, ednsSize: ednsSize, do: true},
				query{name: name, qtype: kind, from: "127.0.1.1"})
		}
	}
	return list
}

// TestOtherDirectives compares blocks with directives that no rule set has.
func TestOtherDirectives(t *testing.T) {
	if testing.Short() {
		t.Skip("building CoreDNS takes minutes: skipped under -short")
	}
	s := newPlainSite(t)
	s.table = append(knownMessages(), knownSizes())
	upstream, err := newUpstream()
	check.NoError(t, err)
	over := grpcpeer.Serve(t, nil, func(_ context.Context, packet []byte) ([]byte, error) {
		m := new(dns.Msg)
		if err := m.Unpack(packet); err != nil {
			return nil, err
		}
		return upstream.reply(m).Pack()
	})
	start := func(program string) (ports []uint16) {
		ports = peer.Ports(t, len(otherBlocks))
		var text strings.Builder
		text.WriteString(ruleSet{}.corefile())
		for i, b := range otherBlocks {
			fmt.Fprintf(&text, b.text+"%.0[2]d%.0[3]s%.0[4]s", ports[i], peer.Ports(t, 1)[0], t.TempDir(), over)
		}
		s.serve(t, program, text.String(), apiserver.Admin)
		return ports
	}
	coredns, ours := start("coredns"), start(agentProgram())
	for i, b := range otherBlocks {
		t.Run(b.name, func(t *testing.T) {
			r := s.run(t, false)
			a := agent{name: agentProgram(), addr: netip.AddrPortFrom(loopback, ours[i])}
			r.coredns = netip.AddrPortFrom(loopback, coredns[i])
			for _, q := range b.queries() {
				var views []view
				for _, addr := range []netip.AddrPort{r.coredns, a.addr} {
					v, _, err := ask(addr, q, r.nextID())
					check.NoError(t, err)
					views = append(views, withoutPorts(v))
				}
				r.compareViews(a, q.String(), q, views[0], views[1])
			}
			r.report()
		})
	}
}

// withoutPorts is the view without the ports of clients that whoami tells.
func withoutPorts(v view) view {
	v = v.clone()
	for i, r := range v.Additional {
		if f := strings.Fields(r.Data); r.Type == "SRV" && len(f) == 4 && r.TTL == 0 {
			f[2] = "PORT"
			v.Additional[i].Data = strings.Join(f, " ")
		}
	}
	return v
}
