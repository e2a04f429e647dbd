#!/usr/bin/env bash
# CoreDNS's dns64 replaces the IPv6 addresses of a name that has many by one made from its IPv4 address.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libexpat1 libssl3
coredns 1.15.0 bind dns64 forward
python3 - <<'PYTHON'
from loopback import *

few, many = "few.example.", "many.example."
addresses = {few: 10, many: 30}
records = [f"{name} 60 AAAA 2001:db8::{i + 1:x}" for name, count in addresses.items() for i in range(count)] + [f"{name} 60 A 192.0.2.1" for name in addresses]
unbound = free_port()
start(*forwarding_unbound("unbound", unbound, {}, 'local-zone: "example." static\n', *(f'local-data: "{r}"\n' for r in records)), ready=answers(unbound, few))


def coredns(label, option):
    port = free_port()
    start("coredns", "-conf", write(label, f""".:{port} {{
    bind 127.0.0.1
    dns64 {{
        allow_ipv4
    }}
    forward . 127.0.0.1:{unbound} {{
        {option}
    }}
}}
"""), ready=answers(port, few))
    return port


def aaaa(port, name, tcp=False):
    """Returns the rcode, whether the reply has TC, how many records it has, and how many of their addresses are made by dns64."""
    r, _ = ask(port, name, AAAA, tcp=tcp)
    return RCODES[rcode(r)], bool(r[2] & 2), struct.unpack("!H", r[6:8])[0], r.count(socket.inet_pton(socket.AF_INET6, "64:ff9b::192.0.2.1"))


without = aaaa(unbound, many)
default, tcp = coredns("default", ""), coredns("tcp", "force_tcp")
results = aaaa(default, few), aaaa(default, many), aaaa(default, many, tcp=True), aaaa(tcp, many)
conclude("a client over UDP gets TC for a name with 30 IPv6 addresses, as from the server behind CoreDNS, and asks again over TCP",
         "CoreDNS 1.15.0, dns64 and forward; unbound 1.17.1 (Debian 1.17.1-2+deb12u4) as the server behind it",
         f"over UDP unbound answers with TC {without[1]} and {without[2]} records, CoreDNS with TC {results[1][1]} and {results[1][2]} record, and {results[1][3]} address is made "
         f"from the IPv4 address; over TCP it has {results[2][2]} records, {results[2][3]} of them made; a name with 10 addresses has {results[0][2]}. "
         f"With force_tcp CoreDNS answers over UDP with TC {results[3][1]}, and {results[3][3]} addresses are made",
         without == ("NOERROR", True, 0, 0) and results[:3] == (("NOERROR", False, 10, 0), ("NOERROR", False, 1, 1), ("NOERROR", False, 30, 0))
         and results[3][0] == "NOERROR" and results[3][1] and results[3][3] == 0)
PYTHON
