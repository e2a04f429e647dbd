#!/usr/bin/env bash
# CoreDNS transfers a zone of the cluster without NS records if it is told which address to listen on.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
coredns 1.15.0 bind kubernetes transfer
unshare -rn bash -c 'ip link set lo up && ip addr add 192.0.2.53/32 dev lo && exec python3 -' <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

POD, NAME = "192.0.2.53", "kube-dns.kube-system.svc.cluster.local."
endpoints = item("EndpointSlice", "kube-dns-1", "kube-system", addressType="IPv4", ports=[{"name": "dns", "port": 53, "protocol": "UDP"}],
                 endpoints=[{"addresses": [POD], "conditions": {"ready": True}}])
endpoints["metadata"]["labels"] = {"kubernetes.io/service-name": "kube-dns"}
api = APIServer(item("Namespace", "kube-system"), service("kube-dns", "kube-system", "10.96.0.10"), endpoints)


def zone(label, bind):
    """Returns how many NS records CoreDNS has, and how a secondary answers the name of its Service."""
    port, second, directory = free_port(), free_port(), folder(label)
    start("coredns", "-conf", write(label + ".core", f""".:{port} {{
    {bind}
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
    transfer {{
        to *
    }}
}}
"""), ready=lambda: rcode(ask(port, NAME, address=POD)[0]) == NOERROR)
    start("named", "-f", "-c", write(label + ".conf", f"""options {{
    directory "{directory}";
    managed-keys-directory "{directory}";
    pid-file none;
    session-keyfile none;
    listen-on port {second} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    recursion no;
}};
controls {{ }};
zone cluster.local {{ type secondary; primaries port {port} {{ {POD}; }}; }};
"""), ready=answers(second))
    until = time.monotonic() + 10
    while (code := rcode(ask(second, NAME)[0])) != NOERROR and time.monotonic() < until:
        time.sleep(0.2)
    r, _ = ask(port, "cluster.local.", NS, address=POD)
    return struct.unpack("!H", r[6:8])[0], RCODES.get(code)


plain, address, interface = zone("plain", ""), zone("address", f"bind {POD}"), zone("interface", "bind lo")
conclude("the zone that CoreDNS has for the cluster has an NS record, its own Service, and can be transferred",
         "CoreDNS 1.15.0, kubernetes and transfer; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as secondary",
         f"{plain[0]} NS record, and the secondary answers {plain[1]}; with `bind {POD}` {address[0]} and {address[1]}, "
         f"as BIND refuses a zone without NS records; with `bind lo` {interface[0]} and {interface[1]}",
         plain == (1, "NOERROR") and address == interface == (0, "SERVFAIL"))
PYTHON
