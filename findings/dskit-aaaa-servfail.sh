#!/usr/bin/env bash
# dskit's DNS provider drops the addresses it has if the AAAA query gets SERVFAIL.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command provider BACKEND NAME looks the name up for each line of standard input, and prints the addresses it then has and whether there was an error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/go-kit/log"
	"github.com/grafana/dskit/dns"
)

func main() {
	provider := dns.NewProvider(dns.ResolverType(os.Args[1]), 2, log.NewNopLogger(), nil)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		err := provider.Resolve(context.Background(), []string{os.Args[2]})
		addresses := provider.Addresses()
		slices.Sort(addresses)
		fmt.Println(addresses, err != nil)
	}
}
GO
build provider github.com/grafana/dskit 0.0.0-20260703122047-de1ec7541c44
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
from loopback import *

V4, V6 = "192.0.2.1:11211", "[2001:db8::1]:11211"
failing = []


def answer(name, qtype, q, tcp):
    """The label says which of the two addresses a name has."""
    if qtype in failing:
        return reply(q, SERVFAIL), 0
    has, r = name.split(".")[0], reply(q, ttl=5, rdata=socket.inet_pton(socket.AF_INET6, "2001:db8::1") if qtype == AAAA else None)
    if has == "both" or has == ("ipv6" if qtype == AAAA else "ipv4"):
        return r, 0
    return r[:6] + b"\0\0" + r[8 : question(q)[2]], 0


dns = Upstream(answer, port=53)


def addresses(name, *types):
    """Returns the addresses that a name has while queries of these types get SERVFAIL, and whether there is an error."""
    p = subprocess.Popen(["provider", "miekgdns", f"dns+{name}.memcached.svc.cluster.local:11211"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = []
    for failing[:] in [], types, []:
        p.stdin.write("\n")
        p.stdin.flush()
        lines.append(p.stdout.readline().strip())
    p.communicate()
    if lines[0] != lines[2] or lines[0] != f"[{V4 if name == 'ipv4' else V6}] false":
        sys.exit(2)
    found, error = lines[1].rsplit(" ", 1)
    return found[1:-1], error == "true"


ipv4, ipv6, both, all_fail = addresses("ipv4", A), addresses("ipv6", AAAA), addresses("both", AAAA), addresses("both", A, AAAA)
conclude("if a look-up gets SERVFAIL, the provider keeps the addresses that it has, and returns an error",
         "dskit v0.0.0-20260703122047-de1ec7541c44, dns.Provider with MiekgdnsResolverType",
         f"it does so for a name with an IPv4 address; if the AAAA query gets SERVFAIL, a name with an IPv6 address has "
         f"{ipv6[0] or 'no address'}, and one with both changes from {V6} to {both[0]}, {'with' if ipv6[1] or both[1] else 'without'} an error; "
         f"if both queries get SERVFAIL, it keeps {all_fail[0]}",
         ipv4 == (V4, True) and ipv6 == ("", False) and both == (V4, False) and all_fail == (V6, True))
PYTHON
