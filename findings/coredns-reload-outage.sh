#!/usr/bin/env bash
# CoreDNS forgets the cluster when its Corefile changes while the API server is away.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind errors kubernetes reload
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

NAME = "web.shop.svc.cluster.local."
api, port = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1")), free_port()


def corefile(extra):
    return write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    reload 2s 1s
    {extra}
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
}}
""")


def name():
    return rcode(ask(port, NAME)[0])


start("coredns", "-conf", corefile(""), ready=lambda: name() == NOERROR)
api.silent.set()
outage = []
for _ in range(10):
    outage.append(name())
    time.sleep(1)
corefile("errors")
until = time.monotonic() + 40
while name() == NOERROR and time.monotonic() < until:
    time.sleep(0.2)
changed = [name() for _ in range(10)]
conclude("CoreDNS goes on answering what it knows of the cluster when its Corefile changes while the API server does not answer",
         "CoreDNS 1.15.0, kubernetes and reload",
         f"in the outage {outage.count(NOERROR)} of 10 queries for a Service are answered; after a change of the Corefile "
         f"{changed.count(NOERROR)} of 10, and {changed.count(SERVFAIL)} get SERVFAIL",
         outage.count(NOERROR) == 10 and changed.count(SERVFAIL) == 10)
PYTHON
