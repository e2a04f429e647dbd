#!/usr/bin/env bash
# PowerDNS Recursor answers names of its hosts file with a TTL of a day.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian pdns-recursor=4.8.8-1+deb12u1 dnsmasq-base=2.90-4~deb12u2 libboost-context1.74.0 libcurl4 libfstrm0 libluajit-5.1-2 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libnghttp2-14 librtmp1 libssh2-1 libpsl5 libldap-2.5-0 libsasl2-2 libbrotli1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libdbus-1-3 libidn2-0 libjansson4 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libxtables12
python3 - <<'PYTHON'
from loopback import *

OLD, NEW = "192.0.2.5", "192.0.2.6"
upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, NXDOMAIN), 0))


def state(port):
    """Returns the address and the TTL that a server has for the name, or None."""
    r, _ = ask(port, "db.example.")
    return (socket.inet_ntoa(r[-4:]), struct.unpack("!L", r[-10:-6])[0]) if rcode(r) == NOERROR else None


def change(label, extra):
    """Returns the TTL, and what the recursor and dnsmasq as its client have after the hosts file has changed and the recursor has been told."""
    hosts, port, cache, directory = write(label + "-hosts", f"{OLD} db.example\n"), free_port(), free_port(), folder(label)
    write(label + "/recursor.conf", f"""local-address=127.0.0.1
local-port={port}
socket-dir={directory}
forward-zones-recurse=.=127.0.0.1:{upstream.port}
dont-query=
query-local-address=127.0.0.1
security-poll-suffix=
write-pid=no
daemon=no
export-etc-hosts=yes
etc-hosts-file={hosts}
{extra}
""")
    start("pdns_recursor", "--config-dir=" + directory, ready=lambda: state(port) is not None)
    start(*dnsmasq(cache, port), ready=lambda: state(cache) is not None)
    before = state(port)
    write(label + "-hosts", f"{NEW} db.example\n")
    if subprocess.run(["rec_control", "--config-dir=" + directory, "--socket-dir=" + directory, "reload-zones"], stdout=subprocess.DEVNULL).returncode:
        sys.exit(2)
    until = time.monotonic() + 45
    while (state(port)[0] != NEW or state(cache)[0] != NEW) and time.monotonic() < until:
        time.sleep(0.5)
    return before[1], state(port), state(cache)


ttl, reloaded, cached = change("plain", "")
short, _, followed = change("short", "max-cache-ttl=30")
conclude("clients have a name's new address some minutes after the hosts file has changed and the recursor has been told",
         "PowerDNS Recursor 4.8.8 (Debian 4.8.8-1+deb12u1), export-etc-hosts; dnsmasq 2.90 as its client",
         f"the name has a TTL of {ttl} s; after rec_control reload-zones, the recursor has the {'new' if reloaded[0] == NEW else 'old'} address, "
         f"and a cache that has asked before has the {'new' if cached[0] == NEW else 'old'} one for {cached[1]} more seconds; with max-cache-ttl=30 "
         f"the TTL is {short} s, and the cache has the {'new' if followed[0] == NEW else 'old'} address within 45 s",
         ttl > 80000 and reloaded[0] == NEW and reloaded[1] > 80000 and cached[0] == OLD and cached[1] > 80000 and short <= 30 and followed[0] == NEW)
PYTHON
