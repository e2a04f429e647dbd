#!/usr/bin/env bash
# PowerDNS answers an ALIAS without an address if its target has too many addresses for UDP.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-server=4.7.3-2 pdns-backend-bind=4.7.3-2 libboost-program-options1.74.0 libcurl4 libluajit-5.1-2 libp11-kit0 libsodium23 libsqlite3-0 libssl3 libnghttp2-14 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

tcp_queries, COUNTS = [], (3, 25, 30, 100)


def cluster(name, qtype, q, tcp):
    """Answers for headless Services: web-30.… has 30 addresses. The reply has TC if they do not fit."""
    if tcp:
        tcp_queries.append(name)
    if not name.startswith("web-"):
        return reply(q, NXDOMAIN), 0
    if qtype != A:
        return reply(q), 0
    at, count, size = question(q)[2], int(name.split(".")[0][4:]), 512
    if q[11] and q[at : at + 3] == b"\0\0\x29":  # EDNS
        size = struct.unpack("!H", q[at + 3 : at + 5])[0]
    message = q[:2] + struct.pack("!5H", 0x8580, 1, count, 0, 0) + q[12:at] + b"".join(
        struct.pack("!3HLH4B", 0xC00C, A, 1, 5, 4, 10, 1, 0, i + 1) for i in range(count))
    return (message if tcp or len(message) <= size else reply(q, tc=True)), 0


server = Upstream(cluster)
directory, port = folder("pdns"), free_port()
zone = write("pdns/zone", """$ORIGIN shop.example.
$TTL 5
@ SOA ns a 1 2 2 86400 5
@ NS ns
ns A 192.0.2.200
""" + "".join(f"web-{n} ALIAS web-{n}.shop.svc.cluster.local.\n" for n in COUNTS))
named = write("pdns/named.conf", f'zone "shop.example" {{ type master; file "{zone}"; }};\n')
write("pdns/pdns.conf", f"""module-dir={os.environ["work"]}/root/usr/lib/x86_64-linux-gnu/pdns
launch=bind
bind-config={named}
local-address=127.0.0.1
local-port={port}
socket-dir={directory}
resolver=127.0.0.1:{server.port}
expand-alias=yes
guardian=no
daemon=no
disable-syslog=yes
write-pid=no
security-poll-suffix=
""")
start("pdns_server", "--config-dir=" + directory, ready=answers(port, "ns.shop.example."))


def addresses(at, name, tcp=False):
    """Returns how many addresses a reply has, and TC if it is truncated, or the RCODE."""
    r, _ = ask(at, name, tcp=tcp)
    return RCODES.get(rcode(r)) if rcode(r) != NOERROR else "TC" if r[2] & 2 else struct.unpack("!H", r[6:8])[0]


alias = {n: [addresses(port, f"web-{n}.shop.example.", tcp) for tcp in (False, True)] for n in COUNTS}
asked_over_tcp = len(tcp_queries)
target = {n: addresses(server.port, f"web-{n}.shop.svc.cluster.local.", True) for n in COUNTS}
conclude("an ALIAS to a headless Service with 30 addresses is answered with 30 addresses, at least over TCP",
         "PowerDNS Authoritative Server 4.7.3 (Debian 4.7.3-2), expand-alias",
         "; ".join(f"{target[n]} addresses of the target: {alias[n][0]} over UDP, {alias[n][1]} over TCP" for n in COUNTS) +
         f"; the target was asked for over TCP {asked_over_tcp} times",
         target == {n: n for n in COUNTS} and alias == {3: [3, 3], 25: [25, 25], 30: [0, 0], 100: [0, 0]} and asked_over_tcp == 0)
PYTHON
