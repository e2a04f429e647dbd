#!/usr/bin/env bash
# SRV names of a cluster do not exist behind strict QNAME minimisation: CoreDNS denies their parents.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libevent-2.1-7 libexpat1 libfstrm0 libgssapi-krb5-2 libhiredis0.14 libicu72 libjemalloc2 libjson-c5 libk5crypto3 libkeyutils1 libkrb5-3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libpython3.11 libssl3 libuv1 libxml2
coredns 1.15.0 bind kubernetes
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

SERVICE = "web.shop.svc.cluster.local."
api, cluster = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1")), free_port()
start("coredns", "-conf", write("Corefile", f""".:{cluster} {{
    bind 127.0.0.1
    kubernetes cluster.local {{
        endpoint {api.url}
    }}
}}
"""), ready=lambda: rcode(ask(cluster, SERVICE)[0]) == NOERROR)


def unbound(port, strict):
    conf = write(f"unbound-{port}.conf", f"""server:
    interface: 127.0.0.1@{port}
    do-not-query-localhost: no
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder(f"unbound-{port}")}"
    pidfile: ""
    module-config: "iterator"
    qname-minimisation-strict: {"yes" if strict else "no"}
remote-control:
    control-enable: no
stub-zone:
    name: cluster.local
    stub-addr: 127.0.0.1@{cluster}
""")
    return "unbound", "-d", "-p", "-c", conf


def named(port, strict):
    directory = folder(f"named-{port}")
    conf = write(f"named-{port}.conf", f"""options {{
    directory "{directory}";
    managed-keys-directory "{directory}";
    pid-file none;
    session-keyfile none;
    port {cluster};
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    dnssec-validation no;
    qname-minimization {"strict" if strict else "relaxed"};
}};
controls {{ }};
zone cluster.local {{
    type static-stub;
    server-addresses {{ 127.0.0.1; }};
}};
""")
    return "named", "-f", "-c", conf


def srv(program, strict):
    """Returns the RCODE of an SRV query by the resolver."""
    port = free_port()
    p = start(*program(port, strict), ready=lambda: rcode(ask(port, SERVICE)[0]) == NOERROR)
    code = RCODES.get(rcode(ask(port, "_http._tcp." + SERVICE, SRV)[0]))
    end(p)
    return code


parent = RCODES.get(rcode(ask(cluster, "_tcp." + SERVICE)[0]))
strict, relaxed = [srv(p, True) for p in (unbound, named)], [srv(p, False) for p in (unbound, named)]
conclude("a resolver with strict QNAME minimisation and a stub zone cluster.local answers SRV queries as CoreDNS does",
         "CoreDNS 1.15.0, unbound 1.17.1 (Debian 1.17.1-2+deb12u4), BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3)",
         f"_http._tcp.{SERVICE} gets {strict[0]} from unbound and {strict[1]} from BIND, as CoreDNS answers {parent} to its parent _tcp.{SERVICE} (RFC 8020); "
         f"{relaxed[0]} and {relaxed[1]} if minimisation is not strict",
         strict == ["NXDOMAIN"] * 2 and relaxed == ["NOERROR"] * 2 and parent == "NXDOMAIN")
PYTHON
