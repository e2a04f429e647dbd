#!/usr/bin/env bash
# Caddy sends half of the requests to a target of SRV records that is meant as a spare.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
caddy 2.11.9
python3 - <<'PYTHON'
from collections import Counter
from caddy import *


def records(name, qtype, q, tcp):
    """Answers SRV queries with both targets, and A queries with 127.0.0.1."""
    if qtype != SRV:
        return reply(q, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0
    targets = b""
    for priority, weight, target in PRIORITIES:
        rdata = struct.pack("!3H", priority, weight, ports[target]) + query(target + ".example.")[12:-4]
        targets += struct.pack("!3HLH", 0xC00C, SRV, 1, 5, len(rdata)) + rdata
    _, _, end = question(q)
    return reply(q)[:6] + struct.pack("!3H", len(PRIORITIES), 0, 0) + q[12:end] + targets, 0


PRIORITIES = (10, 60, "first"), (20, 0, "spare")
ports = {target: backend(target) for _, _, target in PRIORITIES}
dns = Upstream(records)
proxy = Proxy(dns.port, web=f"""dynamic srv {{
                name _http._tcp.web.example
                resolvers 127.0.0.1:{dns.port}
            }}""")
results = Counter(proxy.get("web")[0] for _ in range(100))
conclude("the target with priority 20 gets no request while the one with priority 10 answers (RFC 2782)",
         "Caddy 2.11.9, reverse_proxy with dynamic srv",
         f"of 100 requests, {results['first']} go to the target with priority 10 and weight 60, and {results['spare']} to the one with priority 20 and weight 0",
         results["first"] + results["spare"] == 100 and results["spare"] >= 30)
PYTHON
