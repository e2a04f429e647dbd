#!/usr/bin/env bash
# dnsdist drops all queries of a cluster zone while its server cannot resolve other names.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *


def cluster_only(name, qtype, q, tcp):
    return reply(q, NOERROR if name.endswith(".cluster.local.") else SERVFAIL), 0


upstream = Upstream(cluster_only)


def answered(extra):
    """Returns how many of 10 cluster names are answered after the first health checks."""
    port = free_port()
    conf = write("dnsdist.conf", f"""setLocal("127.0.0.1:{port}")
setSecurityPollSuffix("")
newServer({{address="127.0.0.1:{upstream.port}"{extra}}})
""")
    p = start("dnsdist", "--supervised", "--disable-syslog", "-C", conf)
    time.sleep(4)
    n = sum(rcode(ask(port, f"service-{i}.cluster.local.", timeout=1)[0]) == NOERROR for i in range(10))
    end(p)
    return n


default, own = answered(""), answered(', checkName="ready.cluster.local."')
conclude("a server that answers its own zone and SERVFAIL for the rest still gets the queries of its zone",
         "dnsdist 1.7.3 (Debian 1.7.3-2)",
         f"{default} of 10 cluster names are answered, as the health check asks for a.root-servers.net; "
         f"{own} of 10 with checkName in the zone",
         default == 0 and own == 10)
PYTHON
