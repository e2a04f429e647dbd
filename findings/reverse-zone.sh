#!/usr/bin/env bash
# A forwarded reverse zone of Service addresses is not forwarded by unbound and BIND.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libfstrm0 libjemalloc2 libjson-c5 liblmdb0 libmaxminddb0 libuv1 libxml2 libicu72 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

target = b"\7service\7cluster\5local\0"
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, rdata=target if qtype == PTR else None), 0))


def unbound(extra):
    port = free_port()
    conf = write("unbound.conf", f"""server:
    interface: 127.0.0.1@{port}
    outgoing-interface: 127.0.0.1
    do-ip6: no
    do-not-query-localhost: no
    do-daemonize: no
    use-syslog: no
    username: ""
    chroot: ""
    directory: "{folder('unbound')}"
    pidfile: ""
    module-config: "iterator"
    {extra}
remote-control:
    control-enable: no
forward-zone:
    name: "cluster.local"
    forward-addr: 127.0.0.1@{upstream.port}
forward-zone:
    name: "10.in-addr.arpa"
    forward-addr: 127.0.0.1@{upstream.port}
""")
    start("unbound", "-d", "-p", "-c", conf, ready=answers(port, "ready.cluster.local."))
    return RCODES.get(rcode(ask(port, "1.0.96.10.in-addr.arpa.", PTR)[0]))


def bind(extra):
    port, directory = free_port(), folder("named")
    conf = write("named.conf", f"""options {{
    directory "{directory}"; managed-keys-directory "{directory}"; pid-file none; session-keyfile none;
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
    query-source address 127.0.0.1; dnssec-validation no; recursion yes;
}};
controls {{ }};
zone "cluster.local" {{ type forward; {extra} forwarders {{ 127.0.0.1 port {upstream.port}; }}; }};
zone "10.in-addr.arpa" {{ type forward; {extra} forwarders {{ 127.0.0.1 port {upstream.port}; }}; }};
""")
    start("named", "-4", "-g", "-n", "1", "-c", conf, ready=answers(port, "ready.cluster.local."))
    return RCODES.get(rcode(ask(port, "1.0.96.10.in-addr.arpa.", PTR)[0]))


results = unbound(""), unbound("local-zone: 10.in-addr.arpa nodefault"), bind(""), bind("forward only;")
conclude("a forward zone 10.in-addr.arpa forwards PTR queries of Service addresses, as the one of cluster.local does",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4), BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3)",
         "unbound: {}, with local-zone nodefault {}; BIND: {}, with forward only {}".format(*results),
         results == ("NXDOMAIN", "NOERROR", "NXDOMAIN", "NOERROR"))
PYTHON
