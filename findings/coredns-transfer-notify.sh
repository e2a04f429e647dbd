#!/usr/bin/env bash
# A secondary of CoreDNS's kubernetes zone learns of new Services two hours later.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind file kubernetes reload transfer
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

api, port, notified = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1")), free_port(), []


def secondary(name, qtype, q, tcp):
    if q[2] >> 3 & 15 == 4:  # NOTIFY
        notified.append(name)
    return reply(q), 0


def zone(serial):
    return write("zone", f"""$ORIGIN file.example.
$TTL 5
@ SOA ns a {serial} 7200 1800 86400 5
@ NS ns
ns A 192.0.2.1
""")


upstream = Upstream(secondary)
conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
    file {zone(1)} file.example {{
        reload 1s
    }}
    transfer {{
        to 127.0.0.1:{upstream.port}
    }}
}}
""")


def name(label):
    return rcode(ask(port, label + ".shop.svc.cluster.local.")[0])


def soa():
    """Returns the serial and the refresh of the cluster's zone."""
    r, _ = ask(port, "cluster.local.", SOA)
    return struct.unpack("!2L", r[-20:-12])


start("coredns", "-conf", conf, ready=lambda: name("web") == NOERROR)
time.sleep(3)
notified.clear()
before, _ = soa()
api.put(service("new", "shop", "10.96.1.2"))
zone(2)
until = time.monotonic() + 30
while "file.example." not in notified and time.monotonic() < until:
    time.sleep(0.2)
time.sleep(10)
after, refresh = soa()
conclude("with transfer, a change of the cluster is notified to the secondaries like a change of a file's zone",
         "CoreDNS 1.15.0, kubernetes, file and transfer",
         f"after a new Service (answer: {RCODES.get(name('new'))}, new serial: {after > before}) {notified.count('cluster.local.')} NOTIFY; after a change of "
         f"the file {notified.count('file.example.')}. A secondary asks again after the refresh of the SOA record, {refresh} s",
         name("new") == NOERROR and after > before and not notified.count("cluster.local.") and notified.count("file.example.") > 0 and refresh == 7200)
PYTHON
