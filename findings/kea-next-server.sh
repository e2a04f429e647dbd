#!/usr/bin/env bash
# Kea's DDNS server gives an update up when the first name server answers SERVFAIL, and does not ask the second one.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian kea-dhcp-ddns-server=2.2.0-6 kea-common=2.2.0-6 liblog4cplus-2.0.5 libmariadb3 libpq5 libssl3 libldap-2.5-0 libsasl2-2
python3 - <<'PYTHON'
import json
from loopback import *

NOTIMP, NAMES = 4, {SERVFAIL: "SERVFAIL", 4: "NOTIMP", None: "no reply"}
code, updates = [None], {"first": 0, "second": 0}


def server(label, address, rcode):
    """Starts a name server that answers updates with what rcode() returns, or not at all for None."""
    def handle(name, qtype, q, tcp):
        updates[label] += 1
        if rcode() is None:
            return None, 0
        return q[:2] + struct.pack("!5H", 0xA800 | rcode(), 1, 0, 0, 0) + q[12 : question(q)[2]], 0

    return Upstream(handle, address)


def log():
    with open(os.environ["work"] + "/kea-dhcp-ddns.log") as f:
        return f.read()


first, second = server("first", "127.0.0.2", lambda: code[0]), server("second", "127.0.0.3", lambda: NOERROR)
port, directory = free_port(), folder("kea")
start("kea-dhcp-ddns", "-c", write("kea.conf", json.dumps({"DhcpDdns": {
    "ip-address": "127.0.0.1", "port": port, "dns-server-timeout": 500, "ncr-protocol": "UDP", "ncr-format": "JSON", "tsig-keys": [],
    "forward-ddns": {"ddns-domains": [{"name": "shop.example.", "dns-servers": [{"ip-address": s.address, "port": s.port} for s in (first, second)]}]},
    "reverse-ddns": {"ddns-domains": []},
    "loggers": [{"name": "kea-dhcp-ddns", "output_options": [{"output": "stderr"}], "severity": "INFO"}]}})),
    environment=dict(os.environ, KEA_PIDFILE_DIR=directory, KEA_LOCKFILE_DIR=directory), ready=lambda: "DHCP_DDNS_STARTED" in log())


def lease(number, value):
    """Reports a new lease, as a DHCP server does, while the first name server answers with value. Returns whether the update succeeded, and the updates sent to each server."""
    code[0], before = value, len(log())
    updates.update(first=0, second=0)
    request = json.dumps({"change-type": 0, "forward-change": True, "reverse-change": False, "fqdn": f"host-{number}.shop.example.", "ip-address": f"192.0.2.{number}",
                          "dhcid": "010203040A7F8E3D", "lease-expires-on": "20991231235959", "lease-length": 1300, "use-conflict-resolution": True}).encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(struct.pack("!H", len(request)) + request, ("127.0.0.1", port))
    until = time.monotonic() + 30
    while "DHCP_DDNS_ADD_" not in log()[before:]:
        if time.monotonic() > until:
            sys.exit(2)
        time.sleep(0.1)
    time.sleep(5)
    return "DHCP_DDNS_ADD_SUCCEEDED" in log()[before:], updates["first"], updates["second"]


seen = {c: lease(i, c) for i, c in enumerate((SERVFAIL, NOTIMP, None), 1)}
conclude("with two name servers, an update that gets SERVFAIL or NOTIMP from the first one, or no reply, is sent to the second one (RFC 2136, section 4)",
         "Kea 2.2.0 (Debian 2.2.0-6), kea-dhcp-ddns",
         "; ".join(f"{NAMES[c]}: the update {'succeeds' if ok else 'fails'}, with {a} queries to the first server and {b} to the second" for c, (ok, a, b) in seen.items()),
         seen == {SERVFAIL: (False, 1, 0), NOTIMP: (False, 1, 0), None: (True, 3, 1)})
PYTHON
