#!/usr/bin/env bash
# A name whose server is silent holds up the requests for all other names that Caddy looks up.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
caddy 2.11.9
python3 - <<'PYTHON'
from caddy import *


def dynamic(name, dns):
    return f"""dynamic a {{
                name {name}
                port {port}
                versions ipv4
                resolvers 127.0.0.1:{dns.port}
            }}"""


port = backend("backend")
good = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=3600, rdata=bytes([127, 0, 0, 1])), 0))
silent = Upstream(lambda name, qtype, q, tcp: (None, 0))
proxy = Proxy(good.port, good=dynamic("good.example", good), silent=dynamic("silent.example", silent))
before, again = proxy.get("good"), proxy.get("good")
waiting, threads = [], [threading.Thread(target=lambda: waiting.append(proxy.get("silent"))) for _ in range(3)]
for t in threads:
    t.start()
time.sleep(0.5)
static, during = proxy.get("static"), proxy.get("good")
for t in threads:
    t.join()
seconds = sorted(s for _, s in waiting)
conclude("if the name server of one backend is silent, only that backend's requests wait",
         "Caddy 2.11.9, reverse_proxy with dynamic a",
         f"another backend's request, which takes {again[1]:.2f} s and whose name has been looked up a second ago, takes {during[1]:.0f} s meanwhile; "
         f"three requests for the silent name at once fail after {', '.join(f'{s:.0f} s' for s in seconds)}",
         [before[0], again[0], during[0], static[0]] == ["backend"] * 3 + ["static"] and again[1] < 1 and static[1] < 1
         and during[1] > 4 and seconds[0] < 15 and seconds[2] > 25)
PYTHON
