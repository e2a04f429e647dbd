#!/usr/bin/env bash
# PowerDNS Recursor works on ten queries of a TCP connection at a time.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-recursor=4.8.8-1+deb12u1 libboost-context1.74.0 libcurl4 libfstrm0 libluajit-5.1-2 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libnghttp2-14 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=30), 0.3 if name.startswith("n") else 0))


def recursor(label, *extra):
    port, directory = free_port(), folder(label)
    start("pdns_recursor", "--daemon=no", "--local-address=127.0.0.1", f"--local-port={port}",
          f"--forward-zones-recurse=.=127.0.0.1:{upstream.port}", "--dont-query=", "--dnssec=off", f"--socket-dir={directory}",
          f"--config-dir={directory}", "--setuid=", "--setgid=", "--security-poll-suffix=", "--disable-syslog", *extra,
          ready=answers(port))
    return port


def took(port, connections, label):
    """Sends 100 queries over that many connections. Returns the seconds until the last answer."""
    begin, n = time.monotonic(), 100 // connections

    def client(c):
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.settimeout(20)
            s.sendall(b"".join(framed(query(f"n{label}-{c}-{i}.example.")) for i in range(n)))
            for _ in range(n):
                if rcode(receive(s)) != NOERROR:
                    sys.exit(2)

    threads = [threading.Thread(target=client, args=(c,)) for c in range(connections)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.monotonic() - begin


default, raised = recursor("default"), recursor("raised", "--max-concurrent-requests-per-tcp-connection=200")
one, ten, more = took(default, 1, "one"), took(default, 10, "ten"), took(raised, 1, "more")
conclude("100 queries on one TCP connection, each of which takes the forwarder 300 ms, are answered after about 300 ms",
         "PowerDNS Recursor 4.8.8 (Debian 4.8.8-1+deb12u1)",
         f"the last answer comes after {one:.1f} s; after {ten:.1f} s with 10 connections, "
         f"and after {more:.1f} s with max-concurrent-requests-per-tcp-connection=200",
         one > 2.5 and ten < 2 and more < 2)
PYTHON
