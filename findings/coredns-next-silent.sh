#!/usr/bin/env bash
# CoreDNS's "next SERVFAIL" asks the next forwarder if the first answers SERVFAIL, but not if it is down.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind forward
python3 - <<'PYTHON'
from loopback import *

mode = ["well"]
first = Upstream(lambda name, qtype, q, tcp: (None if mode[0] == "silent" else reply(q, SERVFAIL if mode[0] == "SERVFAIL" else NOERROR), 0))
second, closed = Upstream(lambda name, qtype, q, tcp: (reply(q), 0)), free_port()


def next_forwarder(port):
    """A forwarder for example, and one for all names that is asked next."""
    return f"""forward example 127.0.0.1:{port} {{
        next SERVFAIL
    }}
    forward . 127.0.0.1:{second.port}"""


def failover(port):
    return f"""forward . 127.0.0.1:{port} 127.0.0.1:{second.port} {{
        policy sequential
        failover SERVFAIL
    }}"""


def run(forward, how):
    """Returns what ten names are answered with, and how many queries the second forwarder gets, if the first is as said."""
    port, mode[0] = free_port(), how
    p = start("coredns", "-conf", write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    {forward(closed if how == "closed" else first.port)}
}}
"""), ready=answers(port, "ready.test." if forward == next_forwarder else "ready.example."))
    before = len(second.queries)
    codes = [rcode(ask(port, f"name-{i}.example.", timeout=10)[0]) for i in range(10)]
    end(p)
    return codes.count(NOERROR), codes.count(SERVFAIL), len(second.queries) - before


hows = "SERVFAIL", "silent", "closed"
n, f = {how: run(next_forwarder, how) for how in hows}, {how: run(failover, how) for how in hows}
conclude("with `next SERVFAIL`, a name is asked of the next forwarder if the first one is down, as the client would get SERVFAIL",
         "CoreDNS 1.15.0, forward",
         f"if the first one answers SERVFAIL, {n['SERVFAIL'][0]} of 10 names are answered by the next; if it is silent, {n['silent'][0]}, and if its port is closed, {n['closed'][0]}: "
         f"the others get SERVFAIL, after {n['silent'][2]} and {n['closed'][2]} queries to the next one. "
         f"With both in one forward, sequential and with failover, {f['SERVFAIL'][0]}, {f['silent'][0]} and {f['closed'][0]} are answered",
         n["SERVFAIL"][0] == 10 and n["silent"] == n["closed"] == (0, 10, 0) and all(v[0] == 10 for v in f.values()))
PYTHON
