#!/usr/bin/env bash
# Docker's name server denies a container's name for a type that it does not know, so that BIND behind it denies the address, too.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libssl3 libuv1 libxml2 libicu72
debian iptables=1.8.9-2 libip4tc2 libip6tc2 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libxtables12
ln -s xtables-nft-multi "$work/root/usr/sbin/iptables"
XTABLES_LIBDIR=$(dirname "$(find "$work/root" -name libxt_standard.so)")
export XTABLES_LIBDIR
mkdir "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command embedded is Docker's name server, at 127.0.0.11, for a network with a container called db. Other names are asked of 127.0.0.1.
package main

import (
	"context"
	"log"
	"net"
	"reflect"
	"strings"

	"github.com/moby/moby/v2/daemon/libnetwork"
	"github.com/moby/moby/v2/daemon/libnetwork/types"
)

// network tells what the name server asks a Docker network.
type network struct{}

// ResolveName returns the addresses of a container, and whether the name is known.
func (network) ResolveName(_ context.Context, name string, family types.IPFamily) ([]net.IP, bool) {
	known := strings.EqualFold(name, "db.")
	if known && family == types.IPv4 {
		return []net.IP{net.IPv4(172, 18, 0, 2)}, true
	}
	return nil, known
}

func (network) ResolveIP(context.Context, string) string                      { return "" }
func (network) ResolveService(context.Context, string) ([]*net.SRV, []net.IP) { return nil, nil }
func (network) ExecFunc(f func()) error                                       { f(); return nil }
func (network) NdotsSet() bool                                                { return false }
func (network) HandleQueryResp(string, net.IP)                                {}

// forward sets the server of other names. Its type has no name outside of the package.
func forward[T any](set func([]T), address string) {
	servers := make([]T, 1)
	server := reflect.ValueOf(&servers[0]).Elem()
	server.FieldByName("IPStr").SetString(address)
	server.FieldByName("HostLoopback").SetBool(true)
	set(servers)
}

func main() {
	r := libnetwork.NewResolver("127.0.0.11", true, network{})
	forward(r.SetExtServers, "127.0.0.1")
	r.SetupFunc(0)()
	if err := r.Start(); err != nil {
		log.Fatal(err)
	}
	select {}
}
GO
build embedded github.com/moby/moby/v2 2.0.0-beta.24
look_ups 'nameserver 127.0.0.11' <<'PYTHON'
from loopback import *

HTTPS = 65


def missing(q):
    """Denies a name like the root zone, with its SOA record."""
    data = b"\1a\0\1b\0" + struct.pack("!5L", 1, 1800, 900, 604800, 86400)
    r = reply(q, NXDOMAIN)
    return r[:8] + struct.pack("!2H", 1, 0) + r[12:] + b"\0" + struct.pack("!2HLH", SOA, 1, 86400, len(data)) + data


Upstream(lambda name, qtype, q, tcp: (missing(q) if name.count(".") == 1 else reply(q), 0), port=53)
start("embedded", ready=lambda: ask(53, "ready.example.", address="127.0.0.11", timeout=0.5)[0])


def code(port, qtype=A, address="127.0.0.1"):
    return RCODES.get(rcode(ask(port, "db.", qtype, address=address)[0]))


port = free_port()
start(*bind9("named", port, "forward only; forwarders { 127.0.0.11; }; dnssec-validation no;"), ready=answers(port))
docker, docker_https = code(53, A, "127.0.0.11"), code(53, HTTPS, "127.0.0.11")
before, https, after = code(port), code(port, HTTPS), code(port)
if socket.getaddrinfo("db", 80, type=socket.SOCK_STREAM)[0][4][0] != "172.18.0.2":
    sys.exit(2)
conclude("a query for the HTTPS record of a container's name gets NOERROR without a record, as the name exists (RFC 8020)",
         "Moby 2.0.0-beta.24 (Docker Engine), libnetwork's Resolver; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3)",
         f"Docker answers {docker} for the name's address and {docker_https} for its HTTPS record, which it asks the outside for; "
         f"BIND, which forwards to it, answers {before} for the address, and after one query for the HTTPS record, {https}, it answers {after} for the address",
         (docker, docker_https, before, https, after) == ("NOERROR", "NXDOMAIN", "NOERROR", "NXDOMAIN", "NXDOMAIN"))
PYTHON
