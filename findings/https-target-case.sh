#!/usr/bin/env bash
# CoreDNS and NSD change an HTTPS record whose target has capitals, so that its signature and the zone's digest no longer match.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libssl3 libprotobuf-c1 libfstrm0
debian knot=3.2.6-1 libknot13 libdnssec9 libzscanner4 liburcu8 libbpf1 libxdp1 libcap-ng0 libelf1 libedit2 libgnutls30 liblmdb0
debian bind9=1:9.18.49-1~deb12u3 bind9-utils=1:9.18.49-1~deb12u3 bind9-dnsutils=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libuv1 libxml2 libicu72
coredns 1.15.0 bind file transfer
python3 - <<'PYTHON'
from loopback import *

directory = folder("keys")
zone = write("db.example", """$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
ns A 192.0.2.1
srv SRV 0 0 443 Shop-Prod.example.net.
small HTTPS 1 shop-prod.example.net. alpn=h2
capital HTTPS 1 Shop-Prod.example.net. alpn=h2
""")


def run(*args):
    return subprocess.run(args, cwd=directory, capture_output=True, text=True, check=True).stdout


def knot(label, text):
    """Starts a Knot DNS with the zone's options in text, and returns its port."""
    port, storage = free_port(), folder(label)
    start("knotd", "-c", write(label + ".conf", f"""server:
  rundir: {storage}
  listen: 127.0.0.1@{port}
database:
  storage: {storage}
template:
  - id: default
    storage: {storage}
acl:
  - id: anyone
    address: 127.0.0.1
    action: transfer
{text}
"""), ready=answers(port))
    return port


# Knot adds the digest of the zone (ZONEMD, RFC 8976), and dnssec-signzone signs it.
knot("digest", f"""zone:
  - domain: example
    file: {zone}
    acl: anyone
    zonemd-generate: zonemd-sha384
    zonefile-sync: 0
""")
until = time.monotonic() + 20
while "ZONEMD" not in open(zone).read() and time.monotonic() < until:
    time.sleep(0.2)
with open(zone) as f:
    digested = write("db.digested", f.read())
key = run("dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "-f", "KSK", "example").strip()
run("dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "example")
signed = digested + ".signed"
run("dnssec-signzone", "-q", "-S", "-o", "example", "-f", signed, digested)
with open(f"{directory}/{key}.key") as f:
    anchor = write("anchor", 'trust-anchors { example. static-key 257 3 13 "%s"; };' % "".join(f.read().split("DNSKEY")[1].split()[3:]))


def coredns(port, file):
    return "coredns", "-conf", write("Corefile", f"example:{port} {{\n bind 127.0.0.1\n file {file}\n transfer {{\n to *\n }}\n}}\n")


def nsd_primary(port, file):
    command = nsd(port, {"example": zone_file(file)})
    with open(command[-1], "a") as f:
        f.write("    provide-xfr: 127.0.0.1 NOKEY\n")
    return command


def named(port, file):
    return bind9("named", port, "recursion no; notify no; allow-transfer { 127.0.0.1; };", f'zone example {{ type primary; file "{file}"; }};')


def behind(program):
    """Returns the names whose records validate, and whether a secondary accepts the zone's digest, if the program is the primary."""
    port = free_port()
    p = start(*program(port, signed), ready=answers(port))
    valid = [name for name, qtype in (("srv", "SRV"), ("small", "HTTPS"), ("capital", "HTTPS"))
             if "; fully validated" in subprocess.run(["delv", "-a", anchor, "+root=example", "@127.0.0.1", "-p", str(port), f"{name}.example", qtype],
                                                      capture_output=True, text=True).stdout]
    end(p)
    port = free_port()
    p = start(*program(port, digested), ready=answers(port))
    secondary = knot("secondary-" + program.__name__, f"""remote:
  - id: primary
    address: 127.0.0.1@{port}
zone:
  - domain: example
    master: primary
    zonemd-verify: on
""")
    time.sleep(3)
    accepted = rcode(ask(secondary, "ns.example.")[0]) == NOERROR
    end(p)
    return valid, accepted


results = {name: behind(program) for name, program in (("CoreDNS", coredns), ("NSD", nsd_primary), ("BIND", named))}
conclude("a signed HTTPS record validates, and a zone with a digest (RFC 8976) is accepted by a secondary that verifies it, whatever capitals the record's target has",
         "CoreDNS 1.15.0, file; NSD 4.6.1 (Debian 4.6.1-1), BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) for comparison; delv and Knot DNS 3.2.6 (Debian 3.2.6-1) as validators",
         "; ".join(f"behind {name}, {' and '.join(valid)} validate, and the digest is {'accepted' if accepted else 'refused'}" for name, (valid, accepted) in results.items()),
         results == {"CoreDNS": (["srv", "small"], False), "NSD": (["srv", "small"], False), "BIND": (["srv", "small", "capital"], True)})
PYTHON
