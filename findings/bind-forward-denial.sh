#!/usr/bin/env bash
# BIND denies all names of cluster.local, whose forwarder answers, once a client has asked for another name in .local.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-utils=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libuv1 libxml2 libicu72
signed_root
python3 - <<'PYTHON'
from loopback import *

WEB, API = "web.shop.svc.cluster.local.", "api.shop.svc.cluster.local."
cluster, root = Upstream(lambda name, qtype, q, tcp: (reply(q), 0)), free_port()
start(*nsd(root, {".": zone_file(folder("zones") + "/root.signed")}), ready=answers(root))
key = "".join(os.environ["anchor"].split("DNSKEY")[1].split()[3:])


def answered(label, option="", forward=""):
    """Returns the answers for a Service before, and for two after a query for printer.local, and how many queries the forwarder has got for these."""
    port = free_port()
    start(*bind9(label, port, f"""dnssec-validation yes;
    validate-except {{ "cluster.local"; }};
    forwarders {{ 127.0.0.1 port {root}; }};
    forward only;
    {option}""", f"""trust-anchors {{ . static-key 257 3 13 "{key}"; }};
zone "cluster.local" {{
    type forward;
    forwarders {{ 127.0.0.1 port {cluster.port}; }};
    {forward}
}};"""), ready=answers(port, "ready.cluster.local."))
    before, other = (RCODES.get(rcode(ask(port, name)[0])) for name in (WEB, "printer.local."))
    time.sleep(2)
    queries = len(cluster.queries)
    after = {RCODES.get(rcode(ask(port, name)[0])) for name in (WEB, API)}
    return before, other, " or ".join(sorted(map(str, after))), len(cluster.queries) - queries


default = answered("default")
synthesis, only = answered("synthesis", "synth-from-dnssec no;"), answered("only", forward="forward only;")
conclude("with validate-except, cluster.local is forwarded as long as its forwarder answers, whatever the root zone says about local",
         "BIND 9.18.49 (Debian 9.18.49-1~deb12u3), with NSD 4.6.1 as the server for all other names",
         f"a Service gets {default[0]}; after a query for printer.local, {default[1]}, two Services get {default[2]}, and the forwarder {default[3]} queries; "
         f"with synth-from-dnssec no {synthesis[2]}, and with forward only in the zone {only[2]}",
         default == ("NOERROR", "NXDOMAIN", "NXDOMAIN", 0) and all(r[:3] == ("NOERROR", "NXDOMAIN", "NOERROR") for r in (synthesis, only)))
PYTHON
