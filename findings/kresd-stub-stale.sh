#!/usr/bin/env bash
# With policy.STUB, Knot Resolver's serve_stale does not help while the server fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian knot-resolver=5.6.0-1+deb12u1 dns-root-data libbpf1 libdnssec9 libelf1 libjemalloc2 libknot13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libuv1 libxdp1 libzscanner4 libgnutls30
python3 - <<'PYTHON'
from loopback import *

state = NOERROR


def handle(name, qtype, q, tcp):
    return None if state is None else reply(q, rcode=state, ttl=2), 0


upstream = Upstream(handle)


def answered(policy, failure):
    """Returns the rcode of a name that was answered before, while the server fails so, and how long that takes."""
    global state
    state, port, name = NOERROR, free_port(), "web.example."
    label = f"{policy}-{RCODES[failure].replace(' ', '-')}"
    p = start("kresd", "-n", "-c", write(label + ".conf", f"""net.listen('127.0.0.1', {port}, {{ kind = 'dns' }})
modules.load('serve_stale < cache')
cache.size = 10 * MB
cache.min_ttl(1)
trust_anchors.remove('.')
policy.add(policy.all(policy.{policy}('127.0.0.1@{upstream.port}')))
"""), folder(label), ready=answers(port))
    if rcode(ask(port, name)[0]) != NOERROR:
        sys.exit(2)
    time.sleep(4)
    state = failure
    r, seconds = ask(port, name, timeout=12)
    end(p)
    return RCODES[rcode(r)], seconds


stub, forward = ([answered(policy, failure) for failure in (SERVFAIL, REFUSED, None)] for policy in ("STUB", "FORWARD"))
conclude("with serve_stale, a name answered seconds ago is answered while its server fails, whichever way",
         "Knot Resolver 5.6.0 (Debian 5.6.0-1+deb12u1), serve_stale, policy.STUB",
         f"with policy.STUB a name whose TTL has passed gets {stub[0][0]} if the server answers SERVFAIL, {stub[1][0]} if it answers REFUSED, and {stub[2][0]} after {stub[2][1]:.1f} s if it is silent; "
         f"with policy.FORWARD {forward[0][0]}, {forward[1][0]}, and {forward[2][0]} after {forward[2][1]:.1f} s",
         [code for code, _ in stub] == ["SERVFAIL", "REFUSED", "NOERROR"] and {code for code, _ in forward} == {"NOERROR"})
PYTHON
