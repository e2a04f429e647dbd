#!/usr/bin/env bash
# BIND fails names with more than 100 addresses, and as a secondary refuses the whole zone.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
coredns 1.15.0 kubernetes transfer
# CoreDNS has an NS record for a secondary if the machine has an address beside 127.0.0.1.
unshare -rn bash -c 'ip link set lo up && ip addr add 192.0.2.53/32 dev lo && exec python3 -' <<'PYTHON'
from apiserver import APIServer, item
from loopback import *


def headless(name, size):
    """Returns a headless Service with as many pods, in slices of 100 as the cluster makes them."""
    yield item("Service", name, "shop", spec={"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]})
    for first in range(0, size, 100):
        s = item("EndpointSlice", f"{name}-{first}", "shop", addressType="IPv4", ports=[], endpoints=[
            {"addresses": [f"10.1.{i // 250}.{1 + i % 250}"], "conditions": {"ready": True}} for i in range(first, min(first + 100, size))])
        s["metadata"]["labels"] = {"kubernetes.io/service-name": name}
        yield s


def cluster(size):
    """Starts CoreDNS for a cluster with the Services few and many, and returns its port."""
    port, api = free_port(), APIServer(item("Namespace", "shop"), *headless("few", 3), *headless("many", size))
    conf = write(f"Corefile-{size}", f""".:{port} {{
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
    transfer {{
        to *
    }}
}}
""")
    start("coredns", "-conf", conf, ready=lambda: addresses(port, "many") == size)
    return port


def addresses(port, name):
    """Returns how many addresses the Service has, or the RCODE."""
    r, _ = ask(port, name + ".shop.svc.cluster.local.", tcp=True)
    return RCODES.get(rcode(r)) if rcode(r) else r and struct.unpack("!H", r[6:8])[0]


def named(label, text, zone=""):
    """Returns how many addresses BIND has for the two Services."""
    port = free_port()
    start(*bind9(label, port, f"dnssec-validation no; {text}", zone), ready=answers(port, "few.shop.svc.cluster.local."))
    until = time.monotonic() + 10
    while zone and addresses(port, "few") != 3 and time.monotonic() < until:
        time.sleep(0.2)
    return addresses(port, "few"), addresses(port, "many")


def forwarder(label, primary, extra=""):
    return named(label, f"forward only; forwarders port {primary} {{ 127.0.0.1; }}; {extra}")


def secondary(label, primary, extra=""):
    return named(label, "recursion no; " + extra, f"zone cluster.local {{ type secondary; primaries port {primary} {{ 127.0.0.1; }}; }};")


hundred, more, cure = cluster(100), cluster(101), "max-records-per-type 0;"
small, large, cured = forwarder("small", hundred), forwarder("large", more), forwarder("cured", more, cure)
small_zone, large_zone, cured_zone = secondary("zone-small", hundred), secondary("zone-large", more), secondary("zone-cured", more, cure)
conclude("a headless Service has as many addresses behind BIND as in the cluster, and one Service does not keep the others from being transferred",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), forwarding to CoreDNS 1.15.0, and as a secondary of its kubernetes zone",
         f"a Service with 100 pods: {small[1]}, with 101: {large[1]} ({cured[1]} with max-records-per-type 0); as a secondary, "
         f"with 100: {small_zone[1]}; with 101: {large_zone[1]}, also for another Service with 3 pods: {large_zone[0]} ({cured_zone[0]} and {cured_zone[1]})",
         (small, large, cured) == ((3, 100), (3, "SERVFAIL"), (3, 101)) and
         (small_zone, large_zone, cured_zone) == ((3, 100), ("SERVFAIL", "SERVFAIL"), (3, 101)))
PYTHON
