#!/usr/bin/env bash
# CoreDNS says that an ExternalName has no address while the forwarder fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind file forward kubernetes
look_ups $'nameserver 127.0.0.1\noptions timeout:8 attempts:1' <<'PYTHON'
from apiserver import APIServer, item
from loopback import *

SERVICE, ALIAS, TARGET = "db.shop.svc.cluster.local.", "db.zone.example.", "db.example.com."
mode = ["well"]
upstream = Upstream(lambda name, qtype, q, tcp: (None if mode[0] == "silence" else reply(q, SERVFAIL if mode[0] == "SERVFAIL" else NOERROR, ttl=5), 0))
api = APIServer(item("Namespace", "shop"), item("Service", "db", "shop", spec={"type": "ExternalName", "externalName": "db.example.com"}))
zone = write("zone", f"""zone.example. 60 IN SOA ns hostmaster 1 60 60 600 60
zone.example. 60 IN NS ns
{ALIAS} 60 IN CNAME {TARGET}
""")
conf = write("Corefile", f""".:53 {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
    file {zone} zone.example
    forward . 127.0.0.1:{upstream.port}
}}
""")


def code(name):
    """Returns the code and the number of records of the reply to an A query."""
    r, _ = ask(53, name, timeout=10)
    return RCODES.get(rcode(r)), r[7] if r else 0


def error(name):
    """Returns the error that a program gets from glibc."""
    try:
        socket.getaddrinfo(name, 5432)
    except socket.gaierror as e:
        return {socket.EAI_NODATA: "not known", socket.EAI_NONAME: "not known", socket.EAI_AGAIN: "temporary"}.get(e.errno, e.strerror)
    return "found"


start("coredns", "-conf", conf, ready=lambda: code(SERVICE) == ("NOERROR", 2))
names, seen = (SERVICE, ALIAS, TARGET), []
for mode[0] in "SERVFAIL", "silence":
    seen.append([(*code(name), error(name)) for name in names])
mode[0] = "well"
until = time.monotonic() + 20
while error(SERVICE) != "found" and time.monotonic() < until:
    time.sleep(0.5)
again = error(SERVICE)
servfail, silence = seen
conclude("while the forwarder of an ExternalName's target answers SERVFAIL or nothing, the Service gets SERVFAIL, and programs a temporary error",
         f"CoreDNS 1.15.0, kubernetes and file with forward; programs with {os.confstr('CS_GNU_LIBC_VERSION')}",
         f"the Service gets {servfail[0][0]} with the alias alone, and a program \"{servfail[0][2]}\"; an alias in a zone file gets {servfail[1][0]}, and a program the error \"{servfail[1][2]}\"; "
         f"the target itself {servfail[2][0]}, \"{servfail[2][2]}\". If the forwarder is silent: \"{silence[0][2]}\", \"{silence[1][2]}\" and \"{silence[2][2]}\". "
         f"When it is back, the Service is {again}",
         all(v[0][:2] == ("NOERROR", 1) and v[0][2] == "not known" and v[1][0] == v[2][0] == "SERVFAIL" and v[1][2] == v[2][2] == "temporary" for v in seen)
         and again == "found")
PYTHON
