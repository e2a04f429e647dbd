package main

import (
	"os"
	"path/filepath"
)

// The scripts print what a library finds for the arguments: the address of the server, the name and the type. A library that
// reads /etc/resolv.conf has no server among its arguments.
const (
	dnspython = `import dns.resolver, sys
r = dns.resolver.Resolver(configure=False); r.nameservers = [sys.argv[1]]; r.lifetime = 10
for a in r.resolve(sys.argv[2], sys.argv[3]): print(a)`

	twisted = `import sys
from twisted.internet import task
from twisted.names import client, dns
def main(reactor, addr, name, qtype):
    kind = dns.ALL_RECORDS if qtype == "ANY" else getattr(dns, qtype)
    d = client.Resolver(servers=[(addr, 53)], reactor=reactor).query(dns.Query(name.encode(), kind, dns.IN), [5])
    return d.addCallback(lambda found: [print(r.payload) for r in found[0]])
task.react(main, sys.argv[1:])`

	pycares = `import pycares, select, sys
c = pycares.Channel(servers=[sys.argv[1]], timeout=5, tries=1)
c.query(sys.argv[2], getattr(pycares, "QUERY_TYPE_" + sys.argv[3]), lambda found, error: print(found, error))
while any(fds := c.getsock()):
    read, write, _ = select.select(*fds, [], 1)
    for fd in read: c.process_fd(fd, -1)
    for fd in write: c.process_fd(-1, fd)
    if not read and not write: c.process_fd(-1, -1)`

	nodejs = `const r = new (require("dns").Resolver)(); const [addr, name, type] = process.argv.slice(1); r.setServers([addr]);
r.resolve(name, type, (e, l) => { if (e) { console.error(e.code); process.exit(1) } console.log(JSON.stringify(l)) })`

	netDNS = `my $r = Net::DNS::Resolver->new(nameservers => [shift]); my $p = $r->send(@ARGV) or exit 1; print $_->string, "\n" for $p->answer`

	ruby = `require "resolv"
r = Resolv::DNS.new(nameserver: ARGV[0]); r.timeouts = 5
r.each_resource(ARGV[1], Resolv::DNS::Resource::IN.const_get(ARGV[2])) { |x| puts x.respond_to?(:address) ? x.address : x.respond_to?(:target) ? x.target : x.name }`

	php = `foreach (dns_get_record($argv[1], constant("DNS_" . $argv[2])) as $r) echo $r["ip"] ?? $r["target"] ?? "", "\n";`

	erlang = `[A, N, T] = init:get_plain_arguments(), {ok, S} = inet:parse_address(A),
[case X of
	{_, _, _, Target} when T == "SRV" -> io:format("~s~n", [Target]);
	{_, _, _, _} -> io:format("~s~n", [inet:ntoa(X)]);
	_ -> io:format("~s~n", [X])
end || X <- inet_res:lookup(N, in, list_to_atom(string:lowercase(T)), [{nameservers, [{S, 53}]}])], halt().`

	// tcllib asks over TCP, because Tcl has no UDP.
	tcllib = `package require dns; lassign $argv addr name type
set t [dns::resolve $name -server $addr -type $type -timeout 5000]; dns::wait $t; puts [dns::result $t]; exit`

	// jndi is Java's own resolver; InetAddress asks the libc.
	jndi = `import java.util.*;
import javax.naming.directory.*;
class Lookup {
	public static void main(String[] a) throws Exception {
		Hashtable<String, String> env = new Hashtable<>();
		env.put("java.naming.factory.initial", "com.sun.jndi.dns.DnsContextFactory");
		env.put("java.naming.provider.url", "dns://" + a[0]);
		String[] types = a[2].equals("ANY") ? null : new String[]{a[2]};
		System.out.println(new InitialDirContext(env).getAttributes(a[1], types));
	}
}`

	// muslSource calls getaddrinfo.
	muslSource = `#include <netdb.h>
#include <arpa/inet.h>
#include <stdio.h>
int main(int n, char **v) {
	struct addrinfo *a, h = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
	int e = getaddrinfo(v[1], 0, &h, &a);
	if (e) return fprintf(stderr, "%s\n", gai_strerror(e)), 1;
	for (; a; a = a->ai_next) puts(inet_ntoa(((struct sockaddr_in *)a->ai_addr)->sin_addr));
}
`
)

// Clients returns all programs.
func Clients() []Client {
	lookup := []string{"@ADDR@", "@NAME@", "@TYPE@"}
	script := func(args ...string) []string { return append(args, lookup...) }
	return []Client{
		{Name: "dig", Program: "dig", Package: "bind9-dnsutils", args: []string{"+short", "+time=5", "+tries=1", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "dig, 8,192 bytes without TCP", Program: "dig", Package: "bind9-dnsutils", args: []string{"+noall", "+answer", "+ignore", "+bufsize=8192", "+time=5", "+tries=1", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "host", Program: "host", Package: "bind9-host", args: []string{"-t", "@TYPE@", "@NAME@", "@ADDR@"}, Short: true},
		{Name: "nslookup", Program: "nslookup", Package: "bind9-dnsutils", args: []string{"-type=@TYPE@", "@NAME@", "@ADDR@"}, Short: true},
		{Name: "kdig", Program: "kdig", Package: "knot-dnsutils", args: []string{"+short", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "drill", Program: "drill", Package: "ldnsutils", args: []string{"@NAME@", "@@ADDR@", "@TYPE@"}, Short: true},
		{Name: "glibc", Program: "getent", Package: "libc-bin", args: []string{"ahostsv4", "@NAME@"}, conf: true, addrs: true, Short: true},
		{Name: "musl", Program: "musl-gcc", Package: "musl-tools", args: []string{"@NAME@"}, conf: true, addrs: true, Note: "1.2.3: no EDNS, no TCP", Short: true},
		{Name: "Go's resolver", Short: true},
		{Name: "dnspython", Program: "/usr/bin/python3", Package: "python3-dnspython", args: script("-c", dnspython), not: "ANY", Short: true},
		{Name: "HAProxy", Program: "haproxy", Package: "haproxy", Short: true},
		{Name: "BusyBox nslookup", Program: "busybox", Package: "busybox-static", args: []string{"nslookup", "-type=@TYPE@", "@NAME@", "@ADDR@"}, not: "ANY", Short: true},
		{Name: "Node's dns.resolve", Program: "node", args: script("-e", nodejs), Note: "c-ares", Short: true},
		{Name: "Python's pycares", Program: "/usr/bin/python3", Package: "python3-pycares", args: script("-c", pycares), Note: "c-ares"},
		{Name: "Twisted Names", Program: "/usr/bin/python3", Package: "python3-twisted", args: script("-c", twisted)},
		{Name: "udns", Program: "dnsget", Package: "udns-utils", args: []string{"-n", "@ADDR@", "-q", "-t", "@TYPE@", "@NAME@"}, Short: true},
		{Name: "adns", Program: "adnshost", Package: "adns-tools", args: []string{"--config", "nameserver @ADDR@", "-t", "@TYPE@", "@NAME@"}, types: map[string]string{"A": "a", "SRV": "srv-", "PTR": "ptr-"}, not: "ANY AAAA", Short: true},
		{Name: "getdns (Stubby)", Program: "getdns_query", Package: "getdns-utils", args: []string{"-s", "-J", "@@ADDR@", "@NAME@", "@TYPE@"}, Short: true},
		{Name: "libunbound", Program: "unbound-host", Package: "unbound-host", args: []string{"-r", "-t", "@TYPE@", "@NAME@"}, conf: true, not: "ANY PTR", Short: true},
		{Name: "Net::DNS", Program: "perl", Package: "libnet-dns-perl", args: script("-MNet::DNS", "-e", netDNS), Short: true},
		{Name: "Ruby's Resolv", Program: "ruby", Package: "ruby", args: script("-e", ruby), Short: true},
		{Name: "PHP's dns_get_record", Program: "php", Package: "php8.2-cli", args: []string{"-r", php, "--", "@NAME@", "@TYPE@"}, conf: true, Short: true},
		{Name: "Erlang's inet_res", Program: "erl", Package: "erlang-base", args: script("-noshell", "-eval", erlang, "-extra"), Short: true},
		{Name: "Tcllib", Program: "tclsh", Package: "tcllib", args: script("@DIR@/lookup.tcl"), file: "lookup.tcl", source: tcllib, not: "ANY"},
		{Name: "Java's JNDI", Program: "java", Package: "openjdk-17-jdk-headless", args: script("@DIR@/Lookup.java"), file: "Lookup.java", source: jndi},
		{Name: newerHAProxy, Program: "dpkg-deb", Package: "haproxy", newerPath: "usr/sbin/haproxy", Note: "3.0, Debian 13"},
		{Name: "musl 1.2.5", Program: "musl-gcc", Package: "musl", args: []string{"@NAME@"}, conf: true, addrs: true, newerMusl: true, Note: "Debian 13: TCP after TC, 48 addresses at most"},
		{Name: "Node 24's dns.resolve", Program: "npm", newerNode: true, args: script("-e", nodejs), Note: "c-ares"},
		{Name: "nginx", Program: "nginx", Package: "nginx-light", Short: true},
	}
}

// writeSource writes the script of a program that takes none as an argument.
func (c Client) writeSource(dir string) error {
	if c.file == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, c.file), []byte(c.source), 0o644)
}
