#!/usr/bin/env bash
# A secondary of dnsmasq's zone never gets names that are added by hostsdir, as the zone keeps its serial.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
look_ups 'nameserver 127.0.0.1' <<'PYTHON'
import signal
from loopback import *

hosts, port = folder("hosts"), free_port()
os.chmod(hosts, 0o755)
primary = start(*dnsmasq(53, 1, f"""group=
hostsdir={hosts}
auth-server=ns.shop.internal,lo
auth-zone=shop.internal,192.0.2.0/24
auth-sec-servers=ns2.shop.internal
auth-peer=127.0.0.1"""), ready=answers(53, "ns.shop.internal."))


def add(name, address):
    """Adds a name to dnsmasq, and waits until it has it."""
    write("hosts/" + name, f"{address} {name}.shop.internal\n")
    until = time.monotonic() + 20
    while not found(53, name):
        if time.monotonic() > until:
            sys.exit(2)
        time.sleep(0.1)


def found(at, name):
    r, _ = ask(at, name + ".shop.internal.", timeout=1)
    return rcode(r) == NOERROR and r[7] > 0


def appears(name, seconds):
    """Returns whether the secondary has the name within some seconds."""
    until = time.monotonic() + seconds
    while not found(port, name) and time.monotonic() < until:
        time.sleep(0.5)
    return found(port, name)


def serial():
    r, _ = ask(53, "shop.internal.", SOA)
    name, at = b"\x0ahostmaster\x02ns\x04shop\x08internal\0", r.find(b"\x0ahostmaster")
    return struct.unpack("!L", r[at + len(name) :][:4])[0]


add("web", "192.0.2.1")
start(*nsd(port, {"shop.internal": ["request-xfr: 127.0.0.1@53 NOKEY", "max-refresh-time: 2", "max-retry-time: 2"]}), ready=answers(port, "shop.internal."))
if not appears("web", 60):
    sys.exit(2)
old = serial()
add("db", "192.0.2.2")
after, same = appears("db", 30), serial() == old
primary.send_signal(signal.SIGHUP)
reloaded, raised = appears("db", 60), serial() - old
conclude("a secondary has names that are added by hostsdir after its next refresh, as each change of a zone raises its serial (RFC 1912, 2.2)",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2), auth-zone and hostsdir; NSD 4.6.1 (Debian 4.6.1-1) as the secondary, with a refresh of 2 s",
         f"dnsmasq answers a new name at once, and its serial stays the same: {same}. 30 s later the secondary has the name: {after}. After SIGHUP the serial is higher by {raised}, and the secondary has the name: {reloaded}",
         same and not after and raised == 1 and reloaded)
PYTHON
