#!/usr/bin/env bash
# dnsdist has stale answers, and sends none unless its health check has failed.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
debian dnsdist=1.7.3-2 libbsd0 libcdb1 libedit2 libfstrm0 libh2o-evloop0.13 liblmdb0 libluajit-5.1-2 libnghttp2-14 libre2-9 libsnmp40 libperl5.36 libsodium23 libssl3 libwrap0 libwslay1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1
python3 - <<'PYTHON'
from loopback import *

NAMES = [f"n{i}.example." for i in range(5)]
PROBES = ("ready.example.", "a.root-servers.net.")


def asked(port, timeout=5):
    """Asks for all names at once, and returns their RCODEs."""
    codes = {}
    threads = [threading.Thread(target=lambda name=name: codes.update({name: rcode(ask(port, name, timeout=timeout)[0])})) for name in NAMES]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return list(codes.values())


def outage(label, answer, probed):
    """Returns how many names are answered 3 s after the start of an outage, and the seconds from its end to all of them, 90 at most.
    The health check succeeds if probed."""
    out, port = threading.Event(), free_port()
    upstream = Upstream(lambda name, qtype, q, tcp: (answer(q) if out.is_set() and not (probed and name in PROBES) else reply(q, ttl=2), 0))
    conf = write(label, f"""setLocal("127.0.0.1:{port}")
setSecurityPollSuffix("")
setStaleCacheEntriesTTL(3600)
newServer({{address="127.0.0.1:{upstream.port}"}})
getPool(""):setCache(newPacketCache(10000, {{keepStaleData=true}}))
""")
    p = start("dnsdist", "--supervised", "--disable-syslog", "-C", conf, ready=answers(port))
    if asked(port) != [NOERROR] * len(NAMES):
        sys.exit(2)
    time.sleep(3)
    out.set()
    time.sleep(3)
    n = asked(port).count(NOERROR)
    out.clear()
    begin = time.monotonic()
    while asked(port, 2).count(NOERROR) < len(NAMES) and time.monotonic() - begin < 90:
        time.sleep(1)
    seconds = time.monotonic() - begin
    end(p)
    return n, seconds


down, silent, failing = outage("down", lambda q: None, False), outage("silent", lambda q: None, True), outage("failing", lambda q: reply(q, SERVFAIL), True)
conclude("with keepStaleData and setStaleCacheEntriesTTL(3600), names answered seconds ago are answered in an outage, and at once after it",
         "dnsdist 1.7.3 (Debian 1.7.3-2)",
         f"{down[0]} of {len(NAMES)} names are answered if the server is silent for the health check, too; {silent[0]} if only the other names get no reply, "
         f"and {failing[0]} if they get SERVFAIL, which is repeated for {failing[1]:.0f} s after the outage",
         down[0] == len(NAMES) and silent[0] == failing[0] == 0 and 30 < failing[1] < 80)
PYTHON
