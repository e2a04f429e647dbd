#!/usr/bin/env bash
# blackbox_exporter takes a truncated reply without a record for a success.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian prometheus-blackbox-exporter=0.23.0-4+b4
python3 - <<'PYTHON'
import urllib.request
from loopback import *

upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, tc=not tcp and name.startswith("many")), 0))
port, modules = free_port(), ""
for name in ("few", "many"):
    for label, check in ("", ""), ("checked", 'validate_answer_rrs: {fail_if_none_matches_regexp: ["192.0.2.1"]},'):
        modules += f"""  {name}{label}:
    prober: dns
    dns: {{query_name: {name}.example, query_type: A, {check} preferred_ip_protocol: ip4}}
"""
conf = write("blackbox.yml", "modules:\n" + modules)


def get(path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as page:
            return page.read().decode()
    except OSError:
        return None


def probe(module):
    """Returns whether the probe succeeds, and how many answers it counts."""
    page = get(f"probe?target=127.0.0.1:{upstream.port}&module={module}")
    return tuple(int(l.split()[1]) for key in ("probe_success", "probe_dns_answer_rrs") for l in page.splitlines() if l.startswith(key + " "))


start("prometheus-blackbox-exporter", f"--config.file={conf}", f"--web.listen-address=127.0.0.1:{port}", ready=lambda: get("-/healthy"))
few, many, checked = probe("few"), probe("many"), probe("manychecked")
tcp = sum(t for _, _, _, t in upstream.queries)
conclude("a DNS probe over UDP whose reply has TC is retried over TCP, or fails",
         "blackbox_exporter 0.23.0 (Debian 0.23.0-4+b4)",
         f"probe_success is {many[0]} with {many[1]} answers, after {tcp} queries over TCP; if the module checks the answer, it is {checked[0]}",
         few == (1, 1) and probe("fewchecked") == (1, 1) and many == (1, 0) and checked[0] == 0 and tcp == 0)
PYTHON
