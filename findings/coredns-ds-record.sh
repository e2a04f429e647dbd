#!/usr/bin/env bash
# CoreDNS denies the DS record of a zone that it delegates itself, if both zones are in one server block.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libssl3 libprotobuf-c1 libfstrm0
coredns 1.15.0 bind file
python3 - <<'PYTHON'
from loopback import *

DS, SOA_RECORD = 43, "$TTL 300\n@ SOA ns.example. host.example. 1 3600 600 86400 60\n@ NS ns.example.\n"
above = write("db.example", SOA_RECORD + f"ns A 192.0.2.1\nsub NS ns\nsub DS 12345 13 2 {'00' * 32}\n")
below = write("db.sub.example", SOA_RECORD + "www A 192.0.2.2\n")


def one_block(port):
    return "coredns", "-conf", write("one", f".:{port} {{\n bind 127.0.0.1\n file {above} example\n file {below} sub.example\n}}\n")


def two_blocks(port):
    return "coredns", "-conf", write("two", "".join(f"{zone}:{port} {{\n bind 127.0.0.1\n file {file}\n}}\n"
                                                    for zone, file in (("example", above), ("sub.example", below))))


def records(program):
    """Returns how many DS records sub.example has, and addresses www.sub.example."""
    port = free_port()
    p = start(*program(port), ready=answers(port, "ns.example."))
    replies = ask(port, "sub.example.", DS)[0], ask(port, "www.sub.example.")[0]
    end(p)
    return [struct.unpack("!H", r[6:8])[0] if r else None for r in replies]


one, two, other = records(one_block), records(two_blocks), records(lambda port: nsd(port, {"example": zone_file(above), "sub.example": zone_file(below)}))
conclude("the DS record of a zone comes from the zone above it, if a server has both (RFC 4035, 3.1.4.1)",
         "CoreDNS 1.15.0, file; NSD 4.6.1 (Debian 4.6.1-1) for comparison",
         f"{one[0]} DS records for sub.example if one server block has both files, which is the answer of the zone itself; www.sub.example has {one[1]} address; "
         f"{two[0]} if each file has a block of its own, and {other[0]} from NSD",
         one == [0, 1] and two == other == [1, 1])
PYTHON
