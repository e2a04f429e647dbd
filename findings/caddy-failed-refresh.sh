#!/usr/bin/env bash
# Caddy drops addresses that it has, and that are to be kept for an hour, when a look-up fails.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
caddy 2.11.9
python3 - <<'PYTHON'
from caddy import *

code, port = [NOERROR], backend("backend")
dns = Upstream(lambda name, qtype, q, tcp: (reply(q, code[0], ttl=3600, rdata=bytes([127, 0, 0, 1])), 0))
proxy = Proxy(dns.port, backend=f"""dynamic a {{
                name web.example
                port {port}
                versions ipv4
                refresh 2s
                resolvers 127.0.0.1:{dns.port}
            }}""")


def requests():
    """Sends five requests after the time for the next look-up has come."""
    time.sleep(2.5)
    return [proxy.get("backend")[0] for _ in range(5)]


first, asked = requests(), len(dns.queries)
code[0] = SERVFAIL
failing = requests()
code[0] = NOERROR
after = requests()
conclude("if a look-up gets SERVFAIL, requests go on to the addresses that are known, whose TTL has not passed",
         "Caddy 2.11.9, reverse_proxy with dynamic a, refresh 2s (1 minute by default)",
         f"{failing.count(503)} of {len(failing)} requests get 503 although the address has been looked up with a TTL of one hour a few seconds before; "
         f"{first.count('backend')} were answered before, {after.count('backend')} afterwards",
         first == after == ["backend"] * 5 and failing == [503] * 5 and asked > 0)
PYTHON
