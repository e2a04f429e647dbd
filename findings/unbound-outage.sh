#!/usr/bin/env bash
# After its forwarder was silent for 30 s, unbound fails new names for up to half a minute more.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
python3 - <<'PYTHON'
from loopback import *


def unbound(label, upstream):
    port = free_port()
    start(*forwarding_unbound(label, port, {".": f"127.0.0.1@{upstream.port}"}), ready=answers(port))
    return port


def recovery(outage, took):
    """Stores how long after the return of a forwarder new names fail; at most 60 s."""
    silent = threading.Event()
    upstream = Upstream(lambda name, qtype, q, tcp: (None if silent.is_set() else reply(q), 0))
    port = unbound(f"unbound-{outage}", upstream)
    silent.set()
    until, i = time.monotonic() + outage, 0
    while time.monotonic() < until:  # 10 clients a second
        threading.Thread(target=ask, args=(port, f"outage-{i}.example."), daemon=True).start()
        i += 1
        time.sleep(0.1)
    silent.clear()
    back, i = time.monotonic(), 0
    while rcode(ask(port, f"after-{i}.example.", timeout=2)[0]) != NOERROR and time.monotonic() < back + 60:
        i += 1
        time.sleep(0.1)
    took[outage] = time.monotonic() - back


# How long depends on when the last attempt was, so that one outage does not tell.
outages, took = (5, 20, 25, 30, 35), {}
threads = [threading.Thread(target=recovery, args=(o, took)) for o in outages]
for t in threads:
    t.start()
for t in threads:
    t.join()
conclude("new names are answered within 2 s of a forwarder's return",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4)",
         ", ".join(f"after {o} s without a forwarder names fail for {took[o]:.1f} s more" for o in outages),
         max(took.values()) > 5)
PYTHON
