#!/usr/bin/env bash
# unbound cannot take a zone from BIND over TLS.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 nsd=4.6.1-1 libcap2 libfstrm0 libjemalloc2 libjson-c5 liblmdb0 libmaxminddb0 libuv1 libxml2 libicu72 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
certificate
python3 - <<'PYTHON'
from loopback import *

work, udp, tls = os.environ["work"], free_port(), free_port()
zone = write("zone", """$ORIGIN shop.example.
$TTL 5
@ SOA ns a 1 2 2 86400 5
@ NS ns
ns A 192.0.2.1
""")
conf = write("named.conf", f"""tls own {{
    cert-file "{work}/cert.pem";
    key-file "{work}/key.pem";
}};
options {{
    directory "{folder("named")}";
    managed-keys-directory "{folder("named")}";
    pid-file none;
    session-keyfile none;
    listen-on port {udp} {{ 127.0.0.1; }};
    listen-on port {tls} tls own {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    recursion no;
}};
controls {{ }};
zone shop.example {{
    type primary;
    file "{zone}";
    allow-transfer {{ 127.0.0.1; }};
}};
""")


def has_zone(port):
    return rcode(ask(port, "ns.shop.example.", timeout=1)[0]) == NOERROR


def unbound(label, port):
    """Starts unbound with the zone from the given port, over TLS."""
    own = free_port()
    start("unbound", "-d", "-p", "-c", write(label + ".conf", f"""server:
    interface: 127.0.0.1@{own}
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder(label)}"
    pidfile: ""
    module-config: "iterator"
    tls-cert-bundle: "{work}/cert.pem"
remote-control:
    control-enable: no
auth-zone:
    name: "shop.example"
    primary: 127.0.0.1@{port}#localhost
    fallback-enabled: no
"""), ready=answers(own, "ns.shop.example."))
    return own


start("named", "-f", "-c", conf, ready=lambda: has_zone(udp))
directory, nsd = folder("nsd"), free_port()
start("nsd", "-d", "-c", write("nsd.conf", f"""server:
    ip-address: 127.0.0.1@{nsd}
    username: ""
    chroot: ""
    database: ""
    zonesdir: "{directory}"
    pidfile: "{directory}/pid"
    xfrdfile: "{directory}/xfrd"
    zonelistfile: "{directory}/zones"
    xfrdir: "{directory}"
    tls-cert-bundle: "{work}/cert.pem"
remote-control:
    control-enable: no
tls-auth:
    name: named
    auth-domain-name: localhost
zone:
    name: shop.example
    zonefile: "zone"
    request-xfr: AXFR 127.0.0.1@{tls} NOKEY named
"""), ready=answers(nsd))
only = unbound("only", tls)
until = time.monotonic() + 60
while not has_zone(nsd) and time.monotonic() < until:
    time.sleep(0.5)
time.sleep(20)
before = has_zone(only)
# A server for the same port over UDP, which knows the zone's SOA record.
soa = b"\2ns\xc0\x0c\1a\xc0\x0c" + struct.pack("!5L", 1, 2, 2, 86400, 5)
probes = []
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(60)
    s.bind(("127.0.0.1", tls))
    while len(probes) < 2:
        q, client = s.recvfrom(4096)
        probes.append(question(q)[:2])
        s.sendto(reply(q, rdata=soa), client)
    time.sleep(5)
after = has_zone(only)


def transfer(*alpn):
    """Asks BIND for the zone over TLS, and returns its rcode."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    p = subprocess.Popen(["openssl", "s_client", "-quiet", *alpn, "-connect", f"127.0.0.1:{tls}"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    p.stdin.write(framed(query("shop.example.", 252)))
    p.stdin.flush()
    r = p.stdout.read(14)
    end(p)
    return RCODES.get(rcode(r[2:]))


plain, dot = transfer(), transfer("-alpn", "dot")
conclude("with `primary: ADDRESS@PORT#NAME`, unbound takes the zone over TLS (RFC 9103), as NSD does",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4), NSD 4.6.1 (Debian 4.6.1-1); BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the primary",
         f"20 s after NSD has the zone ({has_zone(nsd)}), unbound has it: {before}. It asks for the SOA record over UDP, at the port for TLS. "
         f"If that is answered, unbound has the zone: {after}. BIND answers {plain} to a transfer without the ALPN token dot, and {dot} to one with it",
         has_zone(nsd) and not before and not after and set(probes) == {("shop.example.", SOA)} and (plain, dot) == ("SERVFAIL", "NOERROR"))
PYTHON
