#!/usr/bin/env bash
# CoreDNS gives a name that only has names below it the address of the zone's wildcard.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libssl3 libprotobuf-c1 libfstrm0
coredns 1.15.0 bind file
python3 - <<'PYTHON'
from loopback import *

zone = write("db.example", """$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
ns A 192.0.2.1
* A 192.0.2.99
primary.db A 192.0.2.2
_http._tcp.web SRV 0 0 80 ns
""")


def coredns(port):
    return "coredns", "-conf", write("Corefile", f".:{port} {{\n bind 127.0.0.1\n file {zone} example\n}}\n")


def addresses(program):
    """Returns how many addresses names have: two with only names below them, one that does not exist, and one below those two."""
    port = free_port()
    p = start(*program(port), ready=answers(port, "ns.example."))
    replies = [ask(port, name + ".example.")[0] for name in ("db", "web", "other", "primary.db")]
    end(p)
    return [struct.unpack("!H", r[6:8])[0] if r else None for r in replies]


seen, other = addresses(coredns), addresses(lambda port: nsd(port, {"example": zone_file(zone)}))
conclude("a wildcard is not for names that have names below them: they have no address (RFC 4592, section 2.2.2)",
         "CoreDNS 1.15.0, file; NSD 4.6.1 (Debian 4.6.1-1) for comparison",
         f"addresses of db (above primary.db) {seen[0]}, of web (above _http._tcp.web) {seen[1]}, of a name that the wildcard is for {seen[2]}, "
         f"of primary.db {seen[3]}; from NSD {other}",
         seen == [1, 1, 1, 1] and other == [0, 0, 1, 1])
PYTHON
