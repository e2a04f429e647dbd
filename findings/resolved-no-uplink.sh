#!/usr/bin/env bash
# systemd-resolved does not ask a name server on the loopback interface while a node has no other network.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
resolved '
	ip link add uplink type veth peer name router
	ip link set router up
	ip link add pods type veth peer name pod
	ip link set pod up
	ip link set pods up
	ip addr add 192.0.2.10/24 dev uplink
	ip link set uplink up
	ip route add default via 192.0.2.1
' <<'PYTHON'
from loopback import *


def answered(label, address="127.0.0.53", port=53):
    """Returns how many of 10 names are answered."""
    return sum(rcode(ask(port, f"n{i}.{label}.example", address=address)[0]) == NOERROR for i in range(10))


def ip(*words):
    subprocess.run(["ip", *words], check=True)
    time.sleep(2)


server = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=60), 0), "127.0.0.2", 5300)
start(os.environ["work"] + "/root/lib/systemd/systemd-resolved", ready=lambda: rcode(ask(53, "ready.example", address="127.0.0.53")[0]) == NOERROR)
if answered("known") != 10:
    sys.exit(2)
ip("link", "set", "uplink", "down")
before = len(server.queries)
new, known, asked = answered("new"), answered("known"), len(server.queries) - before
direct = answered("new", "127.0.0.2", 5300)
ip("addr", "add", "169.254.20.10/32", "dev", "pods")
cured = answered("cured")
conclude("names that a server on the loopback interface answers are answered while the node's uplink is down, at least those in the cache",
         "systemd-resolved 252.39 (Debian 252.39-1~deb12u2), DNS=127.0.0.2",
         f"{new} of 10 new names and {known} of 10 in the cache are answered, with {asked} queries to the server, which answers {direct} of 10 if asked directly; "
         f"{cured} as soon as an interface that is up has an address, 169.254.20.10",
         (new, known, asked, direct, cured) == (0, 0, 0, 10, 10))
PYTHON
