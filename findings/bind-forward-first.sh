#!/usr/bin/env bash
# BIND denies a cluster's name for hours after one SERVFAIL of the forwarder, unless the zone has forward only.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libssl3 libuv1 libxml2 libicu72
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

NAME, failing = "db.shop.svc.cluster.local.", False


def root(name, qtype, q, tcp):
    """Answers like the root zone, which has no local."""
    if name == "." or name == "ns.root.":
        return reply(q, ttl=86400, rdata={NS: b"\2ns\4root\0", A: socket.inet_aton("127.0.0.3")}.get(qtype)), 0
    data = b"\2ns\4root\0\1a\4root\0" + struct.pack("!5L", 1, 1800, 900, 604800, 86400)
    r = reply(q, NXDOMAIN)
    return r[:8] + struct.pack("!2H", 1, 0) + r[12:] + b"\0" + struct.pack("!2HLH", SOA, 1, 86400, len(data)) + data, 0


Upstream(root, "127.0.0.3", 53)
Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL if failing else NOERROR), 0), "127.0.0.4", 53)
hints = write("hints", ". 86400 NS ns.root.\nns.root. 86400 A 127.0.0.3\n")


def outage(label, statement):
    """Returns the rcodes for a name while the forwarder fails and 5 s later, and for how long the latter holds."""
    global failing
    port, failing = free_port(), False
    named = start(*bind9(label, port, "dnssec-validation no;",
                         f'zone "." {{ type hint; file "{hints}"; }}; zone "cluster.local" {{ type forward; {statement} forwarders {{ 127.0.0.4; }}; }};'),
                  ready=answers(port, "web.shop.svc.cluster.local."))
    failing = True
    during, _ = ask(port, NAME)
    failing = False
    time.sleep(5)
    after, _ = ask(port, NAME)
    end(named)
    # The TTL of the first record behind the question, whose owner takes one byte if it is the SOA record of the root zone.
    at = question(after)[2] + (1 if rcode(after) == NXDOMAIN else 2)
    return RCODES.get(rcode(during)), RCODES.get(rcode(after)), struct.unpack("!L", after[at + 4 : at + 8])[0]


(during, after, ttl), (cured, then, _) = outage("first", ""), outage("only", "forward only;")
conclude("if the forwarder of cluster.local answers SERVFAIL, clients get SERVFAIL, and the address seconds after the forwarder has recovered, as with unbound",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), a zone of the type forward",
         f"clients get {during}, as BIND asks the root servers then, and {after} 5 s after the forwarder has recovered, with {ttl} s to go; with forward only {cured} and {then}",
         (during, after, cured, then) == ("NXDOMAIN", "NXDOMAIN", "SERVFAIL", "NOERROR") and ttl > 3600)
PYTHON
