#!/usr/bin/env bash
# dnsmasq refuses queries beyond 150 that wait for a server.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from collections import Counter
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q), 3))


def burst(extra):
    """Asks for 400 names at once, each of which the server answers after 3 s."""
    port, results, threads = free_port(), Counter(), []
    p = start(*dnsmasq(port, upstream.port, extra), ready=answers(port))

    def client(i):
        results[RCODES.get(rcode(ask(port, f"n{i}.example.")[0]))] += 1

    for i in range(400):
        threads.append(threading.Thread(target=client, args=(i,)))
        threads[-1].start()
        time.sleep(0.001)
    for t in threads:
        t.join()
    end(p)
    return results


default, longer = burst(""), burst("dns-forward-max=1000")
conclude("a forwarder with too many waiting queries drops some or answers SERVFAIL; clients try again",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2)",
         f"of 400 names {default['REFUSED']} get REFUSED at once; {longer['REFUSED']} with dns-forward-max=1000",
         default["REFUSED"] > 50 and longer["REFUSED"] == 0)
PYTHON
