#!/usr/bin/env bash
# cert-manager's own query before a challenge makes BIND deny the challenge's record for as long as the zone says.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libssl3 libuv1 libxml2 libicu72
debian knot=3.2.6-1 libknot13 libdnssec9 libzscanner4 liburcu8 libbpf1 libxdp1 libcap-ng0 libelf1 libedit2 libgnutls30 libfstrm0 liblmdb0
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libprotobuf-c1 libpython3.11 libexpat1
mkdir -p "$work/src"
cat >"$work/src/main.go" <<'GO'
// Command challenge PRIMARY RESOLVER DOMAIN does what cert-manager does for a DNS01 challenge of the solver rfc2136: it looks for the zone
// and adds the record. It prints after how many seconds the self-check succeeds, 40 at most.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/dns/util"
	"github.com/miekg/dns"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx, resolver := context.Background(), []string{os.Args[2]}
	fqdn, err := util.DNS01LookupFQDN(ctx, os.Args[3], false, resolver...)
	check(err)
	zone, err := util.FindZoneByFqdn(ctx, fqdn, resolver)
	check(err)
	update := new(dns.Msg).SetUpdate(zone)
	record, err := dns.NewRR(fqdn + " 60 TXT token")
	check(err)
	update.Insert([]dns.RR{record})
	_, err = dns.Exchange(update, os.Args[1])
	check(err)
	for begin := time.Now(); time.Since(begin) < 40*time.Second; time.Sleep(time.Second) {
		if found, _ := util.PreCheckDNS(ctx, fqdn, "token", resolver, false); found {
			fmt.Println(int(time.Since(begin).Seconds()))
			return
		}
	}
	fmt.Println("never")
}
GO
build challenge github.com/cert-manager/cert-manager 1.21.2
python3 - <<'PYTHON'
from loopback import *

TXT, ZONE = 16, "shop.example"
NAMED, KNOT, unbound = free_port(), free_port(), free_port()
text = "$TTL 3600\n@ SOA ns.example. host.example. 1 3600 600 86400 3600\n@ NS ns.example.\nwww A 192.0.2.1\n"
folder("named"), folder("knot")
zones = {n: write(n + "/zone", text) for n in ("named", "knot")}


def found(port):
    return lambda: rcode(ask(port, f"www.{ZONE}.", timeout=1)[0]) == NOERROR


def named(primary, options=""):
    """Starts a BIND that forwards the zone to a primary, and returns its port."""
    port = free_port()
    start(*bind9(f"resolver-{port}", port, "recursion yes; dnssec-validation no; " + options, f"zone {ZONE} {{ type forward; forward only; forwarders {{ 127.0.0.1 port {primary}; }}; }};"), ready=found(port))
    return port


start(*bind9("named", NAMED, "recursion no; notify no;", f'zone {ZONE} {{ type primary; file "{zones["named"]}"; allow-update {{ 127.0.0.1; }}; }};'), ready=found(NAMED))
directory = folder("knot")
start("knotd", "-c", write("knot.conf", f"""server:
  rundir: {directory}
  listen: 127.0.0.1@{KNOT}
database:
  storage: {directory}
acl:
  - id: update
    address: 127.0.0.1
    action: update
template:
  - id: default
    storage: {directory}
zone:
  - domain: {ZONE}
    file: {zones["knot"]}
    acl: update
"""), ready=found(KNOT))
start(*forwarding_unbound("unbound", unbound, {ZONE: f"127.0.0.1@{KNOT}"}), ready=found(unbound))


def challenge(primary, resolver, domain):
    """Returns after how many seconds the self-check succeeds, and what the primary and the resolver say in the end."""
    p = subprocess.run(["challenge", f"127.0.0.1:{primary}", f"127.0.0.1:{resolver}", f"{domain}.{ZONE}"], stdout=subprocess.PIPE, text=True, check=True)
    return (p.stdout.strip(), *(RCODES.get(rcode(ask(port, f"_acme-challenge.{domain}.{ZONE}.", TXT)[0])) for port in (primary, resolver)))


def ttl(port):
    """Returns the TTL of the SOA record in the denial of a name's SOA record."""
    r, _ = ask(port, f"_acme-challenge.missing.{ZONE}.", SOA)
    at = question(r)[2]
    while 0 < r[at] < 0xC0:
        at += 1 + r[at]
    at += 2 if r[at] else 1
    return struct.unpack("!L", r[at + 4 : at + 8])[0]


both, mixed, other = challenge(NAMED, named(NAMED), "a"), challenge(KNOT, named(KNOT), "b"), challenge(KNOT, unbound, "c")
negative = [ttl(p) for p in (NAMED, KNOT)]
cured = challenge(KNOT, named(KNOT, "zero-no-soa-ttl-cache yes;"), "d")
conclude("the self-check of a challenge succeeds seconds after the primary has the record, whatever negative TTL the zone has (here an hour), as the record has not been asked for before",
         "cert-manager 1.21.2, with a recursive server; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), Knot DNS 3.2.6 (Debian 3.2.6-1), unbound 1.17.1 (Debian 1.17.1-2+deb12u4)",
         "; ".join(f"{label}: {'not within 40' if seconds == 'never' else 'after ' + seconds} s, with {at_primary} from the primary and {at_resolver} from the resolver in the end" for label, (seconds, at_primary, at_resolver) in
                   (("BIND behind BIND", both), ("Knot DNS behind BIND", mixed), ("Knot DNS behind unbound", other), ("Knot DNS behind BIND with zero-no-soa-ttl-cache", cured)))
         + f". cert-manager itself asks for the name's SOA record first, which BIND as a primary denies with a TTL of {negative[0]}, and Knot DNS with {negative[1]}; BIND as a resolver keeps the NXDOMAIN for all types",
         both[0] != "never" and mixed == ("never", "NOERROR", "NXDOMAIN") and "never" not in (other[0], cured[0]) and negative == [0, 3600])
PYTHON
