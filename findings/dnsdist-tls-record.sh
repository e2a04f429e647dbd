#!/usr/bin/env bash
# dnsdist answers the first query of a TLS record at once, and the next ones 2 s later.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
certificate
python3 - <<'PYTHON'
import ssl
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q), 0))
port, tls = free_port(), free_port()
conf = write("dnsdist.conf", f"""setLocal("127.0.0.1:{port}")
addTLSLocal("127.0.0.1:{tls}", "{os.environ['work']}/cert.pem", "{os.environ['work']}/key.pem")
setSecurityPollSuffix("")
newServer("127.0.0.1:{upstream.port}")
""")
start("dnsdist", "--supervised", "--disable-syslog", "-C", conf, ready=answers(port))
context = ssl.create_default_context(cafile=os.environ["work"] + "/cert.pem")


def seconds(together):
    """Returns when the first and the last of three replies arrive."""
    with context.wrap_socket(socket.create_connection(("127.0.0.1", tls), 10), server_hostname="localhost") as s:
        s.sendall(framed(query("first.example.")))
        receive(s)
        queries = [framed(query(f"n{i}.example.")) for i in range(3)]
        begin = time.monotonic()
        if together:
            s.sendall(b"".join(queries))
        else:
            for q in queries:
                s.sendall(q)
        times = []
        for _ in queries:
            receive(s)
            times.append(time.monotonic() - begin)
        return times[0], times[-1]


first, last = seconds(True)
_, apart = seconds(False)
conclude("three queries in one TLS record are answered as quickly as in three records",
         "dnsdist 1.7.3 (Debian 1.7.3-2)",
         f"in one record the first reply takes {first:.2f} s and the last {last:.2f} s; in three records the last takes {apart:.2f} s",
         last > 1 and apart < 0.5)
PYTHON
