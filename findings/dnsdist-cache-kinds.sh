#!/usr/bin/env bash
# dnsdist keeps the answer for a name once for each kind of client.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=3600), 0))
port = free_port()
conf = write("dnsdist.conf", f"""setLocal("127.0.0.1:{port}")
newServer{{address="127.0.0.1:{upstream.port}", checkName="ready.example."}}
getPool(""):setCache(newPacketCache(10000))
""")
start("dnsdist", "--supervised", "-C", conf, ready=answers(port))


def asked(kinds):
    """Asks for one name twice from each kind of client. Returns how often the server behind is asked."""
    before = len(upstream.queries)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.connect(("127.0.0.1", port))
        for _ in range(2):
            for flags, opt in kinds:
                q = query("service.example.")
                s.send(q[:2] + struct.pack("!5H", flags, 1, 0, 0, len(opt) > 0) + q[12:] + opt)
                s.recv(4096)
    return sum(name == "service.example." for _, name, _, _ in upstream.queries[before:])


def edns(size, do=0, options=b""):
    return struct.pack("!BHHLH", 0, 41, size, do << 15, len(options)) + options


cookie = struct.pack("!HHQ", 10, 8, 1)
RD, AD = 0x0100, 0x0120
n = asked([(RD, b""), (AD, b""), (RD, edns(1232)), (RD, edns(4096)), (RD, edns(1232, do=1)), (RD, edns(1232, options=cookie))])
conclude("clients that ask for the same name and type share one entry of the packet cache, apart from the DO bit",
         "dnsdist 1.7.3 (Debian 1.7.3-2), newPacketCache(10000)",
         f"six clients that differ in the AD bit, in EDNS and its size, in DO and in having a cookie cause {n} queries to the server",
         n == 6)
PYTHON
