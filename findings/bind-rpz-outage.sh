#!/usr/bin/env bash
# BIND does not answer with the addresses of its own response policy zone while its forwarder fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from loopback import *

outage = False


def handle(name, qtype, q, tcp):
    if not outage:
        return reply(q, rdata=bytes([198, 51, 100, 1]) if qtype == A else None), 0
    return (reply(q, SERVFAIL) if name.startswith("failing") else None), 0


upstream = Upstream(handle)


def own(port, label):
    """Returns whether a name is answered with the zone's address within 5 s."""
    r, _ = ask(port, label + ".shop.example")
    return rcode(r) == NOERROR and bytes([192, 0, 2, 1]) in r


def named(label, extra=""):
    port = free_port()
    zone = write(label + ".zone", "$TTL 60\n@ SOA . . 1 3600 900 86400 60\n@ NS .\n" + "".join(f"{n}.shop.example A 192.0.2.1\n" for n in ("web", "failing", "silent")))
    options = f"dnssec-validation no; forward only; forwarders port {upstream.port} {{ 127.0.0.1; }};"
    start(*bind9(label, port, options + f' response-policy {{ zone "rpz"; }} {extra};', f'zone "rpz" {{ type primary; file "{zone}"; }};'), ready=lambda: own(port, "web"))
    return port


default, cured = named("default"), named("cured", "qname-wait-recurse no")
outage = True
plain, waiting_off = (sum(own(port, label) for label in ("failing", "silent")) for port in (default, cured))
conclude("an address in a response policy zone of BIND's own is answered whatever the forwarder does",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), response-policy",
         f"of two names, for one of which the forwarder answers SERVFAIL and is silent for the other, {plain} get the zone's address within 5 s; "
         f"{waiting_off} with qname-wait-recurse no",
         plain == 0 and waiting_off == 2)
PYTHON
