#!/usr/bin/env bash
# An ExternalName of the cluster's own zone has no answer if another plugin of CoreDNS has the target.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind hosts kubernetes
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *


def external(name, target):
    return item("Service", name, "shop", spec={"type": "ExternalName", "externalName": target})


api = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1"),
                external("inside", "legacy.cluster.local"), external("outside", "legacy.example"))
port = free_port()
conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint {api.url}
        fallthrough
    }}
    hosts {{
        192.0.2.7 legacy.cluster.local legacy.example
        fallthrough
    }}
}}
""")


def records(name):
    r, _ = ask(port, name)
    return RCODES.get(rcode(r)), struct.unpack("!H", r[6:8])[0] if r else 0


start("coredns", "-conf", conf, ready=lambda: records("web.shop.svc.cluster.local.") == ("NOERROR", 1))
target, outside, inside = (records(n) for n in ("legacy.cluster.local.", "outside.shop.svc.cluster.local.", "inside.shop.svc.cluster.local."))
conclude("an ExternalName whose target is legacy.cluster.local is answered with the alias and the address that hosts has",
         "CoreDNS 1.15.0, kubernetes cluster.local with fallthrough, and hosts",
         f"{inside[0]} with {inside[1]} records, not even the alias; the target itself gets {target[0]} with {target[1]}, "
         f"and an ExternalName outside the zone {outside[0]} with {outside[1]}",
         target == ("NOERROR", 1) and outside == ("NOERROR", 2) and inside == ("NOERROR", 0))
PYTHON
