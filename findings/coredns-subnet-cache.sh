#!/usr/bin/env bash
# CoreDNS answers clients with what its cache has for the subnet of another client.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind cache forward rewrite
python3 - <<'PYTHON'
from loopback import *

CLIENTS = ("127.0.1.1", "127.0.2.1", "127.0.3.1")


def by_subnet(name, qtype, q, tcp):
    """Answers with an address that ends in the third byte of the client's subnet (RFC 7871)."""
    at = question(q)[2] + 11  # the options of the OPT record, which is the only other record
    while at < len(q):
        code, length = struct.unpack("!2H", q[at : at + 4])
        if code == 8:
            subnet = q[at + 8 : at + 4 + length]
            option = q[at : at + 7] + bytes([24]) + subnet  # the answer is for the whole /24
            opt = b"\0" + struct.pack("!2HLH", 41, 1232, 0, len(option)) + option
            r = reply(q, ttl=30, rdata=bytes([192, 0, 2, subnet[2]]))
            return r[:10] + struct.pack("!H", 1) + r[12:] + opt, 0
        at += 4 + length
    return reply(q), 0


upstream = Upstream(by_subnet)


def answered(cache):
    """Returns the last byte of the address that each client gets."""
    port, results = free_port(), []
    conf = write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    {cache}
    rewrite edns0 subnet set 24 56
    forward . 127.0.0.1:{upstream.port}
}}
""")
    p = start("coredns", "-conf", conf, ready=answers(port))
    for client in CLIENTS:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(5)
            s.bind((client, 0))
            s.connect(("127.0.0.1", port))
            s.send(query("near.example."))
            r = s.recv(4096)
            results.append(r[r.index(bytes([192, 0, 2])) + 3])
    end(p)
    return results


cached, direct = answered("cache 30"), answered("")
conclude("with `rewrite edns0 subnet set 24 56`, each client gets the answer for its subnet, also from the cache",
         "CoreDNS 1.15.0, rewrite, cache and forward",
         f"clients of three subnets get 192.0.2.{', 192.0.2.'.join(map(str, cached))}; without cache 192.0.2.{', 192.0.2.'.join(map(str, direct))}",
         direct == [1, 2, 3] and cached == [1, 1, 1])
PYTHON
