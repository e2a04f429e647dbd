#!/usr/bin/env bash
# CoreDNS's cache evicts names long before it holds as many as it may.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind cache forward metrics
python3 - <<'PYTHON'
import urllib.request
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=3600), 0))


def misses(capacity, names):
    """Asks for all the names four times, within their TTL. Returns how many are asked of the
    forwarder the fourth time, and how many the cache then holds."""
    port, metrics = free_port(), free_port()
    conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    prometheus 127.0.0.1:{metrics}
    cache 3600 {{
        success {capacity}
    }}
    forward . 127.0.0.1:{upstream.port}
}}
""")
    p = start("coredns", "-conf", conf, ready=answers(port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        s.connect(("127.0.0.1", port))
        for _ in range(4):
            before = len(upstream.queries)
            for i in range(names):
                s.send(query(f"host-{i}.example."))
                s.recv(4096)
    page = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode()
    end(p)
    entries = next(l for l in page.splitlines() if l.startswith("coredns_cache_entries") and 'type="success"' in l)
    return len(upstream.queries) - before, int(float(entries.split()[-1]))


small, small_held = misses(1024, 900)
middle, middle_held = misses(2000, 1800)
large, large_held = misses(9984, 9000)
conclude("a cache of 1024 entries holds 900 names, so that none is asked of the forwarder twice within its TTL",
         "CoreDNS 1.15.0, cache with success CAPACITY",
         f"with a capacity of 1024, {small} of 900 names are asked again each time, and the cache holds {small_held}; "
         f"with 2000, {middle} of 1800 ({middle_held}); with 9984, {large} of 9000 ({large_held})",
         small > 90 and middle > 90 and small_held < 900)
PYTHON
