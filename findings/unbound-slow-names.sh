#!/usr/bin/env bash
# unbound's retransmit timer follows the quick names of a server, and gives up the slow ones.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
python3 - <<'PYTHON'
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=0), 0.3 if name.startswith("slow") else 0))


def slow(label, *extra):
    """Returns how 20 slow names among 400 quick ones are answered: seconds, sorted, and failures."""
    port = free_port()
    p = start(*forwarding_unbound(label, port, {".": f"127.0.0.1@{upstream.port}"}, *extra), ready=answers(port))
    took, failed = [], 0
    for i in range(20):
        for k in range(20):
            ask(port, f"quick-{i}-{k}.example.")
        r, seconds = ask(port, f"slow-{i}.example.", timeout=5)
        took.append(seconds)
        failed += rcode(r) != NOERROR
    end(p)
    return sorted(took), failed


(default, failed), (longer, failed_longer) = slow("default"), slow("longer", "infra-cache-min-rtt: 1000")
conclude("a name that its upstream answers after 300 ms is answered after 300 ms, also if other names take 1 ms",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4)",
         f"20 slow names take {default[10]:.2f} s (median) and {default[-1]:.2f} s (longest), {failed} fail; "
         f"with infra-cache-min-rtt: 1000 {longer[10]:.2f} s, {failed_longer} fail",
         default[10] > 0.6 and longer[10] < 0.4)
PYTHON
