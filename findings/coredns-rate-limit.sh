#!/usr/bin/env bash
# Behind NSD's usual rate limit of UDP, CoreDNS fails names rather than ask over TCP.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
coredns 1.15.0 bind forward
python3 - <<'PYTHON'
from collections import Counter
from loopback import *

directory, nsd = folder("nsd"), free_port()
write("nsd/zone", """$ORIGIN cluster.local.
$TTL 5
@ SOA ns a 1 3600 600 86400 5
@ NS ns
ns A 192.0.2.1
""")
conf = write("nsd.conf", f"""server:
    ip-address: 127.0.0.1@{nsd}
    zonesdir: "{directory}"
    username: ""
    chroot: ""
    database: ""
    pidfile: ""
    xfrdfile: "{directory}/xfrd"
    zonelistfile: "{directory}/zones"
    xfrdir: "{directory}"
remote-control:
    control-enable: no
zone:
    name: cluster.local
    zonefile: zone
""")
start("nsd", "-d", "-c", conf, ready=answers(nsd, "ns.cluster.local."))


def coredns(label, extra):
    port = free_port()
    conf = write(label, f""".:{port} {{
    bind 127.0.0.1
    forward . 127.0.0.1:{nsd} {{
        {extra}
    }}
}}
""")
    start("coredns", "-conf", conf, ready=answers(port, "ns.cluster.local."))
    return port


def load(port):
    """Asks for 600 names a second that do not exist, like a search path, during 5 s. A client retries
    over TCP if the reply has TC, and once over UDP after 5 s."""
    results, threads, begin = Counter(), [], time.monotonic()

    def client(name):
        r, _ = ask(port, name)
        if r is None:
            r, _ = ask(port, name)
        if r is not None and r[2] & 2:
            r, _ = ask(port, name, tcp=True)
        results[RCODES.get(rcode(r))] += 1

    for i in range(3000):
        time.sleep(max(0, begin + i / 600 - time.monotonic()))
        threads.append(threading.Thread(target=client, args=(f"n{i}.cluster.local.",)))
        threads[-1].start()
    for t in threads:
        t.join()
    return results


default, tcp = load(coredns("default", "")), load(coredns("tcp", "force_tcp"))
conclude("a query that stays unanswered over UDP is asked over TCP, which NSD does not limit",
         "CoreDNS 1.15.0 forwarding to NSD 4.6.1 (Debian 4.6.1-1) with its default rrl-ratelimit",
         f"of 3000 names that do not exist, at 600 a second, {default['SERVFAIL']} get SERVFAIL and "
         f"{default['NXDOMAIN']} NXDOMAIN; with force_tcp {tcp['SERVFAIL']} and {tcp['NXDOMAIN']}",
         default["SERVFAIL"] > 100 and tcp["NXDOMAIN"] > 2900)
PYTHON
