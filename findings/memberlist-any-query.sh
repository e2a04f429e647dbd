#!/usr/bin/env bash
# memberlist, the library of Consul and others, misses the IPv4 addresses of a peer's name if unbound happens to know its IPv6 addresses only.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
mkdir -p "$work/src"
cat >"$work/src/main.go" <<'GO'
// Starts a member that listens on its first argument, and, if there is a second one, joins the
// cluster of that name and prints how many members it has reached.
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"github.com/hashicorp/memberlist"
)

func main() {
	config := memberlist.DefaultLANConfig()
	config.Name, config.BindAddr, config.AdvertiseAddr = os.Args[1], os.Args[1], os.Args[1]
	config.Logger = log.New(io.Discard, "", 0)
	members, err := memberlist.Create(config)
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) == 2 {
		select {}
	}
	n, _ := members.Join(os.Args[2:])
	fmt.Println(n)
}
GO
build memberlist github.com/hashicorp/memberlist 0.7.0
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

ADDRESSES = {A: socket.inet_aton("127.0.0.3"), AAAA: socket.inet_pton(socket.AF_INET6, "2001:db8::3")}
ANY = 255


def both(name, qtype, q, tcp):
    """Answers with the IPv4 and the IPv6 address of each name, and ANY queries with both."""
    if qtype != ANY:
        return reply(q, ttl=30, rdata=ADDRESSES.get(qtype)), 0
    _, _, end = question(q)
    records = b"".join(struct.pack("!3HLH", 0xC00C, t, 1, 30, len(r)) + r for t, r in ADDRESSES.items())
    return reply(q)[:6] + struct.pack("!3H", 2, 0, 0) + q[12:end] + records, 0


def joins(name):
    """Returns how many members a new one reaches at the addresses of a name."""
    r = subprocess.run(["memberlist", "127.0.0.4", name], capture_output=True, text=True)
    if r.returncode:
        sys.stderr.write(r.stderr)
        sys.exit(2)
    return int(r.stdout)


def listening():
    try:
        return socket.create_connection(("127.0.0.3", 7946), 1)
    except OSError:
        return None


cluster = Upstream(both, "127.0.0.2", 53)
start(*forwarding_unbound("unbound", 53, {".": "127.0.0.2@53"}), ready=answers(53))
start("memberlist", "127.0.0.3", ready=listening)
fresh = joins("peers-1.shop.svc.cluster.local")
ask(53, "peers-2.shop.svc.cluster.local", AAAA)
known = joins("peers-2.shop.svc.cluster.local")
ask(53, "peers-3.shop.svc.cluster.local", AAAA)
ask(53, "peers-3.shop.svc.cluster.local", A)
both_known = joins("peers-3.shop.svc.cluster.local")
asked = sum(qtype == A and name.startswith("peers-2") for _, name, qtype, _ in cluster.queries)
conclude("a member whose peers have an IPv4 and an IPv6 address, and listen on the first, joins them whatever the resolver has cached",
         "memberlist 0.7.0, unbound 1.17.1 (Debian 1.17.1-2+deb12u4)",
         f"it reaches {fresh} peer if unbound has nothing in its cache, and {both_known} if it has both addresses; after another client has asked for the IPv6 address alone, "
         f"{known}: memberlist asks for ANY, unbound answers with what it has, and {asked} queries ask for the IPv4 address",
         (fresh, both_known, known, asked) == (1, 1, 0, 0))
PYTHON
