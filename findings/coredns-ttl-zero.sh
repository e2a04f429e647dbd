#!/usr/bin/env bash
# CoreDNS caches answers of the TTL 0 for 5 s, and answers with TTL 5.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind cache kubernetes
python3 - <<'PYTHON'
from apiserver import APIServer, item, service
from loopback import *

NAME = "web.shop.svc.cluster.local."


def stale(cache):
    """Returns the TTL of a Service, and how long its old address is answered after it has changed."""
    api, port = APIServer(item("Namespace", "shop"), service("web", "shop", "10.96.1.1")), free_port()
    conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    {cache}
    kubernetes cluster.local {{
        endpoint {api.url}
        ttl 0
    }}
}}
""")

    def answer():
        r, _ = ask(port, NAME)
        return (r[-4:], struct.unpack("!L", r[-10:-6])[0]) if rcode(r) == NOERROR else (None, None)

    p = start("coredns", "-conf", conf, ready=lambda: answer()[0] == bytes([10, 96, 1, 1]))
    time.sleep(6)
    _, ttl = answer()
    api.put(service("web", "shop", "10.96.1.2"))
    changed = time.monotonic()
    while answer()[0] != bytes([10, 96, 1, 2]) and time.monotonic() < changed + 30:
        time.sleep(0.05)
    end(p)
    return ttl, time.monotonic() - changed


(with_ttl, with_cache), (_, zero), (no_ttl, without) = stale("cache 30"), stale("cache 30 {\n success 9984 30 0\n }"), stale("")
conclude("with ttl 0 in kubernetes, no answer is cached, as its documentation says",
         "CoreDNS 1.15.0, kubernetes with ttl 0, and cache 30",
         f"a Service is answered with TTL {with_ttl}, and with its old address for {with_cache:.1f} s after it has changed; "
         f"without cache with TTL {no_ttl} and for {without:.1f} s; with a lowest TTL of 0 in cache (success 9984 30 0) for {zero:.1f} s",
         with_ttl == 5 and with_cache > 3 and no_ttl == 0 and without < 1.5 and zero < 1.5)
PYTHON
