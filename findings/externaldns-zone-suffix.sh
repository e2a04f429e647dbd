#!/usr/bin/env bash
# ExternalDNS updates the wrong zone if one zone's name ends like another one's.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
externaldns 0.23.0
python3 - <<'PYTHON'
from loopback import *

RECORDS = {"web.prod.example": "192.0.2.1", "web.nonprod.example": "192.0.2.2"}
ZONES = ["prod.example", "nonprod.example"]


def named(label):
    """Starts a BIND that has the two zones, empty, and takes updates, and returns its port."""
    port = free_port()
    folder(label)
    for zone in ZONES:
        write(f"{label}/{zone}", "$TTL 300\n@ SOA ns.example. host.example. 1 3600 600 86400 60\n@ NS ns.example.\n")
    start(*bind9(label, port, "recursion no; notify no; allow-transfer { 127.0.0.1; };",
                 "".join(f'zone {zone} {{ type primary; file "{zone}"; allow-update {{ 127.0.0.1; }}; }};\n' for zone in ZONES)), "-n", "1",
          ready=answers(port, "prod.example."))
    return port


def added(label, zones):
    """Returns the names that BIND has after two rounds of ExternalDNS with the zones in that order."""
    port = named(label)
    for _ in range(2):
        subprocess.run(["external-dns", "rfc2136", "127.0.0.1", str(port), *zones], stderr=subprocess.DEVNULL, text=True,
                       input="".join(f"{name} A {address}\n" for name, address in RECORDS.items()))
    return [name for name in RECORDS if rcode(ask(port, name + ".")[0]) == NOERROR]


shorter, longer = added("shorter", ZONES), added("longer", ZONES[::-1])
conclude(f"with --rfc2136-zone={ZONES[0]} and --rfc2136-zone={ZONES[1]}, a name of each zone is added to it",
         "ExternalDNS 0.23.0, rfc2136; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the server",
         f"{len(shorter)} of {len(RECORDS)} names are added: a name of {ZONES[1]} is sent as one of {ZONES[0]}, and BIND refuses it and all that is sent with it; "
         f"{len(longer)} are added if {ZONES[1]} comes first",
         (len(shorter), len(longer)) == (0, 2))
PYTHON
