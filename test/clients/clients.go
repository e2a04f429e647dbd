package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Client is a program that asks for names.
type Client struct {
	Name string
	// Program is the program, and Package Debian's package. An empty Program is Go's resolver, which is part of the suite.
	Program, Package string
	// args are the arguments, with the placeholders @ADDR@, @NAME@, @TYPE@ and @DIR@.
	args []string
	// conf says that it reads /etc/resolv.conf, addrs that it asks for addresses only.
	conf, addrs bool
	// Note is for the table.
	Note string
	// Short says that it is in the short form.
	Short bool
}

// dnspython prints what dnspython finds.
const dnspython = `import dns.resolver, sys
r = dns.resolver.Resolver(configure=False); r.nameservers = [sys.argv[1]]; r.lifetime = 10
for a in r.resolve(sys.argv[2], sys.argv[3]): print(a)`

// nodejs prints what Node's dns.resolve, which is c-ares, finds.
const nodejs = `const r = new (require("dns").Resolver)(); const [addr, name, type] = process.argv.slice(1); r.setServers([addr]);
r.resolve(name, type, (e, l) => { if (e) { console.error(e.code); process.exit(1) } console.log(JSON.stringify(l)) })`

// netdns prints what Perl's Net::DNS finds.
const netdns = `my $r = Net::DNS::Resolver->new(nameservers => [shift]); my $p = $r->send(@ARGV) or exit 1; print $_->string, "\n" for $p->answer`

// muslSource calls getaddrinfo.
const muslSource = `#include <netdb.h>
#include <arpa/inet.h>
#include <stdio.h>
int main(int n, char **v) {
	struct addrinfo *a, h = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	int e = getaddrinfo(v[1], 0, &h, &a);
	if (e) return fprintf(stderr, "%s\n", gai_strerror(e)), 1;
	for (; a; a = a->ai_next) puts(inet_ntoa(((struct sockaddr_in *)a->ai_addr)->sin_addr));
}
`

// Clients returns all programs.
func Clients() []Client {
	return []Client{
		{Name: "dig", Program: "dig", Package: "bind9-dnsutils", args: []string{"+short", "+time=5", "+tries=1", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "dig, 8,192 bytes without TCP", Program: "dig", Package: "bind9-dnsutils", args: []string{"+noall", "+answer", "+ignore", "+bufsize=8192", "+time=5", "+tries=1", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "host", Program: "host", Package: "bind9-host", args: []string{"-t", "@TYPE@", "@NAME@", "@ADDR@"}, Short: true},
		{Name: "nslookup", Program: "nslookup", Package: "bind9-dnsutils", args: []string{"-type=@TYPE@", "@NAME@", "@ADDR@"}},
		{Name: "kdig", Program: "kdig", Package: "knot-dnsutils", args: []string{"+short", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "drill", Program: "drill", Package: "ldnsutils", args: []string{"@NAME@", "@@ADDR@", "@TYPE@"}, Short: true},
		{Name: "glibc", Program: "getent", Package: "libc-bin", args: []string{"ahostsv4", "@NAME@"}, conf: true, addrs: true, Short: true},
		{Name: "musl", Program: "musl-gcc", Package: "musl-tools", args: []string{"@NAME@"}, conf: true, addrs: true, Note: "1.2.3: no EDNS, no TCP", Short: true},
		{Name: "Go's resolver", Short: true},
		{Name: "dnspython", Program: "/usr/bin/python3", Package: "python3-dnspython", args: []string{"-c", dnspython, "@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "HAProxy", Program: "haproxy", Package: "haproxy", Short: true},
		{Name: "BusyBox nslookup", Program: "busybox", Package: "busybox-static", args: []string{"nslookup", "-type=@TYPE@", "@NAME@", "@ADDR@"}},
		{Name: "Node's dns.resolve", Program: "node", args: []string{"-e", nodejs, "@ADDR@", "@NAME@", "@TYPE@"}, Note: "c-ares"},
		{Name: "udns", Program: "dnsget", Package: "udns-utils", args: []string{"-n", "@ADDR@", "-q", "-t", "@TYPE@", "@NAME@"}},
		{Name: "Net::DNS", Program: "perl", Package: "libnet-dns-perl", args: []string{"-MNet::DNS", "-e", netdns, "@ADDR@", "@NAME@", "@TYPE@"}},
	}
}

// Situation is a name that is asked for.
type Situation struct {
	Title, name, qtype string
	want               int            // records
	found              *regexp.Regexp // one record in the output
}

var (
	addresses = regexp.MustCompile(`\b10\.4\.[01]\.\d+\b`)
	targets   = regexp.MustCompile(`\b10-4-1-\d+\.many`)
	anything  = regexp.MustCompile(`\b10\.4\.[01]\.\d+\b`)
)

// Situations returns all situations.
func Situations() []Situation {
	const in = "shop.svc.cluster.local"
	return []Situation{
		{"A", "web." + in, "A", 1, addresses},
		{"A × 120", "many." + in, "A", many, addresses},
		{"SRV × 120", "_http._tcp.many." + in, "SRV", many, targets},
		{"alias", "alias." + in, "A", 1, addresses},
		{"NXDOMAIN", "none." + in, "A", 0, anything},
		{"NODATA", "web." + in, "AAAA", 0, anything},
		{"ANY", "web." + in, "ANY", 1, anything},
	}
}

// errAbsent says that a program is not installed.
var errAbsent = errors.New("not installed")

// prepare returns c ready to run, with what it needs in dir.
func (c Client) prepare(ctx context.Context, dir string) (Client, error) {
	if c.Program == "" {
		return c, nil
	}
	path, err := exec.LookPath(c.Program)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + c.Program); err != nil {
			return c, fmt.Errorf("%s: %w", c.Program, errAbsent)
		}
	}
	if c.Program == "musl-gcc" {
		source, program := filepath.Join(dir, "musl.c"), filepath.Join(dir, "musl")
		if err := os.WriteFile(source, []byte(muslSource), 0o644); err != nil {
			return c, err
		}
		if out, err := exec.CommandContext(ctx, path, "-static", "-o", program, source).CombinedOutput(); err != nil {
			return c, fmt.Errorf("%s: %w: %s", c.Program, err, out)
		}
		path = program
	}
	c.Program = path
	return c, nil
}

// Asks reports whether the client can ask what s asks.
func (c Client) Asks(s Situation) bool {
	switch {
	case c.Name == "HAProxy":
		return s.want == many
	case c.addrs:
		return s.qtype == "A"
	case c.Name == "Go's resolver":
		return s.qtype == "A" || s.qtype == "SRV"
	case c.Name == "dnspython" || c.Name == "BusyBox nslookup":
		return s.qtype != "ANY"
	}
	return true
}

// maxTime bounds the time of a program.
const maxTime = 30 * time.Second

// Count returns how many records of s the client gets from the server at addr.
func (c Client) Count(ctx context.Context, dir, addr string, s Situation) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	var out string
	switch c.Name {
	case "HAProxy":
		return haproxy(ctx, c.Program, dir, addr, s)
	case "Go's resolver":
		out = askGo(ctx, addr, s)
	default:
		r := strings.NewReplacer("@ADDR@", addr, "@NAME@", s.name, "@TYPE@", s.qtype, "@DIR@", dir)
		args := []string{c.Program}
		for _, a := range c.args {
			args = append(args, r.Replace(a))
		}
		if c.conf {
			conf := filepath.Join(dir, "resolv."+addr)
			if err := os.WriteFile(conf, []byte("nameserver "+addr+"\n"), 0o644); err != nil {
				return 0, err
			}
			args = append([]string{"unshare", "-m", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`, "sh", conf}, args...)
		}
		b, _ := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() //nolint:gosec // the table's
		out = string(b)
	}
	found := s.found.FindAllString(out, -1)
	slices.Sort(found)
	return len(slices.Compact(found)), nil
}

// askGo returns what Go's resolver finds.
func askGo(ctx context.Context, addr string, s Situation) string {
	if s.qtype == "SRV" {
		_, list, _ := resolver(addr).LookupSRV(ctx, "", "", s.name+".")
		var b strings.Builder
		for _, r := range list {
			b.WriteString(r.Target + "\n")
		}
		return b.String()
	}
	list, _ := resolver(addr).LookupHost(ctx, s.name+".")
	return strings.Join(list, "\n")
}
