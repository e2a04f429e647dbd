#!/usr/bin/env bash
# HAProxy takes its servers out after half a minute without DNS.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian haproxy=2.6.12-1+deb12u4 liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0 libssl3
python3 - <<'PYTHON'
import urllib.error
import urllib.request
from loopback import *

service = backend()
HOLD = "hold timeout 1h\n    hold other 1h\n    hold refused 1h"
outage = threading.Event()
seen = {}


def outlast(label, answer, extra=""):
    """Notes how a request fails in an outage, and after how many seconds, or None if none does within 60 s."""
    dns = Upstream(lambda name, qtype, q, tcp: (answer(q) if outage.is_set() else reply(q, ttl=5, rdata=bytes([127, 0, 0, 1]) if qtype == A else None), 0))
    port = free_port()
    start("haproxy", "-f", write(label, f"""defaults
    mode http
    timeout connect 2s
    timeout client 5s
    timeout server 5s
resolvers cluster
    nameserver dns 127.0.0.1:{dns.port}
    {extra}
frontend f
    bind 127.0.0.1:{port}
    default_backend b
backend b
    server-template web 3 web.shop.svc.cluster.local:{service} resolvers cluster resolve-prefer ipv4 init-addr none
"""), ready=lambda: status(port) == 204)
    ready.wait()
    outage.wait()
    begin = time.monotonic()
    while (code := status(port)) == 204 and time.monotonic() - begin < 60:
        time.sleep(0.5)
    seen[label] = None if code == 204 else (code, time.monotonic() - begin)


def status(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return None


cases = [("silent", lambda q: None), ("SERVFAIL", lambda q: reply(q, SERVFAIL)), ("REFUSED", lambda q: reply(q, REFUSED)),
         ("held silent", lambda q: None, HOLD), ("held SERVFAIL", lambda q: reply(q, SERVFAIL), HOLD), ("held REFUSED", lambda q: reply(q, REFUSED), HOLD)]
ready = threading.Barrier(len(cases) + 1)
threads = [threading.Thread(target=outlast, args=case) for case in cases]
for t in threads:
    t.start()
ready.wait(60)
time.sleep(5)
outage.set()
for t in threads:
    t.join()
down = [seen[label] for label in ("silent", "SERVFAIL", "REFUSED")]
held = [seen["held " + label] for label in ("silent", "SERVFAIL", "REFUSED")]
conclude("while DNS is out, requests go on to the addresses that are known and well, at least for some minutes",
         "HAProxy 2.6.12 (Debian 2.6.12-1+deb12u4), server-template with resolvers",
         ", ".join(f"{'none fails within 60 s' if d is None else f'all get {d[0]} after {d[1]:.0f} s'} if the name server {'is silent' if not i else 'answers ' + cases[i][0]}"
                   for i, d in enumerate(down)) + f"; with hold timeout, other and refused of an hour, {held.count(None)} of 3 outages are outlasted",
         all(d and d[0] == 503 and 20 < d[1] < 50 for d in down) and held.count(None) == 3)
PYTHON
