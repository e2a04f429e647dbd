#!/usr/bin/env bash
# PowerDNS takes the relative target of an HTTPS record in a zone file for an absolute name.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-server=4.7.3-2 pdns-backend-bind=4.7.3-2 libboost-program-options1.74.0 libcurl4 libluajit-5.1-2 libp11-kit0 libsodium23 libsqlite3-0 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libnghttp2-14 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from loopback import *

MX, SVCB, HTTPS = 15, 64, 65
pdns, named, directory = free_port(), free_port(), folder("pdns")
zone = write("zone", """$ORIGIN shop.example.
$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
@ HTTPS 0 web
@ MX 10 web
ns A 192.0.2.53
web A 192.0.2.1
service SVCB 1 web port=8443
target HTTPS 0 web.shop.example.
_http._tcp SRV 1 1 80 web
""")


def target(port, name, qtype, before):
    """Returns the name in a record, which is behind that many bytes of data."""
    r, _ = ask(port, name + "shop.example.", qtype)
    at, labels = question(r)[2] + 12 + before, []
    while r[at]:
        if r[at] >= 0xC0:
            at = struct.unpack("!H", r[at : at + 2])[0] & 0x3FFF
            continue
        labels.append(r[at + 1 : at + 1 + r[at]].decode())
        at += 1 + r[at]
    return ".".join(labels) + "."


def targets(port):
    return [target(port, *record) for record in (("", HTTPS, 2), ("service.", SVCB, 2), ("target.", HTTPS, 2), ("", MX, 2), ("_http._tcp.", SRV, 6))]


write("pdns/named.conf", f'zone "shop.example" {{ type master; file "{zone}"; }};')
write("pdns/pdns.conf", f"""module-dir={os.environ["work"]}/root/usr/lib/x86_64-linux-gnu/pdns
launch=bind
bind-config={directory}/named.conf
local-address=127.0.0.1
local-port={pdns}
socket-dir={directory}
guardian=no
daemon=no
disable-syslog=yes
write-pid=no
security-poll-suffix=
""")
start("pdns_server", "--config-dir=" + directory, ready=lambda: rcode(ask(pdns, "web.shop.example.", timeout=1)[0]) == NOERROR)
start(*bind9("named", named, "recursion no;", f'zone shop.example {{ type primary; file "{zone}"; }};'), ready=lambda: rcode(ask(named, "web.shop.example.", timeout=1)[0]) == NOERROR)
powerdns, bind = targets(pdns), targets(named)
conclude("web in the HTTPS record of a zone file is web.shop.example, as in an MX or SRV record: names without a dot at the end are relative (RFC 1035, 5.1, RFC 9460, 2.1)",
         "PowerDNS Authoritative Server 4.7.3 (Debian 4.7.3-2), bind backend; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) with the same file",
         f"PowerDNS answers HTTPS with {powerdns[0]} and SVCB with {powerdns[1]}, BIND with {bind[0]} and {bind[1]}; with the full name in the file PowerDNS answers HTTPS with {powerdns[2]}, "
         f"and with the short one MX with {powerdns[3]} and SRV with {powerdns[4]}",
         powerdns == ["web.", "web."] + ["web.shop.example."] * 3 and bind == ["web.shop.example."] * 5)
PYTHON
