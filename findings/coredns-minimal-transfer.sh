#!/usr/bin/env bash
# With minimal, CoreDNS sends only the end of a large zone to its secondaries.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libuv1 libxml2 libicu72
coredns 1.15.0 bind file minimal transfer
python3 - <<'PYTHON'
from loopback import *


def primary(option, records):
    """Starts a CoreDNS that has a zone with that many names, and returns its port."""
    port = free_port()
    label = f"{option}-{records}"
    zone = write(label + ".zone", f"""$ORIGIN example.
$TTL 300
@ SOA ns hostmaster 1 2 2 86400 60
@ NS ns
ns A 192.0.2.53
""" + "".join(f"web-{i:05} A 192.0.2.1\n" for i in range(records)))
    start("coredns", "-conf", write(label, f"""example.:{port} {{
    bind 127.0.0.1
    {option}
    file {zone}
    transfer {{
        to *
    }}
}}
"""), ready=answers(port, "web-00000.example."))
    return port


def bind(port, source):
    return bind9(f"named-{port}", port, "recursion no;", f'zone example {{ type secondary; primaries {{ 127.0.0.1 port {source}; }}; file "zone"; }};')


def nsd_secondary(port, source):
    return nsd(port, {"example": [f"request-xfr: AXFR 127.0.0.1@{source} NOKEY"]}, f"nsd-{port}")


def transferred(secondary, option, records):
    """Returns how many of three names a secondary has 12 s after its start, or earlier if it has all."""
    port = free_port()
    p = start(*secondary(port, primary(option, records)), ready=answers(port))
    until = time.monotonic() + 12
    while (found := sum(rcode(ask(port, f"web-{i:05}.example.")[0]) == NOERROR for i in (0, records // 2, records - 1))) < 3 and time.monotonic() < until:
        time.sleep(0.5)
    end(p)
    return found


whole, small, large, other = transferred(bind, "", 5000), transferred(bind, "minimal", 500), transferred(bind, "minimal", 5000), transferred(nsd_secondary, "minimal", 5000)
conclude("a secondary gets the zone whatever its size, also if the server block has minimal, which leaves out records of the authority and additional sections",
         "CoreDNS 1.15.0, minimal, file and transfer; BIND 9.18.49 (Debian 9.18.49-1~deb12u3) and NSD 4.6.1 (Debian 4.6.1-1) as secondaries",
         f"of the first, the middle and the last of 5000 names BIND has {large} after 12 s, and NSD {other}; with 500 names BIND has {small}, and without minimal {whole} of 5000",
         whole == small == 3 and large == other == 0)
PYTHON
