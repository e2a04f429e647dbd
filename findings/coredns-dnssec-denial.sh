#!/usr/bin/env bash
# A validating unbound denies records of a zone that CoreDNS signs once a client has asked for a type that the name lacks.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-utils=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
coredns 1.15.0 bind dnssec file
python3 - <<'PYTHON'
from loopback import *

MX, TXT, HTTPS, CAA = 15, 16, 65, 257
ASKED = {"www": (AAAA, HTTPS), "mail": (TXT, MX), "cert": (TXT, CAA)}  # for each name a type that it lacks, and one that it has
zone, directory = write("db.example", """$TTL 300
@ SOA ns host 1 3600 600 86400 60
@ NS ns
ns A 192.0.2.1
www A 192.0.2.2
www HTTPS 1 . alpn=h2
mail A 192.0.2.3
mail MX 10 mail
cert A 192.0.2.4
cert CAA 0 issue "ca.example"
"""), folder("keys")
key = subprocess.run(["dnssec-keygen", "-q", "-a", "ECDSAP256SHA256", "-f", "KSK", "example"], cwd=directory, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
with open(f"{directory}/{key}.key") as f:
    public = "".join(f.read().split("DNSKEY")[1].split()[3:])
server = free_port()
start("coredns", "-conf", write("Corefile", f"""example:{server} {{
    bind 127.0.0.1
    dnssec {{
        key file {directory}/{key}
    }}
    file {zone}
}}
"""), ready=answers(server, "www.example."))


def unbound(extra=""):
    port = free_port()
    start("unbound", "-d", "-p", "-c", write(f"unbound-{port}.conf", f"""server:
    interface: 127.0.0.1@{port}
    do-not-query-localhost: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder("unbound")}"
    pidfile: ""
    trust-anchor: "example. DNSKEY 257 3 13 {public}"
    {extra}
remote-control:
    control-enable: no
stub-zone:
    name: "example"
    stub-addr: 127.0.0.1@{server}
"""), ready=answers(port, "ns.example."))
    return port


def named():
    port = free_port()
    start(*bind9("named", port, "dnssec-validation yes;", f"""trust-anchors {{ example. static-key 257 3 13 "{public}"; }};
zone example {{ type forward; forward only; forwarders port {server} {{ 127.0.0.1; }}; }};"""), ready=lambda: rcode(ask(port, "ns.example.")[0]) == NOERROR)
    return port


def found(port):
    """Returns the names that have their second type after the first one has been asked for."""
    names = []
    for name, (lacks, has) in ASKED.items():
        for qtype, expected in (lacks, 0), (has, 1):
            r, _ = ask(port, name + ".example.", qtype)
            if rcode(r) != NOERROR:
                sys.exit(2)
            if expected and struct.unpack("!H", r[6:8])[0]:
                names.append(name)
    return names


default, cured, bind = found(unbound()), found(unbound("aggressive-nsec: no")), found(named())
conclude("a name's HTTPS, MX and CAA records are found whatever other type was asked for before",
         "CoreDNS 1.15.0, dnssec; unbound 1.17.1 (Debian 1.17.1-2+deb12u4) and BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as validating resolvers",
         f"behind unbound, {len(default)} of the {len(ASKED)} names have theirs after a query for a type that they lack, as its NSEC record lists fixed types; "
         f"{len(cured)} with aggressive-nsec: no, and {len(bind)} behind BIND",
         (len(default), len(cured), len(bind)) == (0, 3, 3))
PYTHON
