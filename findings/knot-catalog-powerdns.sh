#!/usr/bin/env bash
# PowerDNS never gets a catalog zone that Knot DNS generates.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot=3.2.6-1 libknot13 libdnssec9 libzscanner4 liburcu8 libbpf1 libxdp1 libcap-ng0 libelf1 libedit2 libgnutls30 libfstrm0 liblmdb0 libprotobuf-c1
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libssl3 libuv1 libxml2 libicu72
debian pdns-server=4.7.3-2 pdns-backend-sqlite3=4.7.3-2 libboost-program-options1.74.0 libcurl4 libluajit-5.1-2 libp11-kit0 libsodium23 libsqlite3-0 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1
python3 - <<'PYTHON'
import glob
import sqlite3
from loopback import *

CATALOG, MEMBER = "catalog.example", "shop.example"
work = os.environ["work"]
zone = write("zone", """$TTL 300
@ SOA ns.example. host.example. 1 3600 600 86400 60
@ NS ns.example.
www A 192.0.2.1
""")


def knot():
    """Starts a Knot DNS that generates the catalog, and returns its port."""
    port, directory = free_port(), folder("knot")
    start("knotd", "-c", write("knot.conf", f"""server:
  rundir: {directory}
  listen: 127.0.0.1@{port}
database:
  storage: {directory}
template:
  - id: default
    storage: {directory}
acl:
  - id: anyone
    address: 127.0.0.1
    action: transfer
zone:
  - domain: {CATALOG}
    catalog-role: generate
    acl: anyone
  - domain: {MEMBER}
    file: {zone}
    catalog-role: member
    catalog-zone: {CATALOG}
    acl: anyone
"""), ready=lambda: found(port))
    return port


def named():
    """Starts a BIND that has the catalog in a file, and returns its port."""
    port = free_port()
    catalog = write("catalog", f"""$TTL 0
@ SOA invalid. invalid. 1 3600 600 86400 0
@ NS invalid.
version TXT "2"
member.zones PTR {MEMBER}.
""")
    start(*bind9("named", port, "recursion no; notify no; allow-transfer { 127.0.0.1; };", f"""zone {CATALOG} {{ type primary; file "{catalog}"; }};
zone {MEMBER} {{ type primary; file "{zone}"; }};"""), ready=lambda: found(port))
    return port


def found(port):
    return rcode(ask(port, f"www.{MEMBER}.", timeout=1)[0]) == NOERROR


def consumer(label, producer):
    """Starts a PowerDNS that takes the catalog from the producer, and returns whether it has the member zone within half a minute."""
    port, directory = free_port(), folder(label)
    with sqlite3.connect(directory + "/db") as db:
        with open(glob.glob(work + "/root/usr/share/**/schema.sqlite3.sql", recursive=True)[0]) as f:
            db.executescript(f.read())
        db.execute("insert into domains (name, master, type) values (?, ?, 'CONSUMER')", (CATALOG, f"127.0.0.1:{producer}"))
    write(label + "/pdns.conf", f"""module-dir={work}/root/usr/lib/x86_64-linux-gnu/pdns
launch=gsqlite3
gsqlite3-database={directory}/db
local-address=127.0.0.1
local-port={port}
socket-dir={directory}
secondary=yes
xfr-cycle-interval=1
zone-cache-refresh-interval=1
guardian=no
daemon=no
disable-syslog=yes
write-pid=no
security-poll-suffix=
""")
    start("pdns_server", "--config-dir=" + directory, ready=answers(port))
    until = time.monotonic() + 30
    while not found(port) and time.monotonic() < until:
        time.sleep(0.5)
    return found(port)


def soa(port, tcp):
    return RCODES.get(rcode(ask(port, CATALOG + ".", SOA, tcp=tcp)[0]))


generated, written = knot(), named()
from_knot, from_named = consumer("from-knot", generated), consumer("from-named", written)
conclude("PowerDNS takes a catalog zone (RFC 9432) and its member zones from Knot DNS, as from BIND",
         "PowerDNS Authoritative Server 4.7.3 (Debian 4.7.3-2); Knot DNS 3.2.6 (Debian 3.2.6-1) and BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as primaries",
         f"it has the member zone from BIND: {from_named}, and from Knot: {from_knot}. PowerDNS asks for the SOA record over UDP, "
         f"which Knot answers with {soa(generated, False)}, and {soa(generated, True)} over TCP; BIND answers {soa(written, False)}",
         from_named and not from_knot and (soa(generated, False), soa(generated, True), soa(written, False)) == ("REFUSED", "NOERROR", "NOERROR"))
PYTHON
