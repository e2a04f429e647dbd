#!/usr/bin/env bash
# A name does not exist for a round of ExternalDNS when its load balancer's address becomes a host name.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
externaldns 0.23.0
python3 - <<'PYTHON'
from loopback import *

CNAME = 5
port = free_port()
folder("named")
write("named/zone", "$TTL 300\n@ SOA ns.example. host.example. 1 3600 600 86400 60\n@ NS ns.example.\n")
start(*bind9("named", port, "recursion no; notify no; allow-transfer { 127.0.0.1; };",
             'zone shop.example { type primary; file "zone"; allow-update { 127.0.0.1; }; };'), "-n", "1", ready=answers(port, "shop.example."))


def rounds(record):
    """Returns what BIND has for the name after each of two rounds of ExternalDNS with the record."""
    found = []
    for _ in range(2):
        subprocess.run(["external-dns", "rfc2136", "127.0.0.1", str(port), "shop.example"], input=f"web.shop.example {record}\n", stderr=subprocess.DEVNULL,
                       text=True, check=True)
        r, _ = ask(port, "web.shop.example.", CNAME)
        found.append("NXDOMAIN" if rcode(r) == NXDOMAIN else "CNAME" if r[7] else "A")
    return found


first, to_name, to_address = rounds("A 192.0.2.1"), rounds("CNAME lb.example.net"), rounds("A 192.0.2.2")
conclude("when the address of a name becomes a host name, or the other way round, the A record is replaced by the CNAME record at once",
         "ExternalDNS 0.23.0, rfc2136; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) as the server",
         f"after one round the name gets {to_name[0]}, and {to_name[1]} after the next one, a minute later unless --interval is set; back to an address: {to_address[0]}, then {to_address[1]}. "
         "No round fails: a CNAME record is added before the A record is deleted, and a server takes no notice of the former (RFC 2136, 3.4.2.2)",
         (first, to_name, to_address) == (["A", "A"], ["NXDOMAIN", "CNAME"], ["NXDOMAIN", "A"]))
PYTHON
