#!/usr/bin/env bash
# go-dns's cache goes on denying a name that dnsmasq has got since, as dnsmasq's negative answers have no SOA record.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command resolve NAME looks a name up with each of four resolvers twice a second, and prints who found it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/ncruces/go-dns"
)

func main() {
	resolvers := []*net.Resolver{
		{PreferGo: true},
		dns.NewCachingResolver(nil),
		dns.NewCachingResolver(nil, dns.MaxCacheTTL(5*time.Second)),
		dns.NewCachingResolver(nil, dns.NegativeCache(false)),
	}
	for {
		line := ""
		for _, r := range resolvers {
			if _, err := r.LookupHost(context.Background(), os.Args[1]); err == nil {
				line += "y"
			} else {
				line += "n"
			}
		}
		fmt.Println(line)
		time.Sleep(500 * time.Millisecond)
	}
}
GO
build resolve github.com/ncruces/go-dns 1.3.4
look_ups $'nameserver 127.0.0.1\noptions timeout:1' <<'PYTHON'
from loopback import *

hosts = folder("hosts")
os.chmod(hosts, 0o755)
start(*dnsmasq(53, 1, f"group=\nlocal=/internal/\nhostsdir={hosts}"), ready=answers(53, "ready.internal."))
missing, _ = ask(53, "db-1.shop.internal.")
if rcode(missing) != NXDOMAIN:
    sys.exit(2)
p = subprocess.Popen(["resolve", "db-1.shop.internal."], stdout=subprocess.PIPE, text=True)
atexit.register(end, p)
if [p.stdout.readline().strip() for _ in range(4)] != 4 * ["nnnn"]:
    sys.exit(2)
write("hosts/shop", "192.0.2.1 db-1.shop.internal\n")
until = time.monotonic() + 20
while p.stdout.readline()[0] != "y":
    if time.monotonic() > until:
        sys.exit(2)
after = [p.stdout.readline() for _ in range(80)]
direct, default, limited, without = ([l[i] for l in after[20:]].count("y") for i in range(4))
conclude("a name that did not exist and is added later is found a few seconds after that, as dnsmasq gives no time for which to keep the old answer",
         "go-dns v1.3.4 (github.com/ncruces/go-dns), NewCachingResolver; dnsmasq 2.90 (Debian 2.90-4~deb12u2), local and hostsdir",
         f"from 10 to 40 s after the name was added, {default} of 60 look-ups find it, {direct} without the cache, {limited} with MaxCacheTTL of 5 s, and {without} with NegativeCache(false)",
         default == 0 and direct == limited == without == 60)
PYTHON
