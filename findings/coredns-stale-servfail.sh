#!/usr/bin/env bash
# CoreDNS repeats a failure that is long over, as serve_stale holds for failures too.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind cache forward
python3 - <<'PYTHON'
from loopback import *

code = [SERVFAIL]
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, NOERROR if name == "ready.example." else code[0], ttl=60), 0))
NAMES = [f"n{i}.example." for i in range(10)]


def server(label, options):
    port = free_port()
    conf = write(label, f""".:{port} {{
    bind 127.0.0.1
    forward . 127.0.0.1:{upstream.port}
    cache 30 {{
        {options}
    }}
}}
""")
    start("coredns", "-conf", conf, ready=answers(port))
    return port


ports = [server("stale", "serve_stale 1h"), server("without", "servfail 5s"), server("cured", "serve_stale 1h\n        servfail 0s")]


def failures():
    """Returns how many names get SERVFAIL from each server."""
    return [sum(rcode(ask(port, name)[0]) == SERVFAIL for name in NAMES) for port in ports]


before = failures()
code[0] = NOERROR
time.sleep(30)
first, second = failures(), failures()
conclude("a name that gets SERVFAIL once is answered again after 5 s, for which failures are kept, with serve_stale as well",
         "CoreDNS 1.15.0, cache with serve_stale 1h",
         f"{before[0]} of {len(NAMES)} names fail once; half a minute after the upstream's return, {first[0]} of them get SERVFAIL from the cache, "
         f"and {second[0]} when they are asked again; without serve_stale {first[1]}, and with servfail 0s {first[2]}",
         before == [10, 10, 10] and first == [10, 0, 0] and second[0] < 10)
PYTHON
