#!/usr/bin/env bash
# SmartDNS keeps an answer for ten minutes, however short its TTL is.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian smartdns=40+dfsg-1 libssl3
python3 - <<'PYTHON'
from loopback import *

OLD, NEW, NAME = "10.96.1.1", "10.96.1.2", "web.shop.svc.cluster.local."
address = [OLD]
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=5, rdata=socket.inet_aton(address[0]) if qtype == A else None), 0))


def server(label, options):
    port = free_port()
    conf = write(label, f"""bind 127.0.0.1:{port}
server 127.0.0.1:{upstream.port}
speed-check-mode none
cache-persist no
{options}
""")
    start("smartdns", "-f", "-c", conf, "-p", "-", ready=answers(port))
    return port


def answer(port):
    """Returns the address that the name has, and its TTL."""
    r, _ = ask(port, NAME)
    if rcode(r) != NOERROR or not r[7]:
        sys.exit(2)
    return socket.inet_ntoa(r[-4:]), struct.unpack("!L", r[-10:-6])[0]


def asked():
    return sum(name == NAME for _, name, _, _ in upstream.queries)


default, cured = server("default", ""), server("cured", "rr-ttl-min 1\nserve-expired no")
(_, ttl), (_, short) = answer(default), answer(cured)
address[0], before = NEW, asked()
time.sleep(30)
(late, rest), (right, _) = answer(default), answer(cured)
conclude("when the address of a name with a TTL of 5 s changes, clients get the new one 30 s later, at the latest from the second query on",
         "SmartDNS 40 (Debian 40+dfsg-1)",
         f"the answer has a TTL of {ttl} s, and 30 s after the change it is {'the old address' if late == OLD else late} with a TTL of {rest} s; "
         f"with rr-ttl-min 1 and serve-expired no, {'the new address' if right == NEW else right} (first TTL: {short} s)",
         ttl == 600 and 500 < rest < 600 and late == OLD and right == NEW and short <= 5)
PYTHON
