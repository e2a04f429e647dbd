#!/usr/bin/env bash
# dnsmasq takes a deleted name for one without records if it may use stale entries.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from loopback import *

deleted = threading.Event()


def answer(name, qtype, q, tcp):
    """An address with a TTL of 2 s, or NXDOMAIN with the SOA record of the zone, whose minimum is 2 s."""
    if name == "ready.example." or not deleted.is_set() and name.startswith("old"):
        return reply(q, ttl=2), 0
    _, _, end = question(q)
    soa = b"\x07example\0" + struct.pack("!2HLH", SOA, 1, 2, 22) + b"\0\0" + struct.pack("!5L", 1, 5, 5, 5, 2)
    return q[:2] + struct.pack("!5H", 0x8583, 1, 0, 1, 0) + q[12:end] + soa, 0


upstream = Upstream(answer)


def codes(extra):
    """Returns what a deleted name is answered with from 4 s after its deletion on, 20 times, a second apart, and so a name that has never been."""
    port, results = free_port(), {"old.example.": [], "never.example.": []}
    deleted.clear()
    p = start(*dnsmasq(port, upstream.port, extra), ready=answers(port))
    if rcode(ask(port, "old.example.")[0]) != NOERROR:
        sys.exit(2)
    deleted.set()
    time.sleep(4)
    for _ in range(20):
        for name, seen in results.items():
            r, _ = ask(port, name)
            seen.append("an address" if rcode(r) == NOERROR and r[7] else RCODES.get(rcode(r)))
        time.sleep(1)
    end(p)
    return results.values()


(stale, never), (without, _) = codes("use-stale-cache=3600"), codes("")
later = stale[5:]
conclude("with use-stale-cache, a deleted name is answered with its old address once or twice, and with NXDOMAIN from then on",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2), use-stale-cache=3600",
         f"{stale[0]} first, and then {later.count('NOERROR')} of {len(later)} times NOERROR without a record; "
         f"{without[0]} without the option, and {never[0]} for a name that has never been",
         stale[0] == "an address" and set(later) == {"NOERROR"} and set(without) == set(never) == {"NXDOMAIN"})
PYTHON
