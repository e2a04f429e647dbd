#!/usr/bin/env bash
# unbound says that no name of cluster.local exists, once a client has asked for another name in .local.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
debian nsd=4.6.1-1 bind9-utils=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libfstrm0 libjemalloc2 libjson-c5 liblmdb0 libmaxminddb0 libuv1 libxml2 libicu72 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
signed_root
python3 - <<'PYTHON'
from loopback import *

cluster = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=2), 0))
root = free_port()
start(*nsd(root, {".": zone_file(folder("zones") + "/root.signed")}), ready=answers(root))


def answered(server="", forward=""):
    """Returns the answers for a Service before and after a query for printer.local, and the one for that."""
    port = free_port()
    conf = write("unbound.conf", f"""server:
    interface: 127.0.0.1@{port}
    do-not-query-localhost: no
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder("unbound")}"
    pidfile: ""
    trust-anchor: "{os.environ["anchor"]}"
    domain-insecure: "cluster.local"
    {server}
remote-control:
    control-enable: no
stub-zone:
    name: "."
    stub-addr: 127.0.0.1@{root}
forward-zone:
    name: "cluster.local"
    forward-addr: 127.0.0.1@{cluster.port}
    {forward}
""")
    p = start("unbound", "-d", "-p", "-c", conf, ready=answers(port, "ready.cluster.local."))
    results = [RCODES.get(rcode(ask(port, name)[0])) for name in ("web.shop.svc.cluster.local.", "printer.local.", "api.shop.svc.cluster.local.")]
    time.sleep(3)
    results.append(RCODES.get(rcode(ask(port, "web.shop.svc.cluster.local.")[0])))
    end(p)
    return results


default = answered()
no_cache, below, whole = answered(forward="forward-no-cache: yes"), answered("harden-below-nxdomain: no"), answered("qname-minimisation: no")
good = ["NOERROR", "NXDOMAIN", "NOERROR", "NOERROR"]
conclude("a forward zone cluster.local with domain-insecure is forwarded, whatever the root zone says about local.",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4), validating, with a signed root zone",
         f"web.shop.svc.cluster.local gets {default[0]}. After a query for printer.local ({default[1]}), another Service gets {default[2]}, and the first "
         f"{default[3]}. With forward-no-cache {no_cache[2]}, with harden-below-nxdomain: no {below[2]}, with qname-minimisation: no {whole[2]}",
         default == ["NOERROR", "NXDOMAIN", "NXDOMAIN", "NXDOMAIN"] and no_cache == below == whole == good)
PYTHON
