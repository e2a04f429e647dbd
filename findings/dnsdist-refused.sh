#!/usr/bin/env bash
# dnsdist sends nearly all queries to a server that refuses each of them.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *


def answered(code, extra=""):
    """Returns how many of 300 names are answered if one of two servers gives each query that RCODE,
    at once, and the other one an answer after 2 ms."""
    good = Upstream(lambda name, qtype, q, tcp: (reply(q), 0.002))
    other = Upstream(lambda name, qtype, q, tcp: (reply(q, code), 0))
    port = free_port()
    conf = write("dnsdist.conf", f"""setLocal("127.0.0.1:{port}")
setSecurityPollSuffix("")
newServer({{address="127.0.0.1:{good.port}"{extra}}})
newServer({{address="127.0.0.1:{other.port}"{extra}}})
""")
    p = start("dnsdist", "--supervised", "--disable-syslog", "-C", conf, ready=answers(port))
    time.sleep(3)
    n = sum(rcode(ask(port, f"n{i}.example")[0]) == NOERROR for i in range(300))
    end(p)
    return n


refused, failing, cured = answered(REFUSED), answered(SERVFAIL), answered(REFUSED, ', mustResolve=true, checkName="ready.example."')
conclude("a server that answers REFUSED to each query, as one without the zone does, is taken for down, or gets half of the queries at most",
         "dnsdist 1.7.3 (Debian 1.7.3-2), two servers, the default policy",
         f"{refused} of 300 names are answered, as it passes the health check and is the quicker one; {failing} if it answers SERVFAIL, "
         f"and {cured} with mustResolve and a checkName that exists",
         refused < 100 and failing == cured == 300)
PYTHON
