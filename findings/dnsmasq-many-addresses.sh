#!/usr/bin/env bash
# dnsmasq does not cache a name that has more addresses than its cache has places, and drops all other names for it.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from loopback import *


def addresses(name, qtype, q, tcp):
    """Answers nN.example. with N addresses that have a TTL of 5 minutes, and other names with one."""
    n, end = int(name.split(".")[0].lstrip("n") or 1) if name.startswith("n") else 1, question(q)[2]
    records = b"".join(struct.pack("!3HLH4B", 0xC00C, A, 1, 300, 4, 10, 0, i >> 8, i & 255) for i in range(n))
    return q[:2] + struct.pack("!5H", 0x8580, 1, n, 0, 0) + q[12:end] + records, 0


upstream = Upstream(addresses)


def run(extra):
    """Returns how many of five queries for a name with 149 addresses, and for one with 151, reach the server, and how many
    of 40 cached names are asked again after one with 140."""
    port = free_port()
    p = start(*dnsmasq(port, upstream.port, extra), ready=answers(port))

    def reach(*names):
        before = len(upstream.queries)
        for name in names:
            ask(port, name, tcp=name.startswith("n"))
        return len(upstream.queries) - before

    fits, larger = reach(*["n149.example."] * 5), reach(*["n151.example."] * 5)
    small = [f"small{i}.example." for i in range(40)]
    reach(*small)
    reach("n140.example.")
    again = reach(*small)
    end(p)
    return fits, larger, again


default, enough = run(""), run("cache-size=1000")
conclude("cache-size, 150 names unless set, counts names: a Service with 151 addresses takes one place",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2)",
         f"of five queries for a name with 149 addresses {default[0]} reaches the server, of five for one with 151 {default[1]}; after a name with 140 addresses "
         f"{default[2]} of 40 cached names are asked again; {enough[0]}, {enough[1]} and {enough[2]} with cache-size=1000",
         default == (1, 5, 40) and enough == (1, 1, 0))
PYTHON
