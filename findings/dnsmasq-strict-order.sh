#!/usr/bin/env bash
# dnsmasq with strict-order sends its own retries to the silent server again, not to the next one.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from loopback import *

NAMES = 4


def look_up(port, name):
    """Asks like glibc, once more after 5 s. Returns the seconds passed, and None without an answer."""
    q, begin = query(name), time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.connect(("127.0.0.1", port))
        for _ in range(2):
            s.send(q)
            try:
                s.recv(65535)
                return time.monotonic() - begin
            except TimeoutError:
                pass
    return None


def look_ups(extra):
    """Returns the times of the look-ups with a silent server and one that answers, and how many queries the silent one gets."""
    silent = Upstream(lambda name, qtype, q, tcp: (reply(q) if name.startswith("ready") else None, 0))
    good = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
    port = free_port()
    p = start(*dnsmasq(port, silent.port, f"server=127.0.0.1#{good.port}\n{extra}"), ready=answers(port))
    before = len(silent.queries)
    times = [look_up(port, f"n{i}.example") for i in range(NAMES)]
    end(p)
    if None in times:
        sys.exit(2)
    return times, len(silent.queries) - before


(plain, _), (strict, _), (retrying, asked) = look_ups(""), look_ups("strict-order"), look_ups("strict-order\nfast-dns-retry=500")
conclude("with strict-order and fast-dns-retry=500, a name that the first server does not answer is asked of the second one after half a second",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2)",
         f"each of {NAMES} names takes at least {min(retrying):.0f} s, until the client asks again, and the silent server gets {asked} queries; "
         f"{min(strict):.0f} s without fast-dns-retry; without strict-order, all but the first take at most {max(plain[1:]):.1f} s",
         min(retrying) > 4 and min(strict) > 4 and asked > 2 * NAMES and max(plain[1:]) < 1)
PYTHON
