#!/usr/bin/env bash
# CoreDNS counts all answers of a block as those of its first plugin.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind cache errors hosts metrics whoami
python3 - <<'PYTHON'
import re
import urllib.request
from loopback import *


def labels(directives):
    """Returns the labels plugin after answers of hosts and of whoami."""
    port, metrics = free_port(), free_port()
    p = start("coredns", "-conf", write("Corefile", f""".:{port} {{
    bind 127.0.0.1
    prometheus 127.0.0.1:{metrics}
    {directives}
    hosts {{
        192.0.2.1 www.example
        fallthrough
    }}
    whoami
}}
"""), ready=answers(port, "www.example."))
    ask(port, "www.example.")
    ask(port, "other.example.")
    page = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode()
    end(p)
    return sorted(re.findall(r'^coredns_dns_responses_total\{plugin="(\w*)",rcode="NOERROR"', page, re.M))


neither, errors, cache = labels(""), labels("errors"), labels("cache 30")
conclude("coredns_dns_responses_total counts the answers of hosts and of whoami apart, as its label plugin has \"the name of the plugin that made the write to the client\"",
         "CoreDNS 1.15.0, prometheus, errors, cache, hosts, whoami",
         f"the labels of both together are {', '.join(neither)}; with errors in the block {', '.join(errors)}, and with cache {', '.join(cache)}: "
         "the first plugin behind prometheus",
         neither == ["hosts"] and errors == ["errors"] and cache == ["cache"])
PYTHON
