#!/usr/bin/env bash
# A secondary zone of CoreDNS follows its first primary, even if that one is behind the second.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian bind9=1:9.18.49-1~deb12u3 bind9-libs=1:9.18.49-1~deb12u3 libcap2 libfstrm0 libgssapi-krb5-2 libjemalloc2 libjson-c5 libkeyutils1 libkrb5-3 libk5crypto3 libkrb5support0 liblmdb0 libmaxminddb0 libnghttp2-14 libprotobuf-c1 libssl3 libuv1 libxml2 libicu72
coredns 1.15.0 bind file secondary transfer
python3 - <<'PYTHON'
from loopback import *

OLD, NEW = 1, 9


def serial(port):
    """Returns the serial of the zone that a server has, which is also the end of an address, or None."""
    r, _ = ask(port, "serial.shop.example.", timeout=1)
    return r[r.index(bytes([192, 0, 2])) + 3] if rcode(r) == NOERROR else None


def corefile(label, port, rest):
    return write(label, f"""shop.example:{port} {{
    bind 127.0.0.1
{rest}}}
""")


def primary(number):
    port = free_port()
    zone = write(f"zone-{number}", f"""$ORIGIN shop.example.
$TTL 5
@ SOA ns a {number} 2 2 86400 5
@ NS ns
ns A 192.0.2.200
serial A 192.0.2.{number}
""")
    conf = corefile(f"primary-{number}", port, f"    file {zone}\n    transfer {{\n        to *\n    }}\n")
    start("coredns", "-conf", conf, ready=lambda: serial(port) == number)
    return port


def notify(port):
    q = query("shop.example.", SOA)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5)
        s.connect(("127.0.0.1", port))
        s.send(q[:2] + b"\x24\0" + q[4:])
        return rcode(s.recv(4096))


first, second = primary(OLD), primary(NEW)
coredns, named = free_port(), free_port()
start("coredns", "-conf", corefile("secondary", coredns, f"    secondary {{\n        transfer from 127.0.0.1:{first} 127.0.0.1:{second}\n    }}\n"),
      ready=lambda: serial(coredns) is not None)
conf = write("named.conf", f"""options {{
    directory "{folder("named")}";
    managed-keys-directory "{folder("named")}";
    pid-file none;
    session-keyfile none;
    listen-on port {named} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    recursion no;
    min-refresh-time 1;
    min-retry-time 1;
}};
controls {{ }};
zone shop.example {{
    type secondary;
    primaries {{ 127.0.0.1 port {first}; 127.0.0.1 port {second}; }};
}};
""")
start("named", "-f", "-c", conf, ready=lambda: serial(named) is not None)
until = time.monotonic() + 30
while serial(named) != NEW and time.monotonic() < until:
    time.sleep(0.5)
time.sleep(5)
accepted = notify(coredns)
time.sleep(5)
conclude("a secondary with two primaries takes the zone with the newer serial within a few refreshes, and certainly after a NOTIFY",
         "CoreDNS 1.15.0, secondary; BIND 9.18.49 (Debian 1:9.18.49-1~deb12u3) for comparison",
         f"primaries have serials {serial(first)} and {serial(second)}, refresh is 2 s: CoreDNS has serial {serial(coredns)} "
         f"also 5 s after a NOTIFY (answer: {RCODES.get(accepted)}), BIND {serial(named)}",
         (serial(first), serial(second), serial(coredns), serial(named), accepted) == (OLD, NEW, OLD, NEW, NOERROR))
PYTHON
