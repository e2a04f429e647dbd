#!/usr/bin/env bash
# With force_tcp, CoreDNS opens more connections than unbound and dnsmasq serve, and names fail.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 dnsmasq-base=2.90-4~deb12u2 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
coredns 1.15.0 bind forward
python3 - <<'PYTHON'
from loopback import *

CLIENTS, QUERIES = 80, 15
origin = Upstream(lambda name, qtype, q, tcp: (reply(q), 0.05))


def failed(server, extra):
    """Returns how many names fail of 80 clients that ask one after the other, through CoreDNS."""
    port, upstream, failures = free_port(), free_port(), []
    programs = [start(*forwarding_unbound("unbound", upstream, {".": f"127.0.0.1@{origin.port}"}), ready=answers(upstream)) if server == "unbound" else
                start(*dnsmasq(upstream, origin.port), ready=answers(upstream))]
    conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    forward . 127.0.0.1:{upstream} {{
        {extra}
    }}
}}
""")
    programs.append(start("coredns", "-conf", conf, ready=answers(port)))

    def client(i):
        failures.extend(k for k in range(QUERIES) if rcode(ask(port, f"n{i}-{k}.example.")[0]) != NOERROR)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for p in programs:
        end(p)
    return len(failures)


total = CLIENTS * QUERIES
udp = {s: failed(s, "") for s in ("unbound", "dnsmasq")}
tcp = {s: failed(s, "force_tcp") for s in ("unbound", "dnsmasq")}
conclude("80 concurrent queries are no more for a server over TCP than over UDP",
         "CoreDNS 1.15.0 forwarding to unbound 1.17.1 (Debian 1.17.1-2+deb12u4) or dnsmasq 2.90 (Debian 2.90-4~deb12u2)",
         f"with force_tcp, {tcp['unbound']} of {total} names fail behind unbound and {tcp['dnsmasq']} behind dnsmasq; "
         f"without it {udp['unbound']} and {udp['dnsmasq']}",
         tcp["unbound"] >= 15 and tcp["dnsmasq"] >= 8 and max(udp.values()) <= 3)
PYTHON
