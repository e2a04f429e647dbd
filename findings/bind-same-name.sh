#!/usr/bin/env bash
# BIND answers ten clients that wait for the same name, and drops the queries of the others.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from collections import Counter
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=30), 1 if "service" in name else 0))


def named(label, extra):
    port = free_port()
    start(*bind9(label, port, f"dnssec-validation no; forward only; forwarders port {upstream.port} {{ 127.0.0.1; }}; {extra}"), ready=answers(port))
    return port


def answered(port, names):
    """Returns how many of 100 clients that ask for one of the names get an answer within 4 s."""
    results, threads = Counter(), []

    def client(name):
        results[rcode(ask(port, name, timeout=4)[0])] += 1

    for i in range(100):
        threads.append(threading.Thread(target=client, args=(names[i % len(names)],)))
        threads[-1].start()
    for t in threads:
        t.join()
    return results[NOERROR]


default, without = named("default", ""), named("without", "clients-per-query 0;")
same, different = answered(default, ["service.example."]), answered(default, [f"service-{i}.example." for i in range(100)])
unlimited = answered(without, ["service.example."])
conclude("clients that ask for the same name while it is being resolved share one answer",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), forward only",
         f"of 100 clients that ask for one name, which takes its server 1 s, {same} are answered within 4 s; "
         f"of 100 that ask for different names {different}; with clients-per-query 0, {unlimited}",
         same < 30 and different > 90 and unlimited > 90)
PYTHON
