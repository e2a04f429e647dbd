#!/usr/bin/env bash
# unbound's ratelimit does not limit what a forwarder is asked.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian unbound=1.17.1-2+deb12u4 libevent-2.1-7 libexpat1 libhiredis0.14 libnghttp2-14 libprotobuf-c1 libpython3.11 libssl3
python3 - <<'PYTHON'
from loopback import *


def asked(label, zone):
    """Asks for 1000 names of one zone within a few seconds. Returns how many queries its server gets, how many names fail, and the seconds."""
    upstream = Upstream(lambda name, qtype, q, tcp: (reply(q, ttl=60), 0))
    port = free_port()
    conf = write(label, f"""server:
    interface: 127.0.0.1
    port: {port}
    do-not-query-localhost: no
    module-config: "iterator"
    username: ""
    chroot: ""
    directory: "{folder("unbound")}"
    pidfile: ""
    use-syslog: no
    ratelimit: 100
    ratelimit-factor: 0
remote-control:
    control-enable: no
{zone.format(f"127.0.0.1@{upstream.port}")}
""")
    p = start("unbound", "-d", "-c", conf, ready=answers(port))
    time.sleep(3)
    before, begin = len(upstream.queries), time.monotonic()
    failed = sum(rcode(ask(port, f"n{i}.example.")[0]) == SERVFAIL for i in range(1000))
    seconds = time.monotonic() - begin
    end(p)
    return len(upstream.queries) - before, failed, seconds


zone = '\n    name: "example"\n    {}-addr: {{}}'
stub, forward = asked("stub", "stub-zone:" + zone.format("stub")), asked("forward", "forward-zone:" + zone.format("forward"))
conclude("with ratelimit: 100, the server of a zone gets 100 queries a second, whether the zone is a stub zone or is forwarded",
         "unbound 1.17.1 (Debian 1.17.1-2+deb12u4), ratelimit: 100 and ratelimit-factor: 0",
         f"1000 names in {stub[2]:.1f} s cause {stub[0]} queries for a stub zone, and {stub[1]} names get SERVFAIL; "
         f"for a forward zone in {forward[2]:.1f} s {forward[0]} queries, and {forward[1]} names",
         stub[0] <= 250 + 150 * stub[2] and stub[1] > 100 and forward[2] < 5 and forward[0] >= 1000 and forward[1] == 0)
PYTHON
