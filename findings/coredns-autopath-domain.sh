#!/usr/bin/env bash
# With autopath, CoreDNS answers SERVFAIL for the first search domain itself.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 autopath bind hosts
python3 - <<'PYTHON'
from loopback import *

resolv_conf = write("resolv.conf", "nameserver 127.0.0.1\nsearch example.org example.net\n")


def replies(directive):
    """Returns the RCODEs for the first search domain, a name in it, and the second search domain."""
    port = free_port()
    p = start("coredns", "-conf", write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    {directive}
    hosts {{
        192.0.2.1 example.org www.example.org example.net
    }}
}}
"""), ready=answers(port, "www.example.org."))
    codes = [RCODES.get(rcode(ask(port, name + ".")[0])) for name in ("example.org", "www.example.org", "example.net")]
    end(p)
    return codes


seen, without = replies(f"autopath {resolv_conf}"), replies("")
conclude("with autopath, names are answered as without it; it only spares clients the other queries of the search path",
         "CoreDNS 1.15.0, autopath",
         f"with search example.org example.net in the file, example.org gets {seen[0]}, www.example.org {seen[1]}, example.net {seen[2]}; without autopath {without}",
         seen == ["SERVFAIL", "NOERROR", "NOERROR"] and without == ["NOERROR"] * 3)
PYTHON
