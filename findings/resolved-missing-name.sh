#!/usr/bin/env bash
# systemd-resolved asks twice for each name that does not exist, and three times for one that gets SERVFAIL from its only server.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
# It asks nobody while there is no other interface than the loopback one.
resolved '
	ip link add d0 type veth peer name d1
	ip link set d1 up
	ip addr add 192.0.2.10/24 dev d0
	ip link set d0 up
	ip route add default via 192.0.2.1
' <<'PYTHON'
from loopback import *

CODES = {"web": NOERROR, "missing": NXDOMAIN, "failing": SERVFAIL}


def with_edns(name, qtype, q, tcp):
    """Answers by the first label, with an OPT record if the query has one."""
    r = reply(q, CODES.get(name.split(".")[1], NOERROR))
    if q[10:12] == b"\0\1":
        edns.add(name)
        r = r[:10] + b"\0\1" + r[12:] + b"\0" + struct.pack("!2HLH", 41, 1232, 0, 0)
    return r, 0


def stub(name):
    return rcode(ask(53, name, address="127.0.0.53")[0])


edns = set()
upstream = Upstream(with_edns, "127.0.0.2", 5300)
start(os.environ["work"] + "/root/lib/systemd/systemd-resolved", ready=lambda: stub("n.ready.example") == NOERROR)
asked = {}
for label, code in CODES.items():
    before = len(upstream.queries)
    for i in range(20):
        if stub(f"n{i}.{label}.example") != code:
            sys.exit(2)
    asked[label] = len(upstream.queries) - before
conclude("a name that does not exist is asked once",
         "systemd-resolved 252.39 (Debian 252.39-1~deb12u2), one server with EDNS, no DNSSEC",
         f"20 names that do not exist take {asked['missing']} queries, 20 that get SERVFAIL {asked['failing']}, and 20 that exist {asked['web']}",
         asked == {"web": 20, "missing": 40, "failing": 60} and len(edns) > 60)
PYTHON
