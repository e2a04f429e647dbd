#!/usr/bin/env bash
# unbound does not follow an alias out of an auth-zone or of local-data.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libnghttp2-14 libprotobuf-c1 libpython3.11 libssl3
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
from loopback import *

zone = write("zone", """$ORIGIN internal.example.
$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
ns A 192.0.2.53
db CNAME db.shop.svc.cluster.local.
near CNAME ns
""")
dns = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))


def libc(name):
    try:
        return socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return error.strerror


def found(options):
    """Returns what glibc finds for aliases in a zone and in local-data, and the rcode and the number of records of the former."""
    conf = forwarding_unbound("unbound", 53, {".": f"127.0.0.1@{dns.port}"}, 'local-data: "cache.internal.test. CNAME cache.shop.svc.cluster.local."')[-1]
    with open(conf, "a") as f:
        f.write(f'auth-zone:\n    name: internal.example\n    zonefile: "{zone}"\n    {options}\n')
    unbound = start("unbound", "-d", "-c", conf, ready=answers(53, "ns.internal.example."))
    if libc("db.shop.svc.cluster.local") != "192.0.2.1" or libc("near.internal.example") != "192.0.2.53":
        sys.exit(2)
    r, _ = ask(53, "db.internal.example.")
    seen = libc("db.internal.example"), libc("cache.internal.test"), RCODES.get(rcode(r)), struct.unpack("!H", r[6:8])[0]
    end(unbound)
    return seen


(plain, local, code, count), (cured, *_) = found(""), found("for-downstream: no\n    for-upstream: yes\nstub-zone:\n    name: internal.example\n    stub-addr: 127.0.0.1@1")
conclude("an alias in a zone that unbound has is followed to a name that it forwards, as clients ask it for recursion (RFC 1034, 4.3.2)",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4), auth-zone and local-data; glibc",
         f"db.internal.example, an alias of db.shop.svc.cluster.local, is answered with {code} and {count} record, and for glibc it has: {plain}; an alias in local-data: {local}; with for-downstream: no, and a stub-zone of its name so that it is not forwarded: {cured}",
         plain == local == "Name or service not known" and (code, count) == ("NOERROR", 1) and cured == "192.0.2.1")
PYTHON
