#!/usr/bin/env bash
# dnsmasq does not see that a ConfigMap in its hostsdir has changed.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsmasq-base=2.90-4~deb12u2 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
import signal
from loopback import *

OLD, NEW = "192.0.2.7", "192.0.2.8"
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, NXDOMAIN), 0))


def publish(directory, version, address):
    """Changes a mounted ConfigMap with the key hosts as the kubelet does: a new folder, to which the link ..data is moved."""
    data = f"..version_{version}"
    os.mkdir(f"{directory}/{data}")
    with open(f"{directory}/{data}/hosts", "w") as f:
        f.write(f"{address} mapped.example\n")
    os.symlink(data, f"{directory}/..data_tmp")
    os.rename(f"{directory}/..data_tmp", f"{directory}/..data")
    if not os.path.lexists(f"{directory}/hosts"):
        os.symlink("..data/hosts", f"{directory}/hosts")


def plain(directory, address):
    """Writes the same kind of file without a link."""
    with open(f"{directory}/plain", "w") as f:
        f.write(f"{address} plain.example\n")


def address(name):
    """Returns the address that dnsmasq has for a name, or None."""
    r, _ = ask(port, name)
    return socket.inet_ntoa(r[-4:]) if rcode(r) == NOERROR else None


def becomes(name, expected, seconds):
    until = time.monotonic() + seconds
    while address(name) != expected and time.monotonic() < until:
        time.sleep(0.2)
    return address(name) == expected


hosts, port = folder("hosts"), free_port()
publish(hosts, 1, OLD)
plain(hosts, OLD)
p = start(*dnsmasq(port, upstream.port, f"hostsdir={hosts}"), ready=answers(port))
if not (becomes("mapped.example.", OLD, 10) and becomes("plain.example.", OLD, 10)):
    sys.exit(2)
publish(hosts, 2, NEW)
plain(hosts, NEW)
control, followed = becomes("plain.example.", NEW, 10), becomes("mapped.example.", NEW, 30)
p.send_signal(signal.SIGHUP)
cured = becomes("mapped.example.", NEW, 10)
conclude("when a ConfigMap changes that is mounted as hostsdir, its names have their new addresses within seconds",
         "dnsmasq 2.90 (Debian 2.90-4~deb12u2), hostsdir",
         f"30 s after the change the name has {'the new' if followed else 'its old'} address; a file that is not a link "
         f"is {'read' if control else 'not read'} at once; after SIGHUP the name {'has the new' if cured else 'still has its old'} address",
         control and not followed and cured)
PYTHON
