#!/usr/bin/env bash
# An NSD without a database forgets a zone that it has transferred when it is restarted.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
python3 - <<'PYTHON'
from loopback import *

zone = write("primary.zone", """$ORIGIN shop.example.
$TTL 5
@ SOA ns a 7 2 2 86400 5
@ NS ns
ns A 192.0.2.200
web A 192.0.2.1
""")


def nsd_command(label, port, zone, extra=""):
    directory = folder(label)
    return "nsd", "-d", "-c", write(label + ".conf", f"""server:
    ip-address: 127.0.0.1@{port}
    username: ""
    chroot: ""
    zonesdir: "{directory}"
    pidfile: "{directory}/pid"
    database: ""
    xfrdfile: "{directory}/xfrd"
    xfrdir: "{directory}"
    zonelistfile: "{directory}/zones"
{extra}
remote-control:
    control-enable: no
zone:
    name: shop.example
{zone}
""")


def restarted(label, extra="", wait=lambda directory: True):
    """Returns the answer of a secondary to a name of its zone before and after it is restarted while its primary is away."""
    port, directory = free_port(), folder(label)
    first = start(*nsd_command(label + "-primary", primary_port, f'    zonefile: "{zone}"\n    provide-xfr: 127.0.0.1 NOKEY'),
                  ready=lambda: answer(primary_port) == NOERROR)
    command = nsd_command(label, port, f'    zonefile: "shop.zone"\n    request-xfr: 127.0.0.1@{primary_port} NOKEY', extra)
    second = start(*command, ready=lambda: answer(port) == NOERROR)
    until = time.monotonic() + 20
    while not wait(directory) and time.monotonic() < until:
        time.sleep(0.2)
    end(first)
    before = answer(port)
    end(second)
    second = start(*command, ready=lambda: answer(port) is not None)
    time.sleep(3)  # it asks its primary at once
    after = answer(port)
    end(second)
    return RCODES.get(before), RCODES.get(after)


def answer(port):
    return rcode(ask(port, "web.shop.example.", timeout=1)[0])


primary_port = free_port()
plain = restarted("plain")
written = restarted("written", "    zonefiles-write: 2", lambda directory: os.path.exists(directory + "/shop.zone"))
stored = restarted("stored", f'    database: "{os.environ["work"]}/nsd.db"')
conclude("a secondary that is restarted while its primary is away answers from the zone that it had, whose expiry is a day",
         "NSD 4.6.1 (Debian 4.6.1-1), request-xfr, database \"\" and a zonefile",
         f"a name of the zone gets {plain[0]} before the restart and {plain[1]} after it; "
         f"{written[0]} and {written[1]} with zonefiles-write: 2, {stored[0]} and {stored[1]} with a database",
         (plain, written, stored) == (("NOERROR", "SERVFAIL"), ("NOERROR", "NOERROR"), ("NOERROR", "NOERROR")))
PYTHON
