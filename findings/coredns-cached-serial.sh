#!/usr/bin/env bash
# With cache, CoreDNS tells a secondary that it has notified that the zone has not changed.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian nsd=4.6.1-1 libevent-2.1-7 libfstrm0 libprotobuf-c1 libssl3
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 libmaxminddb0 libnghttp2-14 libuv1 libxml2 libicu72
coredns 1.15.0 bind cache file transfer
python3 - <<'PYTHON'
from loopback import *

NAME = "web.example."


def zone(serial):
    os.replace(write("new", f"""$ORIGIN example.
$TTL 300
@ SOA ns hostmaster {serial} 3600 600 86400 60
@ NS ns
ns A 192.0.2.53
web A 192.0.2.{serial}
"""), os.path.join(os.environ["work"], "zone"))


def address(port):
    r, _ = ask(port, NAME)
    return next((i for i in (1, 2) if rcode(r) == NOERROR and bytes([192, 0, 2, i]) in r), None)


def primary(label, secondary, cache):
    """Starts a CoreDNS that notifies the port secondary, and returns its own port."""
    port = free_port()
    start("coredns", "-conf", write(label, f"""example.:{port} {{
    bind 127.0.0.1
    {cache}
    file {os.environ["work"]}/zone {{
        reload 1s
    }}
    transfer {{
        to * 127.0.0.1:{secondary}
    }}
}}
"""), ready=answers(port, NAME))
    return port


def bind(label, cache):
    """Starts a BIND as the secondary of a CoreDNS, and returns its port."""
    port = free_port()
    start(*bind9(label, port, "recursion no;", f"""zone example {{
    type secondary;
    primaries {{ 127.0.0.1 port {primary(label + "-primary", port, cache)}; }};
    file "zone";
}};"""), ready=lambda: address(port) == 1)
    return port


zone(1)
cached, disabled, without, other = bind("cached", "cache"), bind("disabled", "cache {\n        disable success example\n    }"), bind("without", ""), free_port()
start(*nsd(other, {"example": [f"request-xfr: 127.0.0.1@{primary('other', other, 'cache')} NOKEY", "allow-notify: 127.0.0.1 NOKEY"]}), ready=lambda: address(other) == 1)
zone(2)
until = time.monotonic() + 20
while time.monotonic() < until and not all(address(port) == 2 for port in (disabled, without, other)):
    time.sleep(0.5)
time.sleep(20)
seen = [address(port) for port in (cached, disabled, without, other)]
conclude("a secondary has a change seconds after the primary's NOTIFY",
         "CoreDNS 1.15.0, cache, file and transfer; BIND 9.18.49 (Debian 9.18.49-1~deb12u3) and NSD 4.6.1 (Debian 4.6.1-1) as secondaries",
         f"20 s after the change and the NOTIFY BIND answers with version {seen[0]} of the zone; with version {seen[1]} if the cache has disable success for the zone, "
         f"and {seen[2]} without cache. NSD, which does not ask for the SOA record first, has version {seen[3]}",
         seen == [1, 2, 2, 2])
PYTHON
