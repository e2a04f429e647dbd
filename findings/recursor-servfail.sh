#!/usr/bin/env bash
# PowerDNS Recursor repeats one SERVFAIL of a forwarder for a minute.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-recursor=4.8.8-1+deb12u1 libboost-context1.74.0 libcurl4 libfstrm0 libluajit-5.1-2 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libnghttp2-14 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

failing = threading.Event()
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, SERVFAIL if failing.is_set() else NOERROR), 0))


def recovery(extra):
    """Returns after how many seconds a name is answered, whose first query met a failing forwarder."""
    port, directory = free_port(), folder("recursor")
    write("recursor/recursor.conf", f"""local-address=127.0.0.1
local-port={port}
socket-dir={directory}
forward-zones-recurse=.=127.0.0.1:{upstream.port}
dont-query=
query-local-address=127.0.0.1
security-poll-suffix=
write-pid=no
daemon=no
{extra}
""")
    p = start("pdns_recursor", "--config-dir=" + directory, ready=answers(port))
    failing.set()
    ask(port, "name.example.")
    failing.clear()
    begin = time.monotonic()
    while rcode(ask(port, "name.example.")[0]) != NOERROR and time.monotonic() < begin + 75:
        time.sleep(0.5)
    end(p)
    return time.monotonic() - begin


default, short = recovery(""), recovery("packetcache-servfail-ttl=1")
conclude("a name is answered again at the latest 5 s after its forwarder's last SERVFAIL",
         "PowerDNS Recursor 4.8.8 (Debian 4.8.8-1+deb12u1)",
         f"after {default:.0f} s; after {short:.0f} s with packetcache-servfail-ttl=1",
         default > 30 and short < 5)
PYTHON
