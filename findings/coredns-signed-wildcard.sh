#!/usr/bin/env bash
# Validators refuse what CoreDNS says of some names of a signed zone.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libssl3 libprotobuf-c1 libfstrm0
debian bind9-utils=1:9.18.49-1~deb12u3 bind9-dnsutils=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
coredns 1.15.0 bind file
python3 - <<'PYTHON'
from loopback import *

NAMES = {"www": "a name", "nope": "a missing name", "q.wild": "a name of a wildcard's address", "q.apps": "a name of a wildcard's alias",
         "x.b": "a missing name below one without records"}
zone, directory = write("db.example", """$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
ns A 192.0.2.1
www A 192.0.2.2
*.wild A 192.0.2.3
*.apps CNAME www
a.b A 192.0.2.4
"""), folder("keys")


def run(*args):
    return subprocess.run(args, cwd=directory, capture_output=True, text=True, check=True).stdout


key = run("dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "-f", "KSK", "example").strip()
run("dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "example")
run("dnssec-signzone", "-q", "-S", "-o", "example", "-f", zone + ".signed", zone)
with open(f"{directory}/{key}.key") as f:
    anchor = write("anchor", 'trust-anchors { example. static-key 257 3 13 "%s"; };' % "".join(f.read().split("DNSKEY")[1].split()[3:]))


def coredns(port):
    return "coredns", "-conf", write("Corefile", f"example:{port} {{\n bind 127.0.0.1\n file {zone}.signed\n}}\n")


def refused(program):
    """Returns the kinds of names whose A records or their denial delv does not validate."""
    port, kinds = free_port(), []
    p = start(*program(port), ready=answers(port, "www.example."))
    for name, kind in NAMES.items():
        r = subprocess.run(["delv", "-a", anchor, "+root=example", "@127.0.0.1", "-p", str(port), name + ".example", "A"],
                           capture_output=True, text=True)
        if not any(text in r.stdout + r.stderr for text in ("; fully validated", "; negative response, fully validated", "ncache nx")):
            kinds.append(kind)
    end(p)
    return kinds


wrong, right = refused(coredns), refused(lambda port: nsd(port, {"example": zone_file(f"{zone}.signed")}))
conclude("a zone that dnssec-signzone has signed validates, whichever server has the file",
         "CoreDNS 1.15.0, file; BIND's delv 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the validator, NSD 4.6.1 (Debian 4.6.1-1) for comparison",
         f"behind CoreDNS, delv refuses {' and '.join(wrong)}; behind NSD it refuses {', '.join(right) or 'none'} of the {len(NAMES)} names",
         not right and wrong == ["a name of a wildcard's alias", "a missing name below one without records"])
PYTHON
