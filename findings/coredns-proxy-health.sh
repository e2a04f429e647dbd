#!/usr/bin/env bash
# dnsdist takes a CoreDNS with proxyproto for down, as that drops the health check.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
coredns 1.15.0 bind proxyproto whoami
python3 - <<'PYTHON'
from loopback import *

coredns = free_port()
start("coredns", "-conf", write("Corefile", f""".:{coredns} {{
    bind 127.0.0.1
    proxyproto {{
        allow 127.0.0.1/32
    }}
    whoami
}}
"""), ready=answers(coredns))


def answered(option="", statement=""):
    """Starts a dnsdist before CoreDNS. After three health checks, returns how many of 5 queries are answered over UDP and over TCP."""
    port = free_port()
    checked = os.path.join(os.environ["work"], f"checked-{port}")
    p = start("dnsdist", "--supervised", "--disable-syslog", "-C", write(f"dnsdist-{port}", f"""setLocal("127.0.0.1:{port}")
newServer({{address="127.0.0.1:{coredns}", useProxyProtocol=true, checkInterval=1, maxCheckFailures=1{option}}})
{statement}
local seconds = 0
function maintenance()
    seconds = seconds + 1
    if seconds == 4 then
        io.open("{checked}", "w"):close()
    end
end
"""), ready=lambda: os.path.exists(checked))
    found = tuple(sum(rcode(ask(port, "web.example.", timeout=1, tcp=tcp)[0]) == NOERROR for _ in range(5)) for tcp in (False, True))
    end(p)
    return found


default, up, tcp = answered(), answered(statement="getServer(0):setUp()"), answered(option=", tcpOnly=true")
conclude("dnsdist passes queries to a CoreDNS with proxyproto: a receiver must accept a header with the command LOCAL, and ignore its family (PROXY protocol, 2.2)",
         "CoreDNS 1.15.0, proxyproto and whoami; dnsdist 1.7.3 (Debian 1.7.3-2), useProxyProtocol",
         f"of 5 queries over UDP {default[0]} are answered, and {default[1]} of 5 over TCP, as CoreDNS drops the health check; with setUp, which takes CoreDNS for up, "
         f"{up[0]} and {up[1]}, and with tcpOnly {tcp[0]} and {tcp[1]}",
         default == (0, 0) and up == tcp == (5, 5))
PYTHON
