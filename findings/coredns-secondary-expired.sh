#!/usr/bin/env bash
# A secondary zone of CoreDNS that has expired stays so when the primary returns.
work=$(mktemp -d) # removed at the end
. "$(dirname "$0")/setup.bash"
coredns 1.15.0 bind file secondary transfer
python3 - <<'PYTHON'
from loopback import *

NAME = "web.example."
primary, secondary = free_port(), free_port()


def code():
    return rcode(ask(secondary, NAME)[0])


def start_primary(serial):
    """Starts a server with the zone, which is to be refreshed each second and expires after 10 s."""
    zone = write("zone", f"""$ORIGIN example.
@ 60 IN SOA ns hostmaster {serial} 1 1 10 60
@ 60 IN NS ns
ns 60 IN A 192.0.2.53
web 60 IN A 192.0.2.1
""")
    return start("coredns", "-conf", write("primary", f"""example.:{primary} {{
    bind 127.0.0.1
    file {zone}
    transfer {{
        to *
    }}
}}
"""), ready=answers(primary, NAME, tcp=True))


def until(wanted, seconds):
    """Waits until the secondary answers so. Returns after how many seconds, or None."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        if code() == wanted:
            return time.monotonic() - begin
        time.sleep(0.2)


p = start_primary(1)
start("coredns", "-conf", write("secondary", f"""example.:{secondary} {{
    bind 127.0.0.1
    secondary {{
        transfer from 127.0.0.1:{primary}
    }}
}}
"""), ready=lambda: code() == NOERROR)
end(p)
if until(SERVFAIL, 5) is not None:
    sys.exit(2)
p = start_primary(1)
time.sleep(15)
kept = code()
end(p)
if until(SERVFAIL, 90) is None:
    sys.exit(2)
p = start_primary(1)
codes = []
for _ in range(45):
    codes.append(code())
    time.sleep(1)
end(p)
start_primary(2)
raised = until(NOERROR, 30)
conclude("a secondary zone that expired while the primary was away is answered again when the primary returns",
         "CoreDNS 1.15.0, secondary, and as the primary CoreDNS 1.15.0, file and transfer",
         f"after a short outage the zone gets {RCODES[kept]}; once it has expired, it gets SERVFAIL {codes.count(SERVFAIL)} times in the 45 s after the primary's return, "
         f"though it is to be refreshed each second; with a higher serial it is answered after {raised or -1:.0f} s",
         kept == NOERROR and codes.count(SERVFAIL) == len(codes) and raised is not None)
PYTHON
