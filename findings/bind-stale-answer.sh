#!/usr/bin/env bash
# BIND has a stale answer, and sends it only after clients have given up.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
python3 - <<'PYTHON'
from loopback import *

NAMES = [f"n{i}.example." for i in range(5)]
outage = threading.Event()
upstream = Upstream(lambda name, qtype, q, tcp: (None if outage.is_set() else reply(q, ttl=2), 0))


def named(label, extra=""):
    port = free_port()
    start(*bind9(label, port, f"dnssec-validation no; forward only; forwarders port {upstream.port} {{ 127.0.0.1; }}; stale-cache-enable yes; stale-answer-enable yes; {extra}"), ready=answers(port))
    return port


def asked(ports):
    """Asks each server for all names at once. Returns the seconds after which they are answered."""
    seconds, threads = {p: [] for p in ports}, []

    def client(port, name):
        r, passed = ask(port, name, timeout=20)
        if rcode(r) == NOERROR and r[7]:
            seconds[port].append(passed)

    for port in ports:
        for name in NAMES:
            threads.append(threading.Thread(target=client, args=(port, name)))
            threads[-1].start()
    for t in threads:
        t.join()
    return [seconds[p] for p in ports]


default, quick = named("default"), named("quick", "stale-answer-client-timeout 0;")
fresh = asked([default, quick])
time.sleep(5)
outage.set()
first, cured = asked([default, quick])
second, _ = asked([default, quick])
conclude("with stale-cache-enable and stale-answer-enable, a name that was answered a few seconds ago is answered within 5 s when the forwarder is silent",
         "BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3), forward only",
         f"the first query for each of {len(NAMES)} names is answered after {min(first, default=0):.0f} to {max(first, default=0):.0f} s, "
         f"the next one after {max(second, default=0):.1f} s; with stale-answer-client-timeout 0, after {max(cured, default=0):.1f} s",
         all(len(s) == len(NAMES) for s in (*fresh, first, second, cured)) and min(first) > 7 and max(second) < 3 and max(cured) < 3)
PYTHON
