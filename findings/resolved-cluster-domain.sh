#!/usr/bin/env bash
# systemd-resolved refuses names of cluster.local, though its only name server has them.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
resolved '
	ip link add pods type veth peer name pod
	ip link set pod up
	ip link set pods up
	ip addr add 169.254.20.10/32 dev pods
' <<'PYTHON'
from loopback import *

NAMES = ["web.example.", "web.shop.svc.", "web.shop.svc.cluster.internal.", "web.shop.svc.cluster.local."]
server = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=60), 0), "169.254.20.10", 5300)


def codes(domains):
    """Returns the RCODE of each name if Domains= has that value, and how many of the names the server is asked for."""
    write("etc/systemd/resolved.conf", f"""[Resolve]
DNS=169.254.20.10:5300
{domains}
DNSSEC=no
LLMNR=no
MulticastDNS=no
""")
    p = start(os.environ["work"] + "/root/lib/systemd/systemd-resolved", ready=lambda: rcode(ask(53, "ready.example", address="127.0.0.53")[0]) == NOERROR)
    before = len(server.queries)
    results = [RCODES.get(rcode(ask(53, name, address="127.0.0.53")[0])) for name in NAMES]
    end(p)
    return results, len({q[1] for q in server.queries[before:]} & set(NAMES))


(plain, asked), (search, _), (routed, _) = codes(""), codes("Domains=cluster.local"), codes("Domains=~local")
conclude("with DNS= and no Domains=, that server is asked for all names with two labels or more",
         "systemd-resolved 252.39 (Debian 252.39-1~deb12u2), MulticastDNS=no",
         f"{', '.join(f'{name} {code}' for name, code in zip(NAMES, plain))}; {asked} of the {len(NAMES)} are asked of the server; "
         f"the last one gets {search[3]} with Domains=cluster.local, and {routed[3]} with Domains=~local",
         (plain, asked) == (["NOERROR"] * 3 + ["REFUSED"], 3) and search == routed == ["NOERROR"] * 4)
PYTHON
